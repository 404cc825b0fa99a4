// How CUDA keeps a quantised part: in tiles of 16 rows, each of which is three planes one after another. The main plane
// holds four bits of 64 columns in 16 bytes a lane (eight bits: of 32 columns; two bits in 8 bytes), the extra plane
// the third, or the fifth and sixth bits, the scale plane the scales of 256 columns. Lane 4 g + t of a warp holds rows
// g and g + 8 and columns 8 t to 8 t + 7 of each 32: its fragment of the tensor cores' operand A, for the order of
// columns that kernels/product/packed.cuh gives them. Rows and columns that the matrix does not have are zeros.
//
// A weight is fma(q, a, b) in f32, with q an unsigned number of `bits` bits, or the level that they stand for. For
// every type this is the type's formula to the bit, except that a zero may have the other sign: d * (q - zero) is exact
// in f32, and in d * q + m the product is exact. Pure; host and device.
#pragma once

#include <cstdint>

#include "kernels/weights/grids.h"
#include "kernels/weights/type.h"

namespace headrace::kernels::cuda {

constexpr int kTileRows = 16;
constexpr int kStepCols = 64;     // of the main and extra planes
constexpr int kRecordCols = 256;  // of the scale plane
constexpr int kStepsARecord = kRecordCols / kStepCols;

enum class ScaleKind : uint8_t {
  kNone,
  kHalf,            // d in f16, a row and 32 columns; the weight is d * (q - zero)
  kHalfMin,         // d and m in f16, a row and 32 columns: d * q + m
  kSixBits,         // s and m in 6 bits, a row and 32 columns, d and dmin in f16 a row and 256: (d s) q - dmin m
  kSigned,          // s in 8 bits, a row and 16 columns, d in f16 a row and 256: (d s) (q - zero)
  kSignedWide,      // the same with s a row and 32 columns
  kFourBits,        // s and m in 4 bits, a row and 16 columns, d and dmin in f16 a row and 256: (d s) q - dmin m
  kSignedWord,      // kSigned, and a word for each lane and 256 columns
  kSignedWideWord,  // kSignedWide, and such a word
  kExponent,        // e in 8 bits, a row and 32 columns: q is multiplied by 2^(e - 128)
};

HEADRACE_BOTH constexpr bool has_word(ScaleKind scales) {
  return scales == ScaleKind::kSignedWord || scales == ScaleKind::kSignedWideWord;
}
HEADRACE_BOTH constexpr bool is_signed_wide(ScaleKind scales) {
  return scales == ScaleKind::kSignedWide || scales == ScaleKind::kSignedWideWord;
}
// A byte a row and 32 columns.
HEADRACE_BOTH constexpr bool is_wide(ScaleKind scales) {
  return is_signed_wide(scales) || scales == ScaleKind::kExponent;
}
HEADRACE_BOTH constexpr bool is_signed_narrow(ScaleKind scales) {
  return scales == ScaleKind::kSigned || scales == ScaleKind::kSignedWord;
}

// Minima of 32 columns: products multiply them by sums of x.
HEADRACE_BOTH constexpr bool has_minima(ScaleKind scales) {
  return scales == ScaleKind::kHalfMin || scales == ScaleKind::kSixBits;
}
// Scales of 16 columns: another order of columns, but for grids.
HEADRACE_BOTH constexpr bool is_narrow(ScaleKind scales) {
  return is_signed_narrow(scales) || scales == ScaleKind::kFourBits;
}

struct PackedKind {
  int bits;  // 16: a plain part, which is not packed
  int zero;
  ScaleKind scales;
  bool levels = false;  // q is not the bits, but level_of() them
  bool grid = false;    // the planes have places in a grid and signs, see "Grids" below
  bool floats = false;  // q is float_level() of the bits
};

HEADRACE_BOTH constexpr PackedKind packed_kind(WeightType type) {
  switch (type) {
    case WeightType::kQ4_0:
      return {4, 8, ScaleKind::kHalf};
    case WeightType::kQ4_1:
      return {4, 0, ScaleKind::kHalfMin};
    case WeightType::kQ5_0:
      return {5, 16, ScaleKind::kHalf};
    case WeightType::kQ5_1:
      return {5, 0, ScaleKind::kHalfMin};
    case WeightType::kQ8_0:
      return {8, 128, ScaleKind::kHalf};
    case WeightType::kQ4K:
      return {4, 0, ScaleKind::kSixBits};
    case WeightType::kQ5K:
      return {5, 0, ScaleKind::kSixBits};
    case WeightType::kQ6K:
      return {6, 32, ScaleKind::kSigned};
    case WeightType::kQ2K:
      return {2, 0, ScaleKind::kFourBits};
    case WeightType::kQ3K:
      return {3, 4, ScaleKind::kSigned};
    case WeightType::kIQ4NL:
      return {4, 128, ScaleKind::kHalf, true};
    case WeightType::kIQ4XS:
      return {4, 128, ScaleKind::kSignedWide, true};
    case WeightType::kIQ2XXS:
      return {2, 0, ScaleKind::kSignedWide, false, true};
    case WeightType::kIQ2XS:
      return {2, 0, ScaleKind::kSigned, false, true};
    case WeightType::kIQ2S:
      return {2, 0, ScaleKind::kSignedWord, false, true};
    case WeightType::kIQ3XXS:
      return {3, 0, ScaleKind::kSignedWide, false, true};
    case WeightType::kIQ3S:
      return {3, 0, ScaleKind::kSignedWideWord, false, true};
    case WeightType::kMXFP4:
      return {4, 0, ScaleKind::kExponent, false, false, true};
    default:
      return {16, 0, ScaleKind::kNone};
  }
}

// Four of the levels that the bits of IQ4_NL and IQ4_XS stand for, 128 added, as the bytes of a word.
HEADRACE_BOTH constexpr uint32_t level_word(int number) {
  constexpr auto byte = [](int level) { return static_cast<uint32_t>(level + 128); };
  constexpr uint32_t kWords[] = {
      byte(kLevels[0]) | byte(kLevels[1]) << 8 | byte(kLevels[2]) << 16 | byte(kLevels[3]) << 24,
      byte(kLevels[4]) | byte(kLevels[5]) << 8 | byte(kLevels[6]) << 16 | byte(kLevels[7]) << 24,
      byte(kLevels[8]) | byte(kLevels[9]) << 8 | byte(kLevels[10]) << 16 | byte(kLevels[11]) << 24,
      byte(kLevels[12]) | byte(kLevels[13]) << 8 | byte(kLevels[14]) << 16 | byte(kLevels[15]) << 24};
  return number == 0 ? kWords[0] : number == 1 ? kWords[1] : number == 2 ? kWords[2] : kWords[3];
}
HEADRACE_BOTH constexpr unsigned level_of(unsigned bits) {
  return level_word(static_cast<int>(bits / 4)) >> bits % 4 * 8 & 255;
}

// kFloatLevels, computed; and its scale as the bits of an f32.
HEADRACE_BOTH constexpr int float_level(unsigned bits) {
  const int exponent = static_cast<int>(bits >> 1 & 3), mantissa = static_cast<int>(bits & 1);
  const int level = exponent == 0 ? mantissa : (2 | mantissa) << (exponent - 1);
  return (bits & 8) != 0 ? -level : level;
}
HEADRACE_BOTH constexpr uint32_t exponent_scale(uint32_t e) { return e < 2 ? 0x00200000u << e : (e - 1) << 23; }

// ---- Sizes and places in bytes -------------------------------------------------------------------------------------

HEADRACE_BOTH constexpr int main_step_bytes(int bits) { return bits == 8 ? 1024 : bits < 4 ? 256 : 512; }
HEADRACE_BOTH constexpr int extra_step_bytes(int bits) { return bits == 3 || bits == 5 ? 128 : bits == 6 ? 256 : 0; }
HEADRACE_BOTH constexpr int record_bytes(ScaleKind scales) {
  return scales == ScaleKind::kHalf                                        ? 256
         : scales == ScaleKind::kHalfMin                                   ? 512
         : scales == ScaleKind::kSixBits || scales == ScaleKind::kFourBits ? 320
         : scales == ScaleKind::kSigned                                    ? 288
         : scales == ScaleKind::kSignedWide                                ? 160
         : scales == ScaleKind::kSignedWord                                ? 288 + 128
         : scales == ScaleKind::kSignedWideWord                            ? 160 + 128
         : scales == ScaleKind::kExponent                                  ? 128
                                                                           : 0;
}

// Of one tile.
struct TilePlanes {
  int64_t extra, scales, bytes;  // where two of the planes begin (the main plane begins at 0), and the whole
};
HEADRACE_BOTH constexpr TilePlanes tile_planes(const PackedKind& kind, int64_t cols) {
  const int64_t steps = (cols + kStepCols - 1) / kStepCols, records = (cols + kRecordCols - 1) / kRecordCols;
  const int64_t extra = steps * main_step_bytes(kind.bits), scales = extra + steps * extra_step_bytes(kind.bits);
  return {extra, scales, scales + records * record_bytes(kind.scales)};
}

// ---- The place of a weight's bits ----------------------------------------------------------------------------------

// A column of a step is 32 half + 8 t + 4 u + 2 s + b, or 32 half + 16 u + 4 t + 2 s + b where scales are for 16
// columns. A row of a tile is 8 hi + g. Steps u and pairs s are the tensor cores': registers 2 s + hi of their step u
// hold the columns b = 0 and 1.
struct Place {
  int lane, half, u, s, b, hi;
};
HEADRACE_BOTH constexpr Place place_of(bool narrow, int row, int col) {
  return {.lane = row % 8 * 4 + (narrow ? col % 16 / 4 : col % 32 / 8),
          .half = col / 32,
          .u = narrow ? col / 16 % 2 : col / 4 % 2,
          .s = col / 2 % 2,
          .b = col % 2,
          .hi = row / 8};
}

// Of 3, 5 and 6 bits the main plane has two or four. They are the lower ones in the rows g and the upper ones in the
// rows g + 8; of 3 bits, in the pairs s = 0 and 1. The rest is in the extra plane.
HEADRACE_BOTH constexpr bool has_extra(int bits) { return extra_step_bytes(bits) > 0; }
HEADRACE_BOTH constexpr int bits_in_main(int bits) { return bits == 3 ? 2 : bits == 5 || bits == 6 ? 4 : bits; }
HEADRACE_BOTH constexpr bool extra_is_low(int bits, const Place& p) { return (bits == 3 ? p.s : p.hi) == 1; }
HEADRACE_BOTH constexpr unsigned main_bits(int bits, const Place& p, unsigned q) {
  const int in_main = bits_in_main(bits);
  return (has_extra(bits) && extra_is_low(bits, p) ? q >> (bits - in_main) : q) & ((1u << in_main) - 1);
}
HEADRACE_BOTH constexpr unsigned extra_bits(int bits, const Place& p, unsigned q) {
  const int in_main = bits_in_main(bits);
  return extra_is_low(bits, p) ? q & ((1u << (bits - in_main)) - 1) : q >> in_main;
}
HEADRACE_BOTH constexpr unsigned join_bits(int bits, const Place& p, unsigned main, unsigned extra) {
  const int in_main = bits_in_main(bits);
  return extra_is_low(bits, p) ? main << (bits - in_main) | extra : main | extra << in_main;
}

// A 32-bit word of a plane's step, and the first of the bits there; each further bit is the next one of the word,
// around its end.
struct BitPlace {
  int word, bit;
};
HEADRACE_BOTH constexpr BitPlace main_place(int bits, const Place& p) {
  if (bits == 8) return {(p.half * 32 + p.lane) * 4 + 2 * p.u + p.hi, 16 * p.b + 8 * p.s};
  if (bits < 4) return {p.lane * 2 + p.half, 16 * p.b + 8 * p.u + 4 * p.s + 2 * p.hi};
  return {p.lane * 4 + 2 * p.half + p.u, 16 * p.b + 8 * p.s + 4 * p.hi};
}
// By how much a word of the extra plane is rotated to the right for step u and pair s. Then the extra bits of a weight
// stand above its main bits, or below where they are the low ones.
HEADRACE_BOTH constexpr int extra_rotation(int bits, int half, int u, int s) {
  return bits == 3 ? 8 * half + 4 * u : bits == 5 ? 8 * half + 4 * u + 2 * s : 8 * u + 4 * s;
}
HEADRACE_BOTH constexpr int extra_first(int bits, int s, int hi) {
  return bits == 3 ? 2 + s + 2 * hi : hi == 0 ? 4 : 8 - bits;
}
HEADRACE_BOTH constexpr BitPlace extra_place(int bits, const Place& p) {
  const int word = bits == 6 ? p.lane * 2 + p.half : p.lane;
  return {word, (extra_first(bits, p.s, p.hi) + 16 * p.b + extra_rotation(bits, p.half, p.u, p.s)) % 32};
}

HEADRACE_BOTH constexpr uint32_t rotate_right(uint32_t word, int by) {
  return by == 0 ? word : word >> by | word << (32 - by);
}

// By how many bits a weight is shifted to the left in pair_of().
HEADRACE_BOTH constexpr int pair_shift(int bits, int s, int hi) {
  return bits == 2 ? 4 * s + 2 * hi : bits == 3 ? 3 * s + 2 * hi : hi == 0 ? 0 : 8 - bits;
}

// Two weights' q (b = 0 and 1) as the two halves of a word, each below 256: q << pair_shift(). `main` and `extra` are
// the words that hold them.
template <int kBits>
HEADRACE_BOTH constexpr uint32_t pair_of(uint32_t main, uint32_t extra, int half, int u, int s, int hi) {
  if constexpr (kBits < 4) {
    const uint32_t both = (u == 0 ? main : main >> 8) & (0x00030003u << (4 * s + 2 * hi));
    if constexpr (kBits == 2) return both;
    return both | (rotate_right(extra, extra_rotation(3, half, u, s)) & (0x00010001u << extra_first(3, s, hi)));
  }
  const uint32_t v = s == 0 ? main : main >> 8;
  if constexpr (kBits == 8) return v & 0x00ff00ffu;
  const uint32_t mask = hi == 0 ? 0x000f000fu : 0x00f000f0u;
  if constexpr (kBits == 4) return v & mask;
  constexpr uint32_t kLow = kBits == 5 ? 0x001f001fu : 0x003f003fu, kHigh = kBits == 5 ? 0x00f800f8u : 0x00fc00fcu;
  const uint32_t rotated = rotate_right(extra, extra_rotation(kBits, half, u, s));
  return ((v & mask) | (rotated & ~mask)) & (hi == 0 ? kLow : kHigh);
}

// ---- The place of a scale in its record ----------------------------------------------------------------------------

// Words of 32 bits; a group is 32 columns of the record. A word holds the f16 of rows g and g + 8 (kHalf, kHalfMin:
// the minima follow 64 words later), the bytes s, m of row g and s, m of row g + 8 (kSixBits), or the bytes s of the
// group's first and second 16 columns of row g and of row g + 8 (kSigned; in kFourBits they are s | m << 4). Of
// kSignedWide a word holds the bytes s of rows g and g + 8 of an even group and of the next; of kExponent the bytes e.
HEADRACE_BOTH constexpr int scale_word(int g, int group) { return (g * 4 + group / 2) * 2 + group % 2; }
HEADRACE_BOTH constexpr int wide_scale_word(int g, int group) { return g * 4 + group / 2; }
// Then, a row pair g: d, dmin of row g, of row g + 8 (kSixBits, kFourBits); d of both (kSigned, kSignedWide).
HEADRACE_BOTH constexpr int record_words(ScaleKind scales) { return is_wide(scales) ? 32 : 64; }
// Then, where there are some, the lanes' words.
HEADRACE_BOTH constexpr int lane_word(ScaleKind scales, int lane) { return record_words(scales) + 8 + lane; }

// ---- Grids ---------------------------------------------------------------------------------------------------------

// Lane 4 g + t has the runs of the columns 8 t to 8 t + 7 of each half of a step, of rows g and g + 8: 16 bits each in
// the main plane, row g's low. A place in IQ2_XXS's grid has 8 of them, in IQ2_XS's 9, and in IQ2_S's the lowest 8 of
// 10; the signs follow, of IQ2_XS seven. Of IQ3 these are the lowest 8 bits of two places, and the extra plane has the
// signs. The lane's word of the record has two more bits for each run, in the order of steps, halves and rows.
HEADRACE_BOTH constexpr unsigned grid_main(WeightType type, const GridRun& run) {
  if (is_grid_of_3(type)) return (run.first & 255) | (run.second & 255) << 8;
  return type == WeightType::kIQ2XS ? run.first | (run.signs & 127) << 9 : (run.first & 255) | run.signs << 8;
}
HEADRACE_BOTH constexpr unsigned grid_more(WeightType type, const GridRun& run) {  // of the lane's word
  return type == WeightType::kIQ3S ? run.first >> 8 | run.second >> 8 << 1 : run.first >> 8;
}
HEADRACE_BOTH constexpr int grid_more_at(int half, int hi) { return 4 * half + 2 * hi; }  // and 8 for each step
// The run again. main, extra: the lane's words of half and step; more: the lane's word from the step's bits on.
HEADRACE_BOTH constexpr GridRun grid_run_of(WeightType type, unsigned main, unsigned extra, unsigned more, int half,
                                            int hi) {
  const unsigned bits = main >> 16 * hi & 0xffff, high = more >> grid_more_at(half, hi) & 3;
  switch (type) {
    case WeightType::kIQ2XXS:
      return {bits & 255, 0, bits >> 8};
    case WeightType::kIQ2XS:
      return {bits & 511, 0, eight_signs(bits >> 9)};
    case WeightType::kIQ2S:
      return {(bits & 255) | high << 8, 0, bits >> 8};
    case WeightType::kIQ3XXS:
      return {bits & 255, bits >> 8, extra >> (16 * half + 8 * hi) & 255};
    default:
      return {(bits & 255) | (high & 1) << 8, bits >> 8 | (high & 2) << 7, extra >> (16 * half + 8 * hi) & 255};
  }
}

}  // namespace headrace::kernels::cuda
