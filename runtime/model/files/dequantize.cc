#include "runtime/model/files/dequantize.h"

#include <algorithm>
#include <array>
#include <cstring>

#include "runtime/model/convert.h"

namespace headrace {
namespace {

constexpr uint32_t kF32 = 0, kF16 = 1, kQ4_0 = 2, kQ4_1 = 3, kQ5_0 = 6, kQ5_1 = 7, kQ8_0 = 8, kQ4_K = 12, kQ5_K = 13,
                   kQ6_K = 14, kBF16 = 30;

constexpr std::array<GgmlType, 34> kTypes = {{
    {kF32, "F32", 1, 4},       {kF16, "F16", 1, 2},      {kQ4_0, "Q4_0", 32, 18},   {kQ4_1, "Q4_1", 32, 20},
    {kQ5_0, "Q5_0", 32, 22},   {kQ5_1, "Q5_1", 32, 24},  {kQ8_0, "Q8_0", 32, 34},   {9, "Q8_1", 32, 40},
    {10, "Q2_K", 256, 84},     {11, "Q3_K", 256, 110},   {kQ4_K, "Q4_K", 256, 144}, {kQ5_K, "Q5_K", 256, 176},
    {kQ6_K, "Q6_K", 256, 210}, {15, "Q8_K", 256, 292},   {16, "IQ2_XXS", 256, 66},  {17, "IQ2_XS", 256, 74},
    {18, "IQ3_XXS", 256, 98},  {19, "IQ1_S", 256, 50},   {20, "IQ4_NL", 32, 18},    {21, "IQ3_S", 256, 110},
    {22, "IQ2_S", 256, 82},    {23, "IQ4_XS", 256, 136}, {24, "I8", 1, 1},          {25, "I16", 1, 2},
    {26, "I32", 1, 4},         {27, "I64", 1, 8},        {28, "F64", 1, 8},         {29, "IQ1_M", 256, 56},
    {kBF16, "BF16", 1, 2},     {34, "TQ1_0", 256, 54},   {35, "TQ2_0", 256, 66},    {39, "MXFP4", 32, 17},
    {40, "NVFP4", 64, 36},     {41, "Q1_0", 128, 18},
}};

float load_f16(const char* bytes) {
  f16 value;
  std::memcpy(&value.bits, bytes, sizeof value.bits);
  return f16_to_f32(value);
}
inline int low_nibble(char byte) { return static_cast<unsigned char>(byte) & 15; }
inline int high_nibble(char byte) { return static_cast<unsigned char>(byte) >> 4; }

// Each unpacks one block at `in` into block_elements floats at `out`. In the 32-wide types byte i holds weight i in its
// low and weight i + 16 in its high four bits.

void unpack_q4_0(const char* in, float* out) {
  const float scale = load_f16(in);
  for (int i = 0; i < 16; ++i) {
    out[i] = scale * static_cast<float>(low_nibble(in[2 + i]) - 8);
    out[i + 16] = scale * static_cast<float>(high_nibble(in[2 + i]) - 8);
  }
}

void unpack_q4_1(const char* in, float* out) {
  const float scale = load_f16(in), min = load_f16(in + 2);
  for (int i = 0; i < 16; ++i) {
    out[i] = scale * static_cast<float>(low_nibble(in[4 + i])) + min;
    out[i + 16] = scale * static_cast<float>(high_nibble(in[4 + i])) + min;
  }
}

// Bit i of `high` is the fifth bit of weight i.
void unpack_q5_0(const char* in, float* out) {
  const float scale = load_f16(in);
  uint32_t high;
  std::memcpy(&high, in + 2, sizeof high);
  for (int i = 0; i < 16; ++i) {
    const int low_high = static_cast<int>(high >> i & 1) << 4, high_high = static_cast<int>(high >> (i + 16) & 1) << 4;
    out[i] = scale * static_cast<float>((low_nibble(in[6 + i]) | low_high) - 16);
    out[i + 16] = scale * static_cast<float>((high_nibble(in[6 + i]) | high_high) - 16);
  }
}

void unpack_q5_1(const char* in, float* out) {
  const float scale = load_f16(in), min = load_f16(in + 2);
  uint32_t high;
  std::memcpy(&high, in + 4, sizeof high);
  for (int i = 0; i < 16; ++i) {
    const int low_high = static_cast<int>(high >> i & 1) << 4, high_high = static_cast<int>(high >> (i + 16) & 1) << 4;
    out[i] = scale * static_cast<float>(low_nibble(in[8 + i]) | low_high) + min;
    out[i + 16] = scale * static_cast<float>(high_nibble(in[8 + i]) | high_high) + min;
  }
}

void unpack_q8_0(const char* in, float* out) {
  const float scale = load_f16(in);
  for (int i = 0; i < 32; ++i) out[i] = static_cast<float>(static_cast<signed char>(in[2 + i])) * scale;
}

// Q4_K and Q5_K pack eight 6-bit scales and eight 6-bit minima into 12 bytes: the first four of each in the low six
// bits of bytes 0 to 3 and 4 to 7, the rest as a nibble each of bytes 8 to 11 with the two bits left over above.
struct ScaleMin {
  float scale, min;
};
ScaleMin scale_min(const char* packed, int group, float scale, float min) {
  const auto byte = [&](int i) { return static_cast<unsigned>(static_cast<unsigned char>(packed[i])); };
  unsigned s, m;
  if (group < 4) {
    s = byte(group) & 63, m = byte(group + 4) & 63;
  } else {
    s = (byte(group + 4) & 15) | (byte(group - 4) >> 6 << 4), m = (byte(group + 4) >> 4) | (byte(group) >> 6 << 4);
  }
  return {scale * static_cast<float>(s), min * static_cast<float>(m)};
}

// Eight groups of 32; byte i of each run of 32 holds weight i of one group in its low bits, of the next in its high
// bits.
void unpack_q4_k(const char* in, float* out) {
  const float scale = load_f16(in), min = load_f16(in + 2);
  const char* const nibbles = in + 16;
  for (int pair = 0; pair < 4; ++pair) {
    const ScaleMin a = scale_min(in + 4, 2 * pair, scale, min), b = scale_min(in + 4, 2 * pair + 1, scale, min);
    const char* const run = nibbles + 32 * pair;
    float* const to = out + 64 * pair;
    for (int i = 0; i < 32; ++i) {
      to[i] = a.scale * static_cast<float>(low_nibble(run[i])) - a.min;
      to[i + 32] = b.scale * static_cast<float>(high_nibble(run[i])) - b.min;
    }
  }
}

// As Q4_K; bit g of fifth[i] is the fifth bit of weight i of group g.
void unpack_q5_k(const char* in, float* out) {
  const float scale = load_f16(in), min = load_f16(in + 2);
  const char *const fifth = in + 16, *const nibbles = in + 48;
  for (int pair = 0; pair < 4; ++pair) {
    const ScaleMin a = scale_min(in + 4, 2 * pair, scale, min), b = scale_min(in + 4, 2 * pair + 1, scale, min);
    const char* const run = nibbles + 32 * pair;
    float* const to = out + 64 * pair;
    for (int i = 0; i < 32; ++i) {
      const int bits = static_cast<unsigned char>(fifth[i]) >> (2 * pair);
      to[i] = a.scale * static_cast<float>(low_nibble(run[i]) | (bits & 1) << 4) - a.min;
      to[i + 32] = b.scale * static_cast<float>(high_nibble(run[i]) | (bits >> 1 & 1) << 4) - b.min;
    }
  }
}

// Two halves of 128: four runs of 32, their low four bits in 64 bytes (runs 0 and 1 low, 2 and 3 high), their high two
// in 32 bytes; a signed scale for each 16 weights.
void unpack_q6_k(const char* in, float* out) {
  const float scale = load_f16(in + 208);
  for (int half = 0; half < 2; ++half) {
    const char *const low = in + 64 * half, *const high = in + 128 + 32 * half, *const scales = in + 192 + 8 * half;
    for (int run = 0; run < 4; ++run) {
      const char* const from = low + 32 * (run & 1);
      float* const to = out + 128 * half + 32 * run;
      const float scale_of[2] = {scale * static_cast<float>(static_cast<signed char>(scales[2 * run])),
                                 scale * static_cast<float>(static_cast<signed char>(scales[2 * run + 1]))};
      for (int i = 0; i < 32; ++i) {
        const int nibble = static_cast<unsigned char>(from[i]) >> (run < 2 ? 0 : 4) & 15;
        const int top = static_cast<unsigned char>(high[i]) >> (2 * run) & 3;
        to[i] = scale_of[i / 16] * static_cast<float>((nibble | top << 4) - 32);
      }
    }
  }
}

// Unpacks runs of blocks into a small buffer and rounds from there, or straight into an f32 destination.
template <int kElements, int kBytes, void (*kUnpack)(const char*, float*)>
void unpack_blocks(const char* source, DType to, void* out, int64_t count) {
  constexpr int64_t kRun = 1024 / kElements;
  const int64_t blocks = count / kElements;
  alignas(64) float buffer[kRun * kElements];
  for (int64_t done = 0; done < blocks; done += kRun) {
    const int64_t run = std::min(kRun, blocks - done);
    float* const target = to == DType::kF32 ? static_cast<float*>(out) + done * kElements : buffer;
    for (int64_t i = 0; i < run; ++i) kUnpack(source + (done + i) * kBytes, target + i * kElements);
    if (to != DType::kF32)
      convert_elements(DType::kF32, reinterpret_cast<const char*>(buffer), to,
                       static_cast<char*>(out) + static_cast<size_t>(done * kElements) * dtype_bytes(to),
                       run * kElements);
  }
}

}  // namespace

const GgmlType* find_ggml_type(uint32_t id) {
  for (const GgmlType& type : kTypes)
    if (type.id == id) return &type;
  return nullptr;
}

bool can_dequantize(const GgmlType& type) {
  constexpr std::array<uint32_t, 11> kReadable = {kF32,  kF16,  kQ4_0, kQ4_1, kQ5_0, kQ5_1,
                                                  kQ8_0, kQ4_K, kQ5_K, kQ6_K, kBF16};
  return std::find(kReadable.begin(), kReadable.end(), type.id) != kReadable.end();
}

std::optional<DType> plain_type(const GgmlType& type) {
  if (type.id == kF32) return DType::kF32;
  if (type.id == kF16) return DType::kF16;
  if (type.id == kBF16) return DType::kBF16;
  return std::nullopt;
}

void dequantize(const GgmlType& type, const char* source, DType to, void* out, int64_t count) {
  CHECK(count % type.block_elements == 0, "count=", count, " type=", type.name);
  switch (type.id) {
    case kF32:
      return convert_elements(DType::kF32, source, to, out, count);
    case kF16:
      return convert_elements(DType::kF16, source, to, out, count);
    case kBF16:
      return convert_elements(DType::kBF16, source, to, out, count);
    case kQ4_0:
      return unpack_blocks<32, 18, unpack_q4_0>(source, to, out, count);
    case kQ4_1:
      return unpack_blocks<32, 20, unpack_q4_1>(source, to, out, count);
    case kQ5_0:
      return unpack_blocks<32, 22, unpack_q5_0>(source, to, out, count);
    case kQ5_1:
      return unpack_blocks<32, 24, unpack_q5_1>(source, to, out, count);
    case kQ8_0:
      return unpack_blocks<32, 34, unpack_q8_0>(source, to, out, count);
    case kQ4_K:
      return unpack_blocks<256, 144, unpack_q4_k>(source, to, out, count);
    case kQ5_K:
      return unpack_blocks<256, 176, unpack_q5_k>(source, to, out, count);
    case kQ6_K:
      return unpack_blocks<256, 210, unpack_q6_k>(source, to, out, count);
    default:
      CHECK(false, "type ", type.name, " cannot be read");
  }
}

}  // namespace headrace
