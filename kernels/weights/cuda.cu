#include <algorithm>

#include "kernels/cuda/launch.cuh"
#include "kernels/weights/blocks.h"
#include "kernels/weights/bodies.h"
#include "kernels/weights/cuda_blocks.h"
#include "kernels/weights/cuda_value.cuh"

namespace headrace::kernels::cuda {

namespace {

constexpr int kThreads = 128;

// ---- store_weight ---------------------------------------------------------------------------------------------------

// The block that holds a column of a row of the run; null where the matrix has none.
struct Blocks {
  const uint8_t* data;
  int rows, cols;
  int64_t row_bytes;
  int elements, bytes;

  __device__ const uint8_t* at(int row, int col) const {
    return row < rows && col < cols ? data + row * row_bytes + static_cast<int64_t>(col / elements) * bytes : nullptr;
  }
};
struct Store {
  Blocks blocks;
  char* out;  // the run's first tile
};

__device__ uint32_t load_half(const uint8_t* p) { return p == nullptr ? 0 : p[0] | p[1] << 8; }

// Four weights of a row from one block: what step u of the tensor cores has of them in its words.
struct Quad {
  uint32_t main, extra;
};
template <WeightType kType>
__device__ Quad quad_of(const uint8_t* block, int first, Place place) {
  constexpr int kBits = packed_kind(kType).bits;
  Quad quad{};
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    place.s = i / 2;
    place.b = i % 2;
    const uint32_t q = block_q(kType, block, first + i);
    quad.main |= main_bits(kBits, place, q) << (16 * place.b + (kBits < 4 ? 4 : 8) * place.s);
    if (has_extra(kBits)) {
      const uint32_t extra = extra_bits(kBits, place, q);
      quad.extra |= __funnelshift_l(extra, extra, extra_place(kBits, place).bit);
    }
  }
  return quad;
}

// A lane's words of one step of a grid's runs.
template <WeightType kType>
__device__ void store_grid_step(const Store& p, char* tile, const TilePlanes& planes, int row, int step, int lane) {
  constexpr PackedKind kind = packed_kind(kType);
  uint32_t main[2] = {}, extra = 0;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const int half = i / 2, hi = i % 2, col = step * kStepCols + 32 * half + lane % 4 * 8;
    const uint8_t* const block = p.blocks.at(row + lane / 4 + 8 * hi, col);
    if (block == nullptr) continue;
    const GridRun run = grid_run(kType, block, col % kRecordCols / 8);
    main[half] |= grid_main(kType, run) << 16 * hi;
    extra |= run.signs << (16 * half + 8 * hi);
  }
  reinterpret_cast<uint2*>(tile + static_cast<int64_t>(step) * main_step_bytes(kind.bits))[lane] =
      make_uint2(main[0], main[1]);
  if constexpr (has_extra(kind.bits)) {
    reinterpret_cast<uint32_t*>(tile + planes.extra + static_cast<int64_t>(step) * extra_step_bytes(kind.bits))[lane] =
        extra;
  }
}

// A lane's words of one step.
template <WeightType kType>
__device__ void store_step(const Store& p, char* tile, const TilePlanes& planes, int row, int step, int lane) {
  constexpr PackedKind kind = packed_kind(kType);
  if constexpr (kind.grid) return store_grid_step<kType>(p, tile, planes, row, step, lane);
  constexpr bool kNarrow = is_narrow(kind.scales);
  uint32_t main[8] = {}, extra[2] = {};
#pragma unroll
  for (int hi = 0; hi < 2; ++hi) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int first = 32 * half + lane % 4 * (kNarrow ? 4 : 8);
      const int col = step * kStepCols + first;
      const uint8_t* const block = p.blocks.at(row + lane / 4 + 8 * hi, col);
      if (block == nullptr) continue;
      const int in_block = col % p.blocks.elements;
#pragma unroll
      for (int u = 0; u < 2; ++u) {
        const Quad quad = quad_of<kType>(block, in_block + (kNarrow ? 16 : 4) * u, {.half = half, .u = u, .hi = hi});
        if (kind.bits == 8) {
          main[4 * half + 2 * u + hi] = quad.main;
        } else if (kind.bits < 4) {
          main[half] |= quad.main << (8 * u + 2 * hi);
        } else {
          main[2 * half + u] |= quad.main << 4 * hi;
        }
        extra[0] |= kind.bits != 6 || half == 0 ? quad.extra : 0;
        extra[1] |= kind.bits == 6 && half == 1 ? quad.extra : 0;
      }
    }
  }
  char* const to = tile + static_cast<int64_t>(step) * main_step_bytes(kind.bits);
  if constexpr (kind.bits < 4) {
    reinterpret_cast<uint2*>(to)[lane] = make_uint2(main[0], main[1]);
  } else {
    reinterpret_cast<uint4*>(to)[lane] = make_uint4(main[0], main[1], main[2], main[3]);
    if (kind.bits == 8) reinterpret_cast<uint4*>(to)[32 + lane] = make_uint4(main[4], main[5], main[6], main[7]);
  }
  auto* const above =
      reinterpret_cast<uint32_t*>(tile + planes.extra + static_cast<int64_t>(step) * extra_step_bytes(kind.bits));
  if (kind.bits == 3 || kind.bits == 5) above[lane] = extra[0];
  if (kind.bits == 6) reinterpret_cast<uint2*>(above)[lane] = make_uint2(extra[0], extra[1]);
}

// The bits that the planes do not have of a lane's runs of a record.
template <WeightType kType>
__device__ uint32_t word_of_lane(const Store& p, int row, int first_col, int lane) {
  uint32_t word = 0;
  for (int i = 0; i < 16; ++i) {
    const int step = i / 4, half = i / 2 % 2, hi = i % 2, col = first_col + step * kStepCols + 32 * half + lane % 4 * 8;
    const uint8_t* const block = p.blocks.at(row + lane / 4 + 8 * hi, col);
    if (block == nullptr) continue;
    const GridRun run = grid_run(kType, block, col % kRecordCols / 8);
    word |= grid_more(kType, run) << (8 * step + grid_more_at(half, hi));
  }
  return word;
}

// A lane's words of one record: of row pair lane / 4 and the groups 2 (lane % 4) and the next.
template <WeightType kType>
__device__ void store_record(const Store& p, uint32_t* record, int row, int first_col, int lane) {
  constexpr PackedKind kind = packed_kind(kType);
  const int g = lane / 4, t = lane % 4;
  for (int group = 2 * t; group < 2 * t + 2; ++group) {
    const uint8_t* const low = p.blocks.at(row + g, first_col + 32 * group);
    const uint8_t* const high = p.blocks.at(row + g + 8, first_col + 32 * group);
    const auto at = [](const uint8_t* block, int place) {
      return load_half(block == nullptr ? nullptr : block + place);
    };
    const auto signed_scale = [](const uint8_t* block, int number) {
      return block == nullptr ? 0 : block_signed_scale(kType, block, number);
    };
    constexpr int kD = block_d_at(kType);
    uint32_t *const word = record + scale_word(g, group), *const after = record + record_words(kind.scales);
    if (kind.scales == ScaleKind::kHalf || kind.scales == ScaleKind::kHalfMin) {
      *word = load_half(low) | load_half(high) << 16;
      if (kind.scales == ScaleKind::kHalfMin) after[scale_word(g, group)] = at(low, 2) | at(high, 2) << 16;
    } else if (kind.scales == ScaleKind::kSixBits) {
      *word = (low == nullptr ? 0 : block_six_bits(low, group)) | (high == nullptr ? 0 : block_six_bits(high, group))
                                                                      << 16;
    } else if (kind.scales == ScaleKind::kFourBits) {
      *word = at(low, 2 * group) | at(high, 2 * group) << 16;
    } else if (is_signed_narrow(kind.scales)) {
      *word = signed_scale(low, 2 * group) | signed_scale(low, 2 * group + 1) << 8 |
              signed_scale(high, 2 * group) << 16 | signed_scale(high, 2 * group + 1) << 24;
    } else if (kind.scales == ScaleKind::kExponent) {
      reinterpret_cast<uint16_t*>(record + wide_scale_word(g, group))[group % 2] =
          static_cast<uint16_t>((low == nullptr ? 0 : low[0]) | (high == nullptr ? 0 : high[0]) << 8);
    } else {
      reinterpret_cast<uint16_t*>(record + wide_scale_word(g, group))[group % 2] =
          static_cast<uint16_t>(signed_scale(low, group) | signed_scale(high, group) << 8);
    }
    if (group > 0) continue;
    if (kind.scales == ScaleKind::kSixBits || kind.scales == ScaleKind::kFourBits) {
      after[2 * g] = at(low, kD) | at(low, kD + 2) << 16;
      after[2 * g + 1] = at(high, kD) | at(high, kD + 2) << 16;
    } else if (is_signed_narrow(kind.scales) || is_signed_wide(kind.scales)) {
      after[g] = at(low, kD) | at(high, kD) << 16;
    }
  }
  if constexpr (has_word(kind.scales))
    record[lane_word(kind.scales, lane)] = word_of_lane<kType>(p, row, first_col, lane);
}

// Grid: records x tiles of the run; a warp a step.
template <WeightType kType>
__global__ void __launch_bounds__(kThreads) store_weight_kernel(Store p) {
  constexpr PackedKind kind = packed_kind(kType);
  const TilePlanes planes = tile_planes(kind, p.blocks.cols);
  const int lane = static_cast<int>(threadIdx.x % 32), warp = static_cast<int>(threadIdx.x / 32);
  const int row = static_cast<int>(blockIdx.x) * kTileRows, record = static_cast<int>(blockIdx.y);
  char* const tile = p.out + blockIdx.x * planes.bytes;
  const int step = record * kStepsARecord + warp;
  if (step * kStepCols < p.blocks.cols) store_step<kType>(p, tile, planes, row, step, lane);
  if (warp != 0) return;
  auto* const scales =
      reinterpret_cast<uint32_t*>(tile + planes.scales + static_cast<int64_t>(record) * record_bytes(kind.scales));
  store_record<kType>(p, scales, row, record * kRecordCols, lane);
}

void (*store_kernel_of(WeightType type))(Store) {
  constexpr void (*kKernels[])(Store) = {
      store_weight_kernel<WeightType::kQ4_0>,   store_weight_kernel<WeightType::kQ4_1>,
      store_weight_kernel<WeightType::kQ5_0>,   store_weight_kernel<WeightType::kQ5_1>,
      store_weight_kernel<WeightType::kQ8_0>,   store_weight_kernel<WeightType::kQ4K>,
      store_weight_kernel<WeightType::kQ5K>,    store_weight_kernel<WeightType::kQ6K>,
      store_weight_kernel<WeightType::kQ2K>,    store_weight_kernel<WeightType::kQ3K>,
      store_weight_kernel<WeightType::kIQ4NL>,  store_weight_kernel<WeightType::kIQ4XS>,
      store_weight_kernel<WeightType::kIQ2XXS>, store_weight_kernel<WeightType::kIQ2XS>,
      store_weight_kernel<WeightType::kIQ2S>,   store_weight_kernel<WeightType::kIQ3XXS>,
      store_weight_kernel<WeightType::kIQ3S>,   store_weight_kernel<WeightType::kMXFP4>};
  CHECK(!is_plain(type), weight_type_info(type).name, " is not packed");
  return kKernels[quantised_index(type)];
}

// ---- dequantise -----------------------------------------------------------------------------------------------------

// A chunk of a row, `col` a multiple of kChunk. With the type known, weights share the words and scales they are made
// of.
template <WeightType kType>
__device__ void unpack_chunk(const WeightPart& from, int64_t cols, int64_t row, int64_t col, float (&values)[kChunk]) {
#pragma unroll
  for (int j = 0; j < kChunk; ++j) values[j] = packed_weight(kType, from.data, cols, row, col | j);
}

template <WeightType... kTypes>
__device__ void unpack_chunk_of(const WeightPart& from, int64_t cols, int64_t row, int64_t col,
                                float (&values)[kChunk]) {
  device_check(((from.type == kTypes && (unpack_chunk<kTypes>(from, cols, row, col, values), true)) || ...));
}

// Grid: blocks of chunks x rows (in strides of the grid).
__global__ void __launch_bounds__(kThreads)
    dequantise_kernel(const __grid_constant__ DequantiseParams p, bool aligned) {
  const int64_t col = (static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x) * kChunk;
  const int64_t cols = p.weight.cols;
  if (col >= cols) return;
  const int count = static_cast<int>(cols - col < kChunk ? cols - col : kChunk);
  for (int64_t i = blockIdx.y; i < p.rows; i += gridDim.y) {
    int64_t row = p.ids != nullptr ? p.ids[i] : p.first_row + i;
    device_check(0 <= row && row < p.weight.parts[0].rows + p.weight.parts[1].rows + p.weight.parts[2].rows);
    int part = 0;
    for (; row >= p.weight.parts[part].rows; ++part) row -= p.weight.parts[part].rows;
    const WeightPart& from = p.weight.parts[part];
    float values[kChunk];
    if (packed_kind(from.type).bits == 16) {
      load_chunk(p.type, from.data, row * cols + col, count, aligned, values);
    } else {
      using enum WeightType;
      unpack_chunk_of<kQ4_0, kQ4_1, kQ5_0, kQ5_1, kQ8_0, kQ4K, kQ5K, kQ6K, kQ2K, kQ3K, kIQ4NL, kIQ4XS, kIQ2XXS, kIQ2XS,
                      kIQ2S, kIQ3XXS, kIQ3S, kMXFP4>(from, cols, row, col, values);
      if (p.out_type != p.type) {  // where they are equal, the store rounds
#pragma unroll
        for (float& value : values) value = rounded_to(p.type, value);
      }
    }
    store_chunk(p.out_type, p.out, i * cols + col, count, aligned, values);
  }
}

}  // namespace

void store_weight(const StoreWeightParams& params, Stream& stream) {
  const WeightTypeInfo& info = weight_type_info(params.type);
  const TilePlanes planes = tile_planes(packed_kind(params.type), params.cols);
  Store store{};
  store.blocks = {.data = static_cast<const uint8_t*>(params.blocks),
                  .rows = static_cast<int>(params.row_end - params.row_begin),
                  .cols = static_cast<int>(params.cols),
                  .row_bytes = params.cols / info.block_elements * info.block_bytes,
                  .elements = static_cast<int>(info.block_elements),
                  .bytes = static_cast<int>(info.block_bytes)};
  store.out = static_cast<char*>(params.out) + params.row_begin / kTileRows * planes.bytes;
  CHECK(params.rows <= INT32_MAX && params.cols <= INT32_MAX - kRecordCols, params.rows, " x ", params.cols);
  launch_on(cuda_stream(stream), "store_weight",
            {ceil_div(store.blocks.rows, kTileRows), ceil_div(params.cols, kRecordCols), kThreads},
            store_kernel_of(params.type), store);
}

void dequantise(const DequantiseParams& params, Stream& stream) {
  constexpr int64_t kMaxGridRows = 32768;
  bool aligned = chunks_aligned(params.out, params.out_type, params.weight.cols);
  for (const WeightPart& part : params.weight.parts) {
    if (is_plain(part.type)) aligned = aligned && chunks_aligned(part.data, params.type, params.weight.cols);
  }
  const int64_t blocks = ceil_div(ceil_div(params.weight.cols, kChunk), kThreads);
  launch_on(cuda_stream(stream), "dequantise", {blocks, std::min(params.rows, kMaxGridRows), kThreads},
            dequantise_kernel, params, aligned);
}

}  // namespace headrace::kernels::cuda
