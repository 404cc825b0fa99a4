// Quantised blocks as vectors of weights, for *_isa.cc sources (kernels/cpu/isa.h): products read blocks with it, and
// unpacking does. Every type is made of groups of 32 weights in succession. `Type::Block` holds what its groups share,
// `Type::Group<Round>::at(i)` is the group's weights i to i + kLanes - 1, rounded; i is a multiple of kLanes. Pure.
//
// A value is scale * (q - zero) + minimum in f32, then rounded once. The reference rounds the product and the sum one
// after the other. Where a type has a minimum, the product has at most 22 bits, so it is exact and fma() gives the
// same. A type without a minimum adds -0, which changes nothing.
#pragma once

#include "kernels/weights/grids.h"
#include "kernels/weights/levels.h"
#include "kernels/weights/type.h"

namespace headrace::kernels::HEADRACE_ISA_NAMESPACE {

constexpr int kGroup = 32;
// Loops over a block's groups are unrolled where a group takes few instructions; else they take too long to compile.
constexpr int kUnrolledGroups = kLanes == 16 ? 8 : 1;

// Blocks of 32 are one group.
struct SmallBlock {
  const uint8_t* bytes;
  HEADRACE_INLINE void read(const uint8_t* block) { bytes = block; }
};
// Byte i holds weight i in its low and weight i + 16 in its high four bits. A block: scale, minimum if kMin, fifth bits
// if kBits is 5 (bit i is that of weight i), bytes.
template <int kBits, bool kMin>
struct Nibbles {
  static constexpr int kZero = kMin ? 0 : 1 << (kBits - 1), kFifth = kMin ? 4 : 2, kLow = kFifth + (kBits == 5 ? 4 : 0);
  static constexpr int kElements = kGroup, kBytes = kLow + 16;
  using Block = SmallBlock;
  template <typename Round>
  struct Group {
    Levels<Round, kBits, kZero> levels;
    const uint8_t* low;
    uint32_t fifth;
    HEADRACE_INLINE void read(const Block& block, int) {
      vf scale = no_min(), min = no_min();
      if constexpr (kMin) {
        splat_f16_pair(block.bytes, &scale, &min);
      } else {
        scale = splat_f16(block.bytes);
      }
      levels.set(scale, min);
      low = block.bytes + kLow;
      if constexpr (kBits == 5) memcpy(&fifth, block.bytes + kFifth, sizeof fifth);
    }
    HEADRACE_INLINE vf at(int i) const {
      const vu q = load_bytes(low + i % 16) >> (i < 16 ? 0 : 4);
      if constexpr (kBits == 4) return levels.at(q);
      return levels.at((q & 15) | sixteens(fifth, i));
    }
  };
};
using Q4_0 = Nibbles<4, false>;
using Q4_1 = Nibbles<4, true>;
using Q5_0 = Nibbles<5, false>;
using Q5_1 = Nibbles<5, true>;

struct Q8_0 {
  static constexpr int kElements = kGroup, kBytes = 34;
  using Block = SmallBlock;
  template <typename Round>
  struct Group {
    vf scale;
    const uint8_t* q;
    HEADRACE_INLINE void read(const Block& block, int) {
      scale = splat_f16(block.bytes);
      q = block.bytes + 2;
    }
    HEADRACE_INLINE vf at(int i) const { return Round::round(to_float(load_signed_bytes(q + i)) * scale); }
  };
};

// Eight groups; byte i of each run of 32 holds weight i of one group in its low bits, of the next in its high bits. Bit
// g of the fifth bits' byte i is the fifth bit of weight i of group g.
template <int kBits>
struct NibblesK {
  static constexpr int kElements = 256, kFifth = 16, kLow = kFifth + (kBits == 5 ? 32 : 0), kBytes = kLow + 128;
  struct Block {
    const uint8_t* bytes;
    float scales[16];  // the groups' scales, then their minima
    HEADRACE_INLINE void read(const uint8_t* block) {
      bytes = block;
      uint8_t six[16];
      unpack_six_bits(block + 4, six);
      const vf scale = splat_f16(block), min = -splat_f16(block + 2);
#pragma GCC unroll 4
      for (int i = 0; i < 16; i += kLanes) {
        store(scales + i, select(lane_numbers() + i < 8, scale, min) * to_float(vi(load_bytes(six + i))));
      }
    }
  };
  template <typename Round>
  struct Group {
    Levels<Round, kBits, 0> levels;
    const uint8_t* low;
    int shift;
    uint8_t five[kGroup];
    HEADRACE_INLINE void read(const Block& block, int number) {
      levels.set(splat_signed(block.scales[number]), splat_signed(block.scales[8 + number]));
      low = block.bytes + kLow + number / 2 * kGroup;
      shift = number % 2 * 4;
      if constexpr (kBits == 5) {
        BytePairs four, fifth;
        load_pairs(low, &four);
        load_pairs(block.bytes + kFifth, &fifth);
        four = ((four >> shift) & 0x0f0f) | (((fifth >> number) & 0x0101) << 4);
        memcpy(five, &four, sizeof four);
      }
    }
    HEADRACE_INLINE vf at(int i) const {
      if constexpr (kBits == 5) return levels.at(load_bytes(five + i));
      return levels.at(load_bytes(low + i) >> shift);
    }
  };
};
using Q4_K = NibblesK<4>;
using Q5_K = NibblesK<5>;

// A group that has a scale for each 16 weights.
template <typename Round>
struct TwoScales {
  uint8_t q[kGroup];  // signed
  const float* scales;
  HEADRACE_INLINE void set(const Bytes& levels, const float* first) {
    memcpy(q, &levels, sizeof levels);
    scales = first;
  }
  HEADRACE_INLINE vf at(int i) const {
    return Round::round(splat_signed(scales[i / 16]) * to_float(load_signed_bytes(q + i)));
  }
};

// Two halves of four groups: their low four bits in 64 bytes (groups 0 and 1 low, 2 and 3 high), their high two in 32
// bytes; a signed scale for each 16 weights.
struct Q6_K {
  static constexpr int kElements = 256, kBytes = 210;
  struct Block {
    const uint8_t* bytes;
    float scales[16];
    HEADRACE_INLINE void read(const uint8_t* block) {
      bytes = block;
      const vf scale = splat_f16(block + 208);
#pragma GCC unroll 4
      for (int i = 0; i < 16; i += kLanes) store(scales + i, scale * to_float(load_signed_bytes(block + 192 + i)));
    }
  };
  template <typename Round>
  struct Group : TwoScales<Round> {
    HEADRACE_INLINE void read(const Block& block, int number) {
      const int half = number / 4, run = number % 4;
      BytePairs low, high;
      load_pairs(block.bytes + 64 * half + 32 * (run % 2), &low);
      load_pairs(block.bytes + 128 + 32 * half, &high);
      low = ((low >> (run / 2 * 4)) & 0x0f0f) | (((high >> (2 * run)) & 0x0303) << 4);
      this->set((Bytes)low - 32, block.scales + 2 * number);
    }
  };
};

// Two halves of four groups: two bits of each in 32 bytes, in the groups' order; bit g of the third bits' byte i is the
// third bit of weight i of group g. A signed scale of 6 bits for each 16 weights.
struct Q3_K {
  static constexpr int kElements = 256, kBytes = 110;
  struct Block {
    const uint8_t* bytes;
    float scales[16];
    HEADRACE_INLINE void read(const uint8_t* block) {
      bytes = block;
      uint8_t six[16];
      unpack_sixteen_scales(block + 96, six);
      const vf scale = splat_f16(block + 108);
#pragma GCC unroll 4
      for (int i = 0; i < 16; i += kLanes) store(scales + i, scale * to_float(vi(load_bytes(six + i)) - 32));
    }
  };
  template <typename Round>
  struct Group : TwoScales<Round> {
    HEADRACE_INLINE void read(const Block& block, int number) {
      BytePairs low, third;
      load_pairs(block.bytes + 32 + number / 4 * 32, &low);
      load_pairs(block.bytes, &third);
      low = ((low >> (number % 4 * 2)) & 0x0303) | (((third >> number) & 0x0101) << 2);
      this->set((Bytes)low - 4, block.scales + 2 * number);
    }
  };
};

// As Q3_K without third bits; a scale and a minimum of 4 bits for each 16 weights, in the low and high bits of a byte.
struct Q2_K {
  static constexpr int kElements = 256, kBytes = 84;
  struct Block {
    const uint8_t* bytes;
    float scales[16], mins[16];
    HEADRACE_INLINE void read(const uint8_t* block) {
      bytes = block;
      const vf scale = splat_f16(block + 80), min = -splat_f16(block + 82);
#pragma GCC unroll 4
      for (int i = 0; i < 16; i += kLanes) {
        const vu both = load_bytes(block + i);
        store(scales + i, scale * to_float(vi(both & 15)));
        store(mins + i, min * to_float(vi(both >> 4)));
      }
    }
  };
  template <typename Round>
  struct Group {
    uint8_t q[kGroup];
    const float *scales, *mins;
    HEADRACE_INLINE void read(const Block& block, int number) {
      BytePairs low;
      load_pairs(block.bytes + 16 + number / 4 * 32, &low);
      low = (low >> (number % 4 * 2)) & 0x0303;
      memcpy(q, &low, sizeof low);
      scales = block.scales + 2 * number;
      mins = block.mins + 2 * number;
    }
    HEADRACE_INLINE vf at(int i) const {
      return Round::round(
          fma(splat_signed(scales[i / 16]), to_float(vi(load_bytes(q + i))), splat_signed(mins[i / 16])));
    }
  };
};

// Byte i holds the level of weight i in its low and of weight i + 16 in its high four bits.
template <typename Round, const Table& kOf = kTable>
struct TableGroup {
  TableLevels<Round, kOf> levels;
  const uint8_t* low;
  HEADRACE_INLINE void set(vf scale, const uint8_t* bytes) {
    levels.set(scale);
    low = bytes;
  }
  HEADRACE_INLINE vf at(int i) const { return levels.at(load_bytes(low + i % 16) >> (i < 16 ? 0 : 4)); }
};
struct IQ4_NL {
  static constexpr int kElements = kGroup, kBytes = 18;
  using Block = SmallBlock;
  template <typename Round>
  struct Group : TableGroup<Round> {
    HEADRACE_INLINE void read(const Block& block, int) { this->set(splat_f16(block.bytes), block.bytes + 2); }
  };
};
// Its scale is a power of two, of which the two smallest are subnormal.
struct MXFP4 {
  static constexpr int kElements = kGroup, kBytes = 17;
  using Block = SmallBlock;
  template <typename Round>
  struct Group : TableGroup<Round, kFloatTable> {
    HEADRACE_INLINE void read(const Block& block, int) {
      const uint32_t e = block.bytes[0], bits = e < 2 ? 0x00200000u << e : (e - 1) << 23;
      this->set(float_of(vu{} + bits), block.bytes + 1);
    }
  };
};
// Eight groups; their scales have six bits: the upper two of group g at bit 2 g of 16 bits, the lower four in a nibble.
struct IQ4_XS {
  static constexpr int kElements = 256, kBytes = 136;
  struct Block {
    const uint8_t* bytes;
    float scales[8];
    HEADRACE_INLINE void read(const uint8_t* block) {
      bytes = block;
      const vf scale = splat_f16(block);
#pragma GCC unroll 8
      for (int g = 0; g < 8; ++g) {
        const int low = block[4 + g / 2] >> g % 2 * 4 & 15, high = block[2 + g / 4] >> g % 4 * 2 & 3;
        scales[g] = scale[0] * static_cast<float>((low | high << 4) - 32);
      }
    }
  };
  template <typename Round>
  struct Group : TableGroup<Round> {
    HEADRACE_INLINE void read(const Block& block, int number) {
      this->set(splat_signed(block.scales[number]), block.bytes + 8 + 16 * number);
    }
  };
};

// Eight groups of four runs of eight weights, each of which is a place or two in a grid, and signs.
template <WeightType kType, int kBytes_>
struct Grid {
  static constexpr int kElements = 256, kBytes = kBytes_;
  struct Block {
    const uint8_t* bytes;
    float scales[16];
    HEADRACE_INLINE void read(const uint8_t* block) {
      bytes = block;
      const float scale = splat_f16(block)[0] * grid_factor(kType);
#pragma GCC unroll 16
      for (int i = 0; i < 16; ++i) scales[i] = scale * static_cast<float>(grid_scale(kType, block, i));
    }
  };
  template <typename Round>
  struct Group : TwoScales<Round> {
    HEADRACE_INLINE void read(const Block& block, int number) {
      uint64_t levels[4], signs[4];
#pragma GCC unroll 4
      for (int i = 0; i < 4; ++i) {
        const GridRun run = grid_run(kType, block.bytes, 4 * number + i);
        levels[i] = levels_of(run);
        signs[i] = kSignBytes.entries[run.signs];
      }
      Bytes bytes, minus;
      memcpy(&bytes, levels, sizeof bytes);
      memcpy(&minus, signs, sizeof minus);
      this->set((bytes ^ minus) - minus, block.scales + 2 * number);
    }
  };
  HEADRACE_SIMD uint64_t levels_of(const GridRun& run) {
    if constexpr (kType == WeightType::kIQ2XXS) return kBytes2Xxs.entries[run.first];
    if constexpr (kType == WeightType::kIQ2XS) return kBytes2Xs.entries[run.first];
    if constexpr (kType == WeightType::kIQ2S) return kBytes2S.entries[run.first];
    if constexpr (kType == WeightType::kIQ3XXS)
      return kBytes3Xxs.entries[run.first] | uint64_t{kBytes3Xxs.entries[run.second]} << 32;
    if constexpr (kType == WeightType::kIQ3S)
      return kBytes3S.entries[run.first] | uint64_t{kBytes3S.entries[run.second]} << 32;
  }
};
using IQ2_XXS = Grid<WeightType::kIQ2XXS, 66>;
using IQ2_XS = Grid<WeightType::kIQ2XS, 74>;
using IQ2_S = Grid<WeightType::kIQ2S, 82>;
using IQ3_XXS = Grid<WeightType::kIQ3XXS, 98>;
using IQ3_S = Grid<WeightType::kIQ3S, 110>;

// Calls `body` with a value of the description of a quantised type.
template <typename Body>
void with_blocks_of(WeightType type, const Body& body) {
  switch (type) {
    case WeightType::kQ4_0:
      return body(Q4_0());
    case WeightType::kQ4_1:
      return body(Q4_1());
    case WeightType::kQ5_0:
      return body(Q5_0());
    case WeightType::kQ5_1:
      return body(Q5_1());
    case WeightType::kQ8_0:
      return body(Q8_0());
    case WeightType::kQ4K:
      return body(Q4_K());
    case WeightType::kQ5K:
      return body(Q5_K());
    case WeightType::kQ6K:
      return body(Q6_K());
    case WeightType::kQ2K:
      return body(Q2_K());
    case WeightType::kQ3K:
      return body(Q3_K());
    case WeightType::kIQ4NL:
      return body(IQ4_NL());
    case WeightType::kIQ4XS:
      return body(IQ4_XS());
    case WeightType::kIQ2XXS:
      return body(IQ2_XXS());
    case WeightType::kIQ2XS:
      return body(IQ2_XS());
    case WeightType::kIQ2S:
      return body(IQ2_S());
    case WeightType::kIQ3XXS:
      return body(IQ3_XXS());
    case WeightType::kIQ3S:
      return body(IQ3_S());
    case WeightType::kMXFP4:
      return body(MXFP4());
    default:
      __builtin_unreachable();
  }
}

}  // namespace headrace::kernels::HEADRACE_ISA_NAMESPACE
