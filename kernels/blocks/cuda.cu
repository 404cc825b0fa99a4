// Blocks of the KV cache (SpecPV section 3.2): their summaries, which of them a KV head keeps, and how they and the
// window get into its partial KV. What is chosen depends on the scores alone, not on the order in which threads arrive.
#include "kernels/blocks/bodies.h"
#include "kernels/cuda/chunk.cuh"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/rows.cuh"
#include "kernels/cuda/warp.cuh"
#include "kernels/cuda/with_type.cuh"
#include "kernels/rows/cuda_rows.cuh"

namespace headrace::kernels::cuda {

namespace {

// ---- summarise_blocks -----------------------------------------------------------------------------------------------

constexpr int kSummaryThreads = 128;

// Grid: chunks of blocks x (layers x KV heads). A thread: one chunk of a block's rows.
template <typename T>
__global__ void __launch_bounds__(kSummaryThreads) summarise_kernel(SummariseBlocksParams p, bool aligned) {
  const auto chunks = static_cast<unsigned>((p.head_dim + kChunk - 1) / kChunk);
  const unsigned item = blockIdx.x * kSummaryThreads + threadIdx.x, in_call = item / chunks;
  if (in_call >= p.count) return;
  const int64_t head = blockIdx.y, layer = head / p.kv_heads, block = p.first_block + in_call;
  const int64_t column = static_cast<int64_t>(item % chunks) * kChunk, start = block * kBlockRows % p.ring_rows;
  const T* const keys =
      static_cast<const T*>(p.k) + layer * p.k_layer_stride + head % p.kv_heads * p.ring_rows * p.head_dim + column;
  const int count = chunk_count(p.head_dim, column);
  const auto from = [&](int row) {
    return keys + (start + row < p.ring_rows ? start + row : start + row - p.ring_rows) * p.head_dim;
  };
  float most[kChunk], least[kChunk], key[kChunk];
#pragma unroll
  for (int i = 0; i < kChunk; ++i) most[i] = -INFINITY, least[i] = INFINITY;
  const auto add = [&] {
#pragma unroll
    for (int i = 0; i < kChunk; ++i) {
      most[i] = fmaxf(most[i], key[i]);
      least[i] = fminf(least[i], key[i]);
    }
  };
  if (aligned && count == kChunk) {
    RawChunk<T> rows[kBlockRows];
#pragma unroll
    for (int row = 0; row < kBlockRows; ++row) rows[row].load(from(row));
#pragma unroll
    for (int row = 0; row < kBlockRows; ++row) {
      rows[row].widen_to(key);
      add();
    }
  } else {
    for (int row = 0; row < kBlockRows; ++row) {
      load_chunk(from(row), count, false, key);
      add();
    }
  }
  T* const out = static_cast<T*>(p.summaries) + (head * p.blocks + block) * 2 * p.head_dim + column;
  store_chunk(out, count, aligned, most);
  store_chunk(out + p.head_dim, count, aligned, least);
}

// ---- select_blocks --------------------------------------------------------------------------------------------------

constexpr int kSelectThreads = 1024, kSelectWarps = kSelectThreads / 32;
static_assert(kSelectWarps == 32);  // a lane sums one warp's count

// Increases with the score, never 0; 0 and -0 are equal scores, NaN counts as -inf.
__device__ uint32_t key_of(float score) {
  const uint32_t bits = __float_as_uint((score != score ? -INFINITY : score) + 0.0f);
  return bits >> 31 != 0 ? ~bits : bits | 0x80000000u;
}

// One KV head's keys. A warp has a run of blocks, so its selected blocks are contiguous in the output. A thread rereads
// the keys that it cannot hold.
template <int kHeld>
struct Keys {
  const float* scores;
  int count, each, first;  // `each` keys of a lane, 32 blocks apart, from `first` on
  uint32_t held[kHeld];

  __device__ Keys(const float* all, int how_many) : scores(all), count(how_many) {
    each = (count + kSelectThreads - 1) / kSelectThreads;
    first = static_cast<int>(threadIdx.x) / 32 * each * 32 + static_cast<int>(threadIdx.x) % 32;
#pragma unroll
    for (int i = 0; i < kHeld; ++i) held[i] = i < each ? read(i) : 0;
  }
  __device__ uint32_t read(int i) const {
    const int block = first + i * 32;
    return block < count ? key_of(__ldg(scores + block)) : 0;
  }
  // Calls body(key, i) in order of i.
  template <typename Body>
  __device__ void each_key(const Body& body) const {
#pragma unroll
    for (int i = 0; i < kHeld; ++i) {
      if (i < each) body(held[i], i);
    }
#pragma unroll 4
    for (int i = kHeld; i < each; ++i) body(read(i), i);
  }
};

// The number of keys of the block that are at least `lowest`. `turn`: number of the caller's call, from 0. Two
// alternating sets of counts: one is written again after the other's barrier, when all threads have read it.
template <int kHeld>
__device__ int count_from(const Keys<kHeld>& keys, uint32_t lowest, int turn, int (&counts)[2][kSelectWarps]) {
  int count = 0;
  keys.each_key([&](uint32_t key, int) { count += key >= lowest ? 1 : 0; });
  count = __reduce_add_sync(kAllLanes, count);
  if (threadIdx.x % 32 == 0) counts[turn % 2][threadIdx.x / 32] = count;
  __syncthreads();
  return __reduce_add_sync(kAllLanes, counts[turn % 2][threadIdx.x % 32]);
}

// Grid: KV heads. Finds the bound bit by bit, from the highest: the largest value that `keep` keys reach.
template <int kHeld>
__global__ void __launch_bounds__(kSelectThreads) select_kernel(SelectBlocksParams p) {
  __shared__ int counts[2][kSelectWarps];
  const auto keep = static_cast<int>(p.keep), count = static_cast<int>(p.count);
  const Keys<kHeld> keys(p.scores + blockIdx.x * p.count, count);
  uint32_t bound = 0;
  int turn = 0;
  for (int bit = 31; bit >= 0; --bit) {
    const uint32_t higher = bound | 1u << bit;
    const int reach = count_from(keys, higher, turn++, counts);
    if (reach >= keep) bound = higher;
    if (reach == keep) break;
  }
  const int ties = keep - count_from(keys, bound + 1, turn, counts);  // ties to select, the lower blocks first

  int above = 0, equal = 0;
  keys.each_key([&](uint32_t key, int) {
    above += key > bound ? 1 : 0;
    equal += key == bound ? 1 : 0;
  });
  above = __reduce_add_sync(kAllLanes, above);
  equal = __reduce_add_sync(kAllLanes, equal);
  const unsigned lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  __syncthreads();
  if (lane == 0) {
    counts[0][warp] = above;
    counts[1][warp] = equal;
  }
  __syncthreads();
  // Now the sums over the previous warps and lanes.
  above = __reduce_add_sync(kAllLanes, lane < warp ? counts[0][lane] : 0);
  equal = __reduce_add_sync(kAllLanes, lane < warp ? counts[1][lane] : 0);
  int32_t* const chosen = p.chosen + static_cast<int64_t>(blockIdx.x) * keep;
  const unsigned before = (1u << lane) - 1;
  keys.each_key([&](uint32_t key, int i) {
    const unsigned all_above = __ballot_sync(kAllLanes, key > bound),
                   all_equal = __ballot_sync(kAllLanes, key == bound);
    const int nth = equal + __popc(all_equal & before);
    if (key > bound || (key == bound && nth < ties)) {
      chosen[above + __popc(all_above & before) + min(nth, ties)] =
          static_cast<int32_t>(p.first_block) + keys.first + i * 32;
    }
    above += __popc(all_above);
    equal += __popc(all_equal);
  });
}

// ---- gather_blocks --------------------------------------------------------------------------------------------------

constexpr int kGatherThreads = 256;
static_assert(kMaxPrefixSegments % 32 == 0);

// The segment of a row, or -1; a lane looks at every 32nd one.
__device__ int find_segment(const GatherBlocksParams& p, int64_t row) {
  int n = -1;
#pragma unroll
  for (int begin = static_cast<int>(kMaxPrefixSegments) - 32; begin >= 0; begin -= 32) {
    const int i = begin + static_cast<int>(threadIdx.x % 32);
    const int64_t first = i < p.segment_count ? row - p.segments[i].position : -1;
    const unsigned found = __ballot_sync(kAllLanes, first >= 0 && first < p.segments[i].rows);
    if (found != 0) n = begin + __ffs(static_cast<int>(found)) - 1;
  }
  return n;
}

// Grid: slots x KV heads.
__global__ void __launch_bounds__(kGatherThreads) gather_kernel(const __grid_constant__ GatherBlocksParams p) {
  const int64_t slot = blockIdx.x, head = blockIdx.y, block = p.chosen[head * p.keep + slot];
  device_check(block >= 0);
  const int n = find_segment(p, block * kBlockRows);
  if (n < 0) return;
  const KvSegment& segment = p.segments[n];
  const int64_t row = block * kBlockRows - segment.position;
  device_check(row + kBlockRows <= segment.rows);
  const int64_t to = (head * p.out_rows + slot * kBlockRows) * p.head_dim;
  const auto copy = [&](void* out, DType type, const void* in, DType stored) {
    const DevicePlaneRow from = plane_row(in, stored, p.kv_heads, segment.stride_rows, p.head_dim, head, row);
    char* const first = at(out, to, type);
    if (!is_low_bit(stored)) {
      const int64_t bytes = kBlockRows * p.head_dim * bytes_of(type);
      return copy_row(first, from.values, bytes, may_copy_wide(first, from.values, bytes));
    }
    for (unsigned i = threadIdx.x / 32; i < kBlockRows; i += kGatherThreads / 32) {
      dequantise_row({from.values + i * p.head_dim, from.parameters + i}, first + i * p.head_dim * bytes_of(type), type,
                     p.head_dim, threadIdx.x % 32, 32);
    }
  };
  copy(p.k_out, p.k_type, segment.k, p.stored_k_type);
  copy(p.v_out, p.v_type, segment.v, p.stored_v_type);
}

// ---- copy_window ----------------------------------------------------------------------------------------------------

constexpr int kWindowThreads = 128;

// A warp: a row of K and of V.
__global__ void __launch_bounds__(kWindowThreads) copy_window_kernel(CopyWindowParams p) {
  const int64_t item = static_cast<int64_t>(blockIdx.x) * (kWindowThreads / 32) + threadIdx.x / 32;
  const int64_t head = item / p.count, position = p.first_position + item % p.count;  // heads of all layers
  const int64_t layer = head / p.kv_heads;
  if (layer >= p.layers) return;
  const int64_t from = (head * p.ring_rows + position % p.ring_rows) * p.head_dim;
  const int64_t to = (head % p.kv_heads * p.out_rows + position - p.origin) * p.head_dim;
  const auto copy = [&](void* out, uint64_t layer_bytes, const void* ring, DType type) {
    char* const row = at(out, to, type) + static_cast<uint64_t>(layer) * layer_bytes;
    const char* const source = at(ring, from, type);
    const int64_t bytes = p.head_dim * bytes_of(type);
    copy_row(row, source, bytes, may_copy_wide(row, source, bytes), threadIdx.x % 32, 32);
  };
  copy(p.k_out, p.k_layer_bytes, p.ring_k, p.k_type);
  copy(p.v_out, p.v_layer_bytes, p.ring_v, p.v_type);
}

// =====================================================================================================================

template <typename T>
void launch_summarise(const SummariseBlocksParams& params, CudaStream& stream) {
  const bool aligned = chunks_aligned(params.k, params.k_type, params.head_dim) &&
                       chunks_aligned(params.k, params.k_type, params.k_layer_stride) &&
                       chunks_aligned(params.summaries, params.k_type, params.head_dim);
  const int64_t work = params.count * ceil_div(params.head_dim, kChunk);
  CHECK(work <= INT32_MAX, "count=", params.count);
  launch_on(stream, "summarise_blocks",
            {ceil_div(work, kSummaryThreads), params.layers * params.kv_heads, kSummaryThreads}, summarise_kernel<T>,
            params, aligned);
}

}  // namespace

void summarise_blocks(const SummariseBlocksParams& params, Stream& stream) {
  with_type(params.k_type, [&](auto t) { launch_summarise<decltype(t)>(params, cuda_stream(stream)); });
}

void select_blocks(const SelectBlocksParams& params, Stream& stream) {
  const int64_t each = ceil_div(params.count, kSelectThreads);
  launch_on(cuda_stream(stream), "select_blocks", {params.kv_heads, 1, kSelectThreads},
            each <= 4    ? select_kernel<4>
            : each <= 16 ? select_kernel<16>
                         : select_kernel<32>,
            params);
}

void gather_blocks(const GatherBlocksParams& params, Stream& stream) {
  launch_on(cuda_stream(stream), "gather_blocks", {params.keep, params.kv_heads, kGatherThreads}, gather_kernel,
            params);
}

void copy_window(const CopyWindowParams& params, Stream& stream) {
  const int64_t rows = params.layers * params.kv_heads * params.count;
  launch_on(cuda_stream(stream), "copy_window", {ceil_div(rows, kWindowThreads / 32), 1, kWindowThreads},
            copy_window_kernel, params);
}

}  // namespace headrace::kernels::cuda
