// Owners of device memory and of pinned host memory. Move-only; the destructor frees the memory and returns its
// reservation. Made by a Device, which must outlive them. Aligned to 4 KiB, CUDA device memory to 256 bytes. New
// buffers are zeroed.
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>

#include "offload/device/budget.h"

namespace headrace {

class Device;

namespace internal {
// The common part: bytes of one kind of memory, and the reservation that covers them.
class Buffer {
 public:
  using Free = void (*)(Device& device, void* data, uint64_t bytes) noexcept;

  Buffer() = default;
  Buffer(Device& device, void* data, uint64_t bytes, Free free_bytes, MemoryBudget::Reservation reservation);
  Buffer(Buffer&& other) noexcept;
  Buffer& operator=(Buffer&& other) noexcept;
  ~Buffer();

  std::byte* data() const { return static_cast<std::byte*>(data_); }
  template <typename T>
  T* as() const {
    return static_cast<T*>(data_);
  }
  uint64_t bytes() const { return bytes_; }
  explicit operator bool() const { return data_ != nullptr; }

 private:
  Device* device_ = nullptr;
  void* data_ = nullptr;
  uint64_t bytes_ = 0;
  Free free_ = nullptr;
  MemoryBudget::Reservation reservation_;
};
}  // namespace internal

class DeviceBuffer : public internal::Buffer {
  using Buffer::Buffer;
};  // memory that kernels read and write
class PinnedBuffer : public internal::Buffer {
  using Buffer::Buffer;
};  // host memory that copies reach at full speed

}  // namespace headrace
