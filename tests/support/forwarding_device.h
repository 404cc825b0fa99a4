// A device that passes every call to another, for tests that change some of them. Header only.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <utility>

#include "offload/device/device.h"
#include "offload/device/trace_clock.h"

namespace headrace::testing {

class ForwardingDevice : public Device {
 public:
  explicit ForwardingDevice(std::unique_ptr<Device> real) : real_(std::move(real)) {}
  Backend backend() const override { return real_->backend(); }
  std::string name() const override { return real_->name(); }
  int threads() const override { return real_->threads(); }
  std::unique_ptr<Event> make_event() override { return real_->make_event(); }
  std::unique_ptr<TraceClock> make_trace_clock() override { return real_->make_trace_clock(); }
  DeviceBuffer allocate(uint64_t bytes, std::string_view what) override { return real_->allocate(bytes, what); }
  PinnedBuffer allocate_pinned(uint64_t bytes, std::string_view what) override {
    return real_->allocate_pinned(bytes, what);
  }
  MemoryBudget& vram() override { return real_->vram(); }
  MemoryBudget& host_mem() override { return real_->host_mem(); }

 protected:
  std::unique_ptr<Stream> new_stream(std::string_view name, StreamRole role) override {
    return real_->make_stream(name, role);
  }
  Device& real() { return *real_; }

 private:
  const std::unique_ptr<Device> real_;
};

}  // namespace headrace::testing
