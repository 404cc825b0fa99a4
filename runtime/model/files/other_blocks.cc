#include "runtime/model/files/other_blocks.h"

#include <cstring>

#include "cache/base.h"

namespace headrace {
namespace {

constexpr int kBlock = 256;  // weights of a block of IQ4_XS, Q3_K and Q2_K

// The levels that the four bits of IQ4_NL and IQ4_XS stand for.
constexpr int8_t kLevels[16] = {-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113};

float f16_at(const uint8_t* bytes) {
  f16 value;
  std::memcpy(&value.bits, bytes, sizeof value.bits);
  return f16_to_f32(value);
}

// ---- IQ4_NL: a scale and 32 levels; byte i holds weight i in its low and weight i + 16 in its high four bits --------

int8_t level(const uint8_t* nibbles, int i) { return kLevels[i < 16 ? nibbles[i] & 15 : nibbles[i - 16] >> 4]; }

void read_iq4_nl(const uint8_t* block, float* weights) {
  const float scale = f16_at(block);
  for (int i = 0; i < 32; ++i) weights[i] = scale * static_cast<float>(level(block + 2, i));
}

void iq4_nl_as_q8_0(const uint8_t* block, uint8_t* out) {
  std::memcpy(out, block, 2);
  for (int i = 0; i < 32; ++i) out[2 + i] = static_cast<uint8_t>(level(block + 2, i));
}

// ---- IQ4_XS: d in f16, the upper two bits of eight scales in 16 bits, their lower four in 4 bytes, 8 x 32 levels ----

void read_iq4_xs(const uint8_t* block, float* weights) {
  const float d = f16_at(block);
  for (int g = 0; g < 8; ++g) {
    const int low = block[4 + g / 2] >> g % 2 * 4 & 15, high = block[2 + g / 4] >> g % 4 * 2 & 3;
    const float scale = d * static_cast<float>((low | high << 4) - 32);
    for (int i = 0; i < 32; ++i) weights[32 * g + i] = scale * static_cast<float>(level(block + 8 + 16 * g, i));
  }
}

// ---- Q3_K: third bits in 32 bytes, lower two bits in 64, sixteen scales of 6 bits in 12, d in f16 -------------------

constexpr int kThirdAt = 0, kTwoBitsAt = 32, kSixBitsAt = 96, kThreeDAt = 108;

// Weight i of a block has bits 2 run and 2 run + 1 of byte 32 (i / 128) + i % 32, with run = i / 32 % 4.
int two_bits(const uint8_t* bytes, int i) { return bytes[i / 128 * 32 + i % 32] >> i / 32 % 4 * 2 & 3; }

// Scale g, from -32 to 31. The lower four bits of scales 0 to 7 are in the low halves of bytes 0 to 7, of 8 to 15 in
// the high halves. Byte 8 + g % 4 has the upper two bits of scale g at bit g / 4 * 2.
int six_bit_scale(const uint8_t* block, int g) {
  const uint8_t* const bytes = block + kSixBitsAt;
  const int low = bytes[g % 8] >> g / 8 * 4 & 15, high = bytes[8 + g % 4] >> g / 4 * 2 & 3;
  return (low | high << 4) - 32;
}

// From -4 to 3: where the third bit is clear, 4 less.
int three_bit_level(const uint8_t* block, int i) {
  const bool third = (block[kThirdAt + i % 32] >> i / 32 & 1) != 0;
  return two_bits(block + kTwoBitsAt, i) - (third ? 0 : 4);
}

void read_q3_k(const uint8_t* block, float* weights) {
  const float d = f16_at(block + kThreeDAt);
  for (int i = 0; i < kBlock; ++i) {
    const float scale = d * static_cast<float>(six_bit_scale(block, i / 16));
    weights[i] = scale * static_cast<float>(three_bit_level(block, i));
  }
}

// Q6_K's levels are stored with 32 added: the lower four bits, the upper two, the scales, d.
void q3_k_as_q6_k(const uint8_t* block, uint8_t* out) {
  constexpr int kHigh = 128, kScales = 192, kD = 208;
  std::memset(out, 0, kD);
  for (int i = 0; i < kBlock; ++i) {
    const int q = three_bit_level(block, i) + 32, half = i / 128, run = i / 32 % 4, place = i % 32;
    uint8_t &low = out[64 * half + 32 * (run % 2) + place], &high = out[kHigh + 32 * half + place];
    low = static_cast<uint8_t>(low | (q & 15) << (run / 2 * 4));
    high = static_cast<uint8_t>(high | q >> 4 << (2 * run));
  }
  for (int g = 0; g < 16; ++g) out[kScales + g] = static_cast<uint8_t>(six_bit_scale(block, g));
  std::memcpy(out + kD, block + kThreeDAt, 2);
}

// ---- Q2_K: a scale (low) and a minimum (high) of 4 bits in each of 16 bytes, two bits a weight, d, dmin in f16 ------

void read_q2_k(const uint8_t* block, float* weights) {
  const float d = f16_at(block + 80), dmin = f16_at(block + 82);
  for (int i = 0; i < kBlock; ++i) {
    const uint8_t both = block[i / 16];
    const float scale = d * static_cast<float>(both & 15), minimum = dmin * static_cast<float>(both >> 4);
    const float product = scale * static_cast<float>(two_bits(block + 16, i));
    weights[i] = product - minimum;
  }
}

constexpr OtherBlocks kOthers[] = {{"IQ4_NL", read_iq4_nl, iq4_nl_as_q8_0},
                                   {"IQ4_XS", read_iq4_xs, nullptr},
                                   {"Q3_K", read_q3_k, q3_k_as_q6_k},
                                   {"Q2_K", read_q2_k, nullptr}};

}  // namespace

const OtherBlocks* find_other_blocks(std::string_view stored) {
  for (const OtherBlocks& other : kOthers) {
    if (other.stored == stored) return &other;
  }
  return nullptr;
}

}  // namespace headrace
