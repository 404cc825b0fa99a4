#include "kernels/weights/grids.h"

namespace headrace {
namespace {

// A byte for each hexadecimal digit of the words.
template <typename Bytes, typename Words, size_t kLevels>
constexpr auto bytes_of(const Words& grid, const uint8_t (&levels)[kLevels]) {
  ByteTable<Bytes, Words::kEntries> table{};
  for (int entry = 0; entry < Words::kEntries; ++entry) {
    for (size_t i = 0; i < sizeof(Bytes); ++i) {
      table.entries[entry] |= static_cast<Bytes>(levels[grid.words[entry] >> 4 * i & 15]) << 8 * i;
    }
  }
  return table;
}

constexpr ByteTable<uint64_t, 256> sign_bytes() {
  ByteTable<uint64_t, 256> table{};
  for (int signs = 0; signs < 256; ++signs) {
    for (int i = 0; i < 8; ++i) table.entries[signs] |= (signs >> i & 1) != 0 ? uint64_t{255} << 8 * i : 0;
  }
  return table;
}

}  // namespace

constinit const ByteTable<uint64_t, 256> kBytes2Xxs = bytes_of<uint64_t>(kGrid2Xxs, kLevels2);
constinit const ByteTable<uint64_t, 512> kBytes2Xs = bytes_of<uint64_t>(kGrid2Xs, kLevels2);
constinit const ByteTable<uint64_t, 1024> kBytes2S = bytes_of<uint64_t>(kGrid2S, kLevels2);
constinit const ByteTable<uint32_t, 256> kBytes3Xxs = bytes_of<uint32_t>(kGrid3Xxs, kLevels3Xxs);
constinit const ByteTable<uint32_t, 512> kBytes3S = bytes_of<uint32_t>(kGrid3S, kLevels3S);
constinit const ByteTable<uint64_t, 256> kSignBytes = sign_bytes();

}  // namespace headrace
