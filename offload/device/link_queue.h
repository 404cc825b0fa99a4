// The one copy stream that fills rings on the device from host memory, in the order in which passes use what it brings.
// Sources of fills (weights, rows) say where their next fill stands in that order; the queue enqueues the first, as far
// ahead as the rings have room. A ring without room holds back what comes after it in this pass, and nothing in later
// passes. Fills wait on the stream for the last readers of their slot, so they are enqueued long before they run.
//
// Owns the stream, which it makes once something is to cross. Thread: that of the passes. Others enqueue through
// enqueue() what they have waited for themselves, such as rows from a disk.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "offload/device/device.h"
#include "offload/device/stream.h"
#include "offload/host/thread_annotations.h"

namespace headrace {

// Where a fill is used. In a layer, what has the lower rank comes first.
struct LinkPlace {
  int64_t pass = 0, layer = 0, rank = 0;
  auto operator<=>(const LinkPlace&) const = default;
};

class LinkQueue {
 public:
  class Source {
   public:
    virtual LinkPlace next() const = 0;
    virtual bool has_room() const = 0;  // for that fill
    virtual void fill() = 0;            // enqueues it
   protected:
    ~Source() = default;
  };

  explicit LinkQueue(Device& device) : device_(device) {}
  LinkQueue(const LinkQueue&) = delete;
  LinkQueue& operator=(const LinkQueue&) = delete;

  // A source that is removed fills nothing anymore; what it has enqueued runs.
  void add(Source& source);
  void remove(Source& source);

  int64_t pass() const { return pass_; }  // the one that runs, or ran last
  void begin_pass() { ++pass_; }
  void pump();  // a ring may have room again, or a pass has begun

  // Calls body(stream) while no other thread enqueues.
  template <typename Body>
  void enqueue(const Body& body) {
    const MutexLock lock(mutex_);
    if (stream_ == nullptr) stream_ = device_.make_stream("to the device", StreamRole::kCopy);
    body(*stream_);
  }
  void drain() noexcept {
    if (stream_) headrace::drain(*stream_);
  }
  void check() {  // throws if a copy has failed; never blocks
    if (stream_) stream_->check();
  }

 private:
  Source* first() const;

  Device& device_;
  std::vector<Source*> sources_;
  int64_t pass_ = 0;
  Mutex mutex_;  // held to enqueue on the stream
  std::unique_ptr<Stream> stream_;
};

}  // namespace headrace
