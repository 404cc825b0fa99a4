#include "tests/support/weight_blocks.h"

#include <cmath>
#include <cstring>
#include <random>

#include "cache/base.h"
#include "kernels/weights/grid_words.h"

namespace headrace::testing_support {
namespace {

// Where a block has f16 numbers, and how large they may be.
struct Scale {
  size_t at;
  float largest;
};
std::vector<Scale> scales_of(WeightType type) {
  switch (type) {
    case WeightType::kQ4_0:
      return {{0, 0.02f}};
    case WeightType::kQ4_1:
      return {{0, 0.02f}, {2, 0.1f}};
    case WeightType::kQ5_0:
      return {{0, 0.01f}};
    case WeightType::kQ5_1:
      return {{0, 0.01f}, {2, 0.1f}};
    case WeightType::kQ8_0:
      return {{0, 0.001f}};
    case WeightType::kQ4K:
      return {{0, 0.0005f}, {2, 0.003f}};
    case WeightType::kQ5K:
      return {{0, 0.0003f}, {2, 0.003f}};
    case WeightType::kQ6K:
      return {{208, 0.00005f}};
    case WeightType::kQ2K:
      return {{80, 0.005f}, {82, 0.01f}};
    case WeightType::kQ3K:
      return {{108, 0.001f}};
    case WeightType::kIQ4NL:
      return {{0, 0.001f}};
    case WeightType::kIQ4XS:
      return {{0, 0.00005f}};
    case WeightType::kIQ2XXS:
    case WeightType::kIQ2XS:
    case WeightType::kIQ2S:
      return {{0, 0.002f}};
    case WeightType::kIQ3XXS:
      return {{0, 0.0005f}};
    case WeightType::kIQ3S:
      return {{0, 0.0006f}};
    case WeightType::kMXFP4:
      return {};
    default:
      CHECK(false, weight_type_info(type).name);
  }
}

using Bytes = const unsigned char*;

float f16_at(Bytes bytes) {
  f16 value;
  std::memcpy(&value.bits, bytes, sizeof value.bits);
  return f16_to_f32(value);
}

// Weight `i` of a block of 32: four bits of byte i % 16, and the fifth where there is one.
float small_weight(WeightType type, Bytes block, int i) {
  const float scale = f16_at(block), min = f16_at(block + 2);
  const bool five = type == WeightType::kQ5_0 || type == WeightType::kQ5_1;
  const bool has_min = type == WeightType::kQ4_1 || type == WeightType::kQ5_1;
  const Bytes fifth = block + (has_min ? 4 : 2), nibbles = fifth + (five ? 4 : 0);
  int q = i < 16 ? nibbles[i] & 15 : nibbles[i - 16] >> 4;
  if (five) q |= (fifth[i / 8] >> (i % 8) & 1) << 4;
  if (!has_min) return scale * static_cast<float>(q - (five ? 16 : 8));
  return scale * static_cast<float>(q) + min;
}

// Weight `i` of a block of Q4_K or Q5_K.
float k_weight(WeightType type, Bytes block, int i) {
  const int group = i / 32;
  const Bytes six = block + 4;
  int scale = six[group % 4] & 63, min = six[group % 4 + 4] & 63;
  if (group >= 4) {
    scale = (six[group + 4] & 15) | (six[group - 4] >> 6 << 4);
    min = (six[group + 4] >> 4) | (six[group] >> 6 << 4);
  }
  const bool five = type == WeightType::kQ5K;
  const Bytes fifth = block + 16, nibbles = fifth + (five ? 32 : 0);
  const int byte = nibbles[group / 2 * 32 + i % 32];
  int q = group % 2 == 0 ? byte & 15 : byte >> 4;
  if (five) q |= (fifth[i % 32] >> group & 1) << 4;
  const float s = f16_at(block) * static_cast<float>(scale), m = f16_at(block + 2) * static_cast<float>(min);
  return s * static_cast<float>(q) - m;
}

float q6_weight(Bytes block, int i) {
  const int half = i / 128, run = i % 128 / 32, place = i % 32;
  const int low = block[64 * half + 32 * (run % 2) + place] >> (run < 2 ? 0 : 4) & 15;
  const int high = block[128 + 32 * half + place] >> (2 * run) & 3;
  const auto scale = static_cast<signed char>(block[192 + i / 16]);
  return f16_at(block + 208) * static_cast<float>(scale) * static_cast<float>((low | high << 4) - 32);
}

// Weight `i` of a block of Q2_K or Q3_K has these lower two bits.
int two_bits(Bytes bytes, int i) { return bytes[i / 128 * 32 + i % 32] >> (i % 128 / 32 * 2) & 3; }

float q2_weight(Bytes block, int i) {
  const int both = block[i / 16];
  const float s = f16_at(block + 80) * static_cast<float>(both & 15),
              m = f16_at(block + 82) * static_cast<float>(both >> 4);
  return s * static_cast<float>(two_bits(block + 16, i)) - m;
}

float q3_weight(Bytes block, int i) {
  const int group = i / 16;
  const Bytes six = block + 96;
  const int low = group < 8 ? six[group] & 15 : six[group - 8] >> 4, high = six[8 + group % 4] >> (group / 4 * 2) & 3;
  const int q = two_bits(block + 32, i) - ((block[i % 32] >> (i / 32) & 1) != 0 ? 0 : 4);
  return f16_at(block + 108) * static_cast<float>((low | high << 4) - 32) * static_cast<float>(q);
}

// A level of IQ4_NL or IQ4_XS, of 32 in 16 bytes.
float table_level(Bytes nibbles, int i) {
  constexpr int kTable[] = {-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113};
  return static_cast<float>(kTable[i < 16 ? nibbles[i] & 15 : nibbles[i - 16] >> 4]);
}

float mxfp4_weight(Bytes block, int i) {
  constexpr float kTable[] = {0, 0.5f, 1, 1.5f, 2, 3, 4, 6};
  const int q = i < 16 ? block[1 + i] & 15 : block[1 + i - 16] >> 4;
  const float weight = std::ldexp(kTable[q & 7], block[0] - 127);
  return q > 8 ? -weight : weight;
}

float iq4_xs_weight(Bytes block, int i) {
  const int group = i / 32, high = block[2] | block[3] << 8;
  const int scale = ((block[4 + group / 2] >> group % 2 * 4 & 15) | (high >> 2 * group & 3) << 4) - 32;
  return f16_at(block) * static_cast<float>(scale) * table_level(block + 8 + 16 * group, i % 32);
}

bool odd(int bits) {
  bool odd = false;
  for (; bits != 0; bits &= bits - 1) odd = !odd;
  return odd;
}
// Whether weight `place` of a run is negative, by the run's seven signs or (`all`) its eight.
bool negative(int signs, int place, bool all) {
  if (place == 7 && !all) return odd(signs);
  return (signs >> place & 1) != 0;
}

uint32_t word_at(Bytes bytes) {
  uint32_t word;
  std::memcpy(&word, bytes, sizeof word);
  return word;
}

float grid_weight(Bytes block, int scale, float factor, int level, bool minus) {
  const float weight = f16_at(block) * (0.5f + static_cast<float>(scale)) * factor * static_cast<float>(level);
  return minus ? -weight : weight;
}

// The formulas of IQ2_XXS, IQ2_XS and IQ2_S. Only the grids are the product's own, which gguf's values check
// (tests/data/model).
float iq2_weight(WeightType type, Bytes block, int i) {
  constexpr int kValues[] = {8, 25, 43};
  const int group = i / 32, run = i / 8, place = i % 8;
  if (type == WeightType::kIQ2XXS) {
    const Bytes of_group = block + 2 + 8 * group;
    const uint32_t word = word_at(of_group + 4);
    const int level = kValues[kGrid2Xxs.words[of_group[run % 4]] >> 4 * place & 15];
    return grid_weight(block, static_cast<int>(word >> 28), 0.25f, level,
                       negative(static_cast<int>(word >> 7 * (run % 4) & 127), place, false));
  }
  const bool small = type == WeightType::kIQ2XS;
  const int scale = block[(small ? 66 : 74) + group] >> (i / 16 % 2 * 4) & 15;
  if (small) {
    const int both = block[2 + 2 * run] + 256 * block[3 + 2 * run];
    return grid_weight(block, scale, 0.25f, kValues[kGrid2Xs.words[both % 512] >> 4 * place & 15],
                       negative(both / 512, place, false));
  }
  const int index = block[2 + run] + 256 * (block[66 + group] >> (2 * (run % 4)) & 3);
  return grid_weight(block, scale, 0.25f, kValues[kGrid2S.words[index] >> 4 * place & 15],
                     negative(block[34 + run], place, true));
}

float iq3_weight(WeightType type, Bytes block, int i) {
  constexpr int kValues[] = {4, 12, 20, 28, 36, 44, 52, 62};
  const int group = i / 32, run = i / 8, four = i / 4, place = i % 4;
  if (type == WeightType::kIQ3XXS) {
    const uint32_t word = word_at(block + 66 + 4 * group);
    return grid_weight(block, static_cast<int>(word >> 28), 0.5f,
                       kValues[kGrid3Xxs.words[block[2 + four]] >> 4 * place & 15],
                       negative(static_cast<int>(word >> 7 * (run % 4) & 127), i % 8, false));
  }
  const int scale = block[106 + group / 2] >> (group % 2 * 4) & 15;
  const int index = block[2 + four] + 256 * (block[66 + group] >> (four % 8) & 1);
  return grid_weight(block, scale, 2.0f, 2 * (kGrid3S.words[index] >> 4 * place & 15) + 1,
                     negative(block[74 + run], i % 8, true));
}

}  // namespace

std::vector<size_t> scale_places(WeightType type) {
  std::vector<size_t> places;
  for (const Scale& scale : scales_of(type)) places.push_back(scale.at);
  return places;
}

std::vector<std::byte> random_blocks(WeightType type, uint64_t seed, int64_t rows, int64_t cols) {
  std::mt19937_64 random(seed);
  std::vector<std::byte> blocks(weight_bytes(type, rows, cols));
  for (std::byte& byte : blocks) byte = static_cast<std::byte>(random() >> 56);
  std::uniform_real_distribution<float> uniform(-1.0f, 1.0f);
  const auto block_bytes = static_cast<size_t>(weight_type_info(type).block_bytes);
  for (size_t begin = 0; begin < blocks.size(); begin += block_bytes) {
    for (const Scale& scale : scales_of(type)) {
      const f16 value = f32_to_f16(uniform(random) * scale.largest);
      std::memcpy(&blocks[begin + scale.at], &value.bits, sizeof value.bits);
    }
    if (type == WeightType::kMXFP4) blocks[begin] = static_cast<std::byte>(117 + random() % 4);
  }
  return blocks;
}

std::vector<float> weights_of(WeightType type, const std::vector<std::byte>& blocks) {
  const WeightTypeInfo& info = weight_type_info(type);
  const size_t count = blocks.size() / static_cast<size_t>(info.block_bytes);
  std::vector<float> weights;
  weights.reserve(count * static_cast<size_t>(info.block_elements));
  for (size_t b = 0; b < count; ++b) {
    const auto block = reinterpret_cast<Bytes>(blocks.data() + b * static_cast<size_t>(info.block_bytes));
    for (int i = 0; i < info.block_elements; ++i) {
      switch (type) {
        case WeightType::kQ8_0:
          weights.push_back(static_cast<float>(static_cast<signed char>(block[2 + i])) * f16_at(block));
          break;
        case WeightType::kQ4K:
        case WeightType::kQ5K:
          weights.push_back(k_weight(type, block, i));
          break;
        case WeightType::kQ6K:
          weights.push_back(q6_weight(block, i));
          break;
        case WeightType::kQ2K:
          weights.push_back(q2_weight(block, i));
          break;
        case WeightType::kQ3K:
          weights.push_back(q3_weight(block, i));
          break;
        case WeightType::kIQ4NL:
          weights.push_back(f16_at(block) * table_level(block + 2, i));
          break;
        case WeightType::kMXFP4:
          weights.push_back(mxfp4_weight(block, i));
          break;
        case WeightType::kIQ4XS:
          weights.push_back(iq4_xs_weight(block, i));
          break;
        case WeightType::kIQ2XXS:
        case WeightType::kIQ2XS:
        case WeightType::kIQ2S:
          weights.push_back(iq2_weight(type, block, i));
          break;
        case WeightType::kIQ3XXS:
        case WeightType::kIQ3S:
          weights.push_back(iq3_weight(type, block, i));
          break;
        default:
          weights.push_back(small_weight(type, block, i));
      }
    }
  }
  return weights;
}

}  // namespace headrace::testing_support
