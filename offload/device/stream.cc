#include "offload/device/stream.h"

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "offload/device/call_hash.h"
#include "offload/host/checksum.h"

namespace headrace {

void Stream::copy_piece_bytes(void* dst, const void* src, const CopyPieces& pieces, Link link) {
  for (size_t i = 0; i < pieces.count; ++i) {
    copy_bytes(static_cast<std::byte*>(dst) + i * pieces.dst_stride,
               static_cast<const std::byte*>(src) + i * pieces.src_stride, pieces.bytes, link);
  }
}

void Stream::hash_copy(const void* dst, const void* src, const CopyPieces& pieces, Link link) {
  const std::array<uint64_t, 7> call = {reinterpret_cast<uintptr_t>(dst),
                                        reinterpret_cast<uintptr_t>(src),
                                        pieces.bytes,
                                        pieces.count,
                                        pieces.dst_stride,
                                        pieces.src_stride,
                                        static_cast<uint64_t>(link)};
  calls_->add(call.data(), sizeof call);
}

void CallHash::add(const void* data, size_t bytes) {
  const std::array<uint64_t, 2> both = {value_, checksum({static_cast<const std::byte*>(data), bytes})};
  value_ = checksum(std::as_bytes(std::span(both)));
}

void drain(Stream& stream) noexcept {
  try {
    stream.synchronize();
  } catch (...) {  // nobody is left to report it to
  }
}

}  // namespace headrace
