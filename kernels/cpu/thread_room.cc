#include "kernels/cpu/thread_room.h"

#include <memory>
#include <new>

namespace headrace::kernels {
namespace {

constexpr std::align_val_t kAlignment{64};
struct AlignedDelete {
  void operator()(std::byte* memory) const { ::operator delete[](memory, kAlignment); }
};

}  // namespace

std::byte* room_of_thread(uint64_t bytes) {
  thread_local std::unique_ptr<std::byte[], AlignedDelete> memory;
  thread_local uint64_t size = 0;
  if (size < bytes) {
    memory.reset();
    size = 0;
    memory.reset(new (kAlignment) std::byte[bytes]);
    size = bytes;
  }
  return memory.get();
}

}  // namespace headrace::kernels
