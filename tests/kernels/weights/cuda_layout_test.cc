// The order in which CUDA keeps quantised weights, by the functions that its kernels use, on the host.
#include "kernels/weights/cuda_layout.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <random>
#include <vector>

#include "cache/base.h"
#include "kernels/weights/cuda_blocks.h"
#include "tests/support/weight_blocks.h"

namespace headrace {
namespace {

using kernels::cuda::BitPlace;
using kernels::cuda::kStepCols;
using kernels::cuda::kTileRows;
using kernels::cuda::PackedKind;
using kernels::cuda::Place;
using kernels::cuda::ScaleKind;
using testing_support::kQuantisedTypes;
using testing_support::random_blocks;
using testing_support::weights_of;

// One step of a tile, packed bit by bit.
struct Step {
  std::vector<uint32_t> main, extra;
};
// Weights of these bits have scales for 16 columns.
bool is_narrow(int bits) { return bits == 2 || bits == 3 || bits == 6; }
Step pack_step(int bits, const std::vector<unsigned>& q) {
  Step step;
  step.main.resize(static_cast<size_t>(kernels::cuda::main_step_bytes(bits) / 4));
  step.extra.resize(static_cast<size_t>(kernels::cuda::extra_step_bytes(bits) / 4 + 1));
  for (int row = 0; row < kTileRows; ++row) {
    for (int col = 0; col < kStepCols; ++col) {
      const unsigned value = q[static_cast<size_t>(row * kStepCols + col)];
      const Place place = kernels::cuda::place_of(is_narrow(bits), row, col);
      const BitPlace main = kernels::cuda::main_place(bits, place);
      step.main.at(static_cast<size_t>(main.word)) |= kernels::cuda::main_bits(bits, place, value) << main.bit;
      if (!kernels::cuda::has_extra(bits)) continue;
      const BitPlace extra = kernels::cuda::extra_place(bits, place);
      for (int i = 0; i < bits - kernels::cuda::bits_in_main(bits); ++i) {
        const unsigned bit = kernels::cuda::extra_bits(bits, place, value) >> i & 1;
        step.extra.at(static_cast<size_t>(extra.word)) |= bit << (extra.bit + i) % 32;
      }
    }
  }
  return step;
}

// A lane reads its words as the product's kernel does, and finds in each pair the two weights of its fragment.
template <int kBits>
void check_pairs() {
  std::mt19937 random(kBits);
  std::vector<unsigned> q(kTileRows * kStepCols);
  for (unsigned& value : q) value = static_cast<unsigned>(random() & ((1u << kBits) - 1));
  const Step step = pack_step(kBits, q);
  for (int i = 0; i < 32 * 2 * 2 * 2 * 2; ++i) {
    const int lane = i % 32, half = i / 32 % 2, u = i / 64 % 2, s = i / 128 % 2, hi = i / 256;
    const int main = kBits == 8  ? (half * 32 + lane) * 4 + 2 * u + hi
                     : kBits < 4 ? lane * 2 + half
                                 : lane * 4 + 2 * half + u;
    const int extra = kBits == 3 || kBits == 5 ? lane : kBits == 6 ? lane * 2 + half : 0;
    const uint32_t pair = kernels::cuda::pair_of<kBits>(step.main[static_cast<size_t>(main)],
                                                        step.extra[static_cast<size_t>(extra)], half, u, s, hi);
    const int t = lane % 4, row = lane / 4 + 8 * hi;
    const int col = 32 * half + (is_narrow(kBits) ? 16 * u + 4 * t : 8 * t + 4 * u) + 2 * s;
    const int up = kernels::cuda::pair_shift(kBits, s, hi);
    ASSERT_LT(pair & 0xffff, 256u);
    for (int b = 0; b < 2; ++b) {
      ASSERT_EQ(pair >> 16 * b & 0xffff, q[static_cast<size_t>(row * kStepCols + col + b)] << up)
          << kBits << " bits, row " << row << " column " << col + b;
    }
  }
}

TEST(CudaWeightLayout, BitsAreJoined) {
  for (const int bits : {3, 5, 6}) {
    for (unsigned q = 0; q < 1u << bits; ++q) {
      for (const int i : {0, 1, 2, 3}) {
        const Place place = {.lane = 0, .half = 0, .u = 0, .s = i / 2, .b = 0, .hi = i % 2};
        ASSERT_EQ(kernels::cuda::join_bits(bits, place, kernels::cuda::main_bits(bits, place, q),
                                           kernels::cuda::extra_bits(bits, place, q)),
                  q);
      }
    }
  }
}

TEST(CudaWeightLayout, LanesFindTheirWeights) {
  check_pairs<2>();
  check_pairs<3>();
  check_pairs<4>();
  check_pairs<5>();
  check_pairs<6>();
  check_pairs<8>();
}

float half_at(const uint8_t* p) {
  f16 value;
  std::memcpy(&value.bits, p, 2);
  return f16_to_f32(value);
}

// a and b of the weight with the index i in its block.
struct Linear {
  float a, b;
};
Linear linear_of(WeightType type, const uint8_t* block, int i) {
  const PackedKind kind = kernels::cuda::packed_kind(type);
  const auto zero = static_cast<float>(kind.zero);
  switch (kind.scales) {
    case ScaleKind::kHalf:
      return {half_at(block), -zero * half_at(block)};
    case ScaleKind::kHalfMin:
      return {half_at(block), half_at(block + 2)};
    case ScaleKind::kExponent:
      return {std::bit_cast<float>(kernels::cuda::exponent_scale(block[0])), 0.0f};
    case ScaleKind::kSixBits: {
      const unsigned both = kernels::cuda::block_six_bits(block, i / 32);
      return {half_at(block) * static_cast<float>(both & 255), -(half_at(block + 2) * static_cast<float>(both >> 8))};
    }
    case ScaleKind::kFourBits:
      return {half_at(block + 80) * static_cast<float>(block[i / 16] & 15),
              -(half_at(block + 82) * static_cast<float>(block[i / 16] >> 4))};
    default: {
      const int columns = kind.scales == ScaleKind::kSigned ? 16 : 32;
      const auto scale = static_cast<int8_t>(kernels::cuda::block_signed_scale(type, block, i / columns));
      const float a = half_at(block + kernels::cuda::block_d_at(type)) * static_cast<float>(scale);
      return {a, -zero * a};
    }
  }
}

// One scale and one minimum, as the product's kernel has them, give the type's formula.
TEST(CudaWeightLayout, OneFusedMultiplyIsTheFormula) {
  constexpr int64_t kBlocks = 64;
  for (const WeightType type : kQuantisedTypes) {
    if (is_grid(type)) continue;  // below
    const WeightTypeInfo& info = weight_type_info(type);
    const std::vector<std::byte> blocks = random_blocks(type, 5, kBlocks, info.block_elements);
    const std::vector<float> expected = weights_of(type, blocks);
    for (size_t i = 0; i < expected.size(); ++i) {
      const auto elements = static_cast<size_t>(info.block_elements);
      const auto* const block =
          reinterpret_cast<const uint8_t*>(blocks.data()) + i / elements * static_cast<size_t>(info.block_bytes);
      const int in_block = static_cast<int>(i % elements);
      const Linear linear = linear_of(type, block, in_block);
      const unsigned bits = kernels::cuda::block_q(type, block, in_block);
      const PackedKind kind = kernels::cuda::packed_kind(type);
      const auto q = kind.floats   ? static_cast<float>(kernels::cuda::float_level(bits))
                     : kind.levels ? static_cast<float>(kernels::cuda::level_of(bits))
                                   : static_cast<float>(bits);
      ASSERT_EQ(std::fma(q, linear.a, linear.b), expected[i]) << info.name << " weight " << i;
    }
  }
}

// The level of weight `i` of a run.
int level_of_run(WeightType type, const GridRun& run, int i) {
  switch (type) {
    case WeightType::kIQ2XXS:
      return kLevels2[kGrid2Xxs.words[run.first] >> 4 * i & 15];
    case WeightType::kIQ2XS:
      return kLevels2[kGrid2Xs.words[run.first] >> 4 * i & 15];
    case WeightType::kIQ2S:
      return kLevels2[kGrid2S.words[run.first] >> 4 * i & 15];
    case WeightType::kIQ3XXS:
      return kLevels3Xxs[kGrid3Xxs.words[i < 4 ? run.first : run.second] >> 4 * (i % 4) & 15];
    default:
      return kLevels3S[kGrid3S.words[i < 4 ? run.first : run.second] >> 4 * (i % 4) & 15];
  }
}

// A lane packs its four runs of a step, finds them again, and their weights have the type's formula.
TEST(CudaWeightLayout, RunsOfGridsAreFoundAgain) {
  constexpr int kStep = 2;  // of its record
  for (const WeightType type : kQuantisedTypes) {
    if (!is_grid(type)) continue;
    const WeightTypeInfo& info = weight_type_info(type);
    const std::vector<std::byte> blocks = random_blocks(type, 9, 2, 256);  // of rows g and g + 8
    const std::vector<float> expected = weights_of(type, blocks);
    for (int t = 0; t < 4; ++t) {
      uint32_t main[2] = {}, extra = 0, more = 0;
      const auto block_of = [&](int hi) {
        return reinterpret_cast<const uint8_t*>(blocks.data()) + hi * info.block_bytes;
      };
      for (const int half : {0, 1}) {
        for (const int hi : {0, 1}) {
          const GridRun run = grid_run(type, block_of(hi), 8 * kStep + 4 * half + t);
          main[half] |= kernels::cuda::grid_main(type, run) << 16 * hi;
          extra |= run.signs << (16 * half + 8 * hi);
          more |= kernels::cuda::grid_more(type, run) << kernels::cuda::grid_more_at(half, hi);
        }
      }
      for (int i = 0; i < 32; ++i) {
        const int half = i / 16, hi = i / 8 % 2, place = i % 8, col = 64 * kStep + 32 * half + 8 * t + place;
        const GridRun run = kernels::cuda::grid_run_of(type, main[half], extra, more, half, hi);
        const float scale = half_at(block_of(hi)) * static_cast<float>(grid_scale(type, block_of(hi), col / 16));
        const float weight = scale * grid_factor(type) * static_cast<float>(level_of_run(type, run, place));
        ASSERT_EQ((run.signs >> place & 1) != 0 ? -weight : weight, expected[static_cast<size_t>(256 * hi + col)])
            << info.name << " row " << hi << " column " << col;
      }
    }
  }
}

}  // namespace
}  // namespace headrace
