#include "offload/device/stream.h"

#include <cstddef>

namespace headrace {

void Stream::copy_piece_bytes(void* dst, const void* src, const CopyPieces& pieces, Link link) {
  for (size_t i = 0; i < pieces.count; ++i) {
    copy_bytes(static_cast<std::byte*>(dst) + i * pieces.dst_stride,
               static_cast<const std::byte*>(src) + i * pieces.src_stride, pieces.bytes, link);
  }
}

void drain(Stream& stream) noexcept {
  try {
    stream.synchronize();
  } catch (...) {  // nobody is left to report it to
  }
}

}  // namespace headrace
