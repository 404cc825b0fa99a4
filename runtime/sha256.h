// SHA-256 (FIPS 180-4): names content, so that work done on the same bytes is found again. A value; any thread.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>

namespace headrace {

using Digest = std::array<uint8_t, 32>;
std::string digest_text(const Digest& digest);  // 64 lower-case digits

class Sha256 {
 public:
  void update(std::string_view bytes);
  Digest finish();  // call once, last

 private:
  void compress(const uint8_t* block);  // [64]

  std::array<uint32_t, 8> state_ = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a,
                                    0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};
  std::array<uint8_t, 64> pending_{};  // the bytes of an unfinished block
  uint64_t total_bytes_ = 0;
};

std::string sha256_hex(std::string_view bytes);  // digest_text() of all of them

}  // namespace headrace
