#include "offload/device/buffer.h"

namespace headrace::internal {

Buffer::Buffer(Device& device, void* data, uint64_t bytes, Free free_bytes, MemoryBudget::Reservation reservation)
    : device_(&device), data_(data), bytes_(bytes), free_(free_bytes), reservation_(std::move(reservation)) {}

Buffer::Buffer(Buffer&& other) noexcept
    : device_(std::exchange(other.device_, nullptr)),
      data_(std::exchange(other.data_, nullptr)),
      bytes_(std::exchange(other.bytes_, 0)),
      free_(std::exchange(other.free_, nullptr)),
      reservation_(std::move(other.reservation_)) {}

Buffer& Buffer::operator=(Buffer&& other) noexcept {
  Buffer taken(std::move(other));  // frees what this one owned, on self-assignment too
  std::swap(device_, taken.device_);
  std::swap(data_, taken.data_);
  std::swap(bytes_, taken.bytes_);
  std::swap(free_, taken.free_);
  std::swap(reservation_, taken.reservation_);
  return *this;
}

// Frees the memory before the reservation, a member, is returned: the budget never counts less than is allocated.
Buffer::~Buffer() {
  if (data_ != nullptr) free_(*device_, data_, bytes_);
}

}  // namespace headrace::internal
