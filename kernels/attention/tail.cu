// The tail of decode attention on tensor cores.
//
// A block has 16 rows of q, which are the queries times the query heads of one KV head, and a warp for each group of
// kTailGroup positions that a tail can have: position p belongs to warp p / kTailGroup % kGroups for every query.
// Scores are products of stored elements, summed in fp32. All warps agree on each row's maximum before they weigh, so
// their sums can be added in the order of positions. Weights are fp32: three elements that sum to the weight represent
// it (for f16, down to 2^-24 of the row's largest).
//
// Where all rows of a group are committed, every query reads the same ones, and the group is read once for the block.
// Else each query's own rows are read one after the other, and their sums are kept for that query's rows of q alone.
// They are selected, not multiplied with 0: a candidate whose values are not finite must not reach another one's sums.
// So are they where a window begins within a group: a row that is not seen is replaced by the first one that is.
#include "kernels/attention/bodies.h"
#include "kernels/attention/launch.cuh"
#include "kernels/attention/query_cast.cuh"
#include "kernels/attention/rows.cuh"
#include "kernels/cuda/instructions.cuh"
#include "kernels/cuda/warp.cuh"

namespace headrace::kernels::cuda {

namespace {

constexpr int kGroup = kTailGroup, kGroups = static_cast<int>((kTailWindow + kPrefixTile) / kTailGroup);
constexpr int kRows = 16, kThreads = 32 * kGroups;
constexpr int kChunk = 64;  // elements of head_dim summed at once; a chunk is named by its first element
constexpr int kParts = 3;   // of a weight
static_assert(kPrefixTile % kGroup == 0 && kGroup == 16 && kRows <= kGroups && kRowsDim % kChunk == 0);

struct TailShared {
  union {
    alignas(16) uint16_t q[kRows][kRowsDim + 32];     // the padding keeps rows in different banks
    alignas(16) float o[kGroups][kRows][kChunk + 4];  // likewise; each warp's sums
  };
  alignas(16) float top[kRows][kGroups];
  alignas(16) float sum[kRows][kGroups];
  int query[kRows], position[kRows];  // for missing rows: those of the last row
  int seen[kRows];                    // first_seen()
  int from[kRows];                    // the first group that a row sees
  int place[kRows];                   // of [queries, heads]
  float scale[kRows];                 // of scores
  int first, last, committed;         // groups that any row sees; rows in the full KV
  int seen_by_all;                    // the largest of `seen`
  int rows;                           // existing rows
};
static_assert(sizeof(TailShared) <= 99 * 1024);

__device__ inline float2 unpack(uint32_t pair, __nv_bfloat16) {
  return {__uint_as_float(pair << 16), __uint_as_float(pair & 0xffff0000)};
}
__device__ inline float2 unpack(uint32_t pair, __half) { return __half22float2(*reinterpret_cast<__half2*>(&pair)); }

// The part of two weights that an element can hold; keeps the rest.
template <typename T>
__device__ uint32_t take(float& low, float& high) {
  const uint32_t pair = pack(low, high, T{});
  const float2 taken = unpack(pair, T{});
  low = __fsub_rn(low, taken.x);
  high = __fsub_rn(high, taken.y);
  return pair;
}

// A warp's part of the work. g = lane / 4 and t = lane % 4, as for multiply(): a lane has rows g and g + 8. Q: the type
// of q, which is converted to T.
template <typename Q, typename T>
struct TailGroup {
  const TailAttentionParams& params;
  TailShared& shared;
  const int dim;
  const int warp = threadIdx.x / 32, g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
  float s[2][4];                // scores of keys 8n + 2t and 8n + 2t + 1 for rows g and g + 8
  uint32_t weights[kParts][4];  // of the same keys, in the layout of multiply()
  // The number of groups of rows that the warp reads, and the last one found: nearly always the only one.
  int groups = 0, found;

  __device__ TailGroup(const TailAttentionParams& of, TailShared& memory)
      : params(of), shared(memory), dim(static_cast<int>(of.shape.head_dim)) {
    const int rows = min(kRows, static_cast<int>(of.shape.queries) * heads_each() - begin());
    const int row = warp == 0 ? threadIdx.x % kRows : warp - 1, heads = heads_each();
    if (row >= kRows) return;
    const int packed = begin() + min(row, rows - 1), query = packed / heads;
    const int head = kv_head() * heads + packed % heads;
    if (warp > 0) {
      load_query(row, query * params.shape.q_stride + int64_t{head} * dim);
      return;
    }
    const int position = params.positions[query];
    const int seen = first_seen_of(params.shape, position);
    const int begin_of_tail = max(tail_begin_of(position), params.first != nullptr ? *params.first : 0);
    const int from = max(begin_of_tail, seen) / kGroup;
    const int first = __reduce_min_sync(~0u, from), seen_by_all = __reduce_max_sync(~0u, seen);
    const int last = __reduce_max_sync(~0u, position) / kGroup;
    if (threadIdx.x < kRows) {
      shared.query[row] = query;
      shared.position[row] = position;
      shared.seen[row] = seen;
      shared.from[row] = from;
      shared.place[row] = query * static_cast<int>(params.shape.heads) + head;
    }
    if (threadIdx.x == 0) {
      shared.first = first;
      shared.last = last;
      shared.seen_by_all = seen_by_all;
      shared.committed = *params.committed;
      shared.rows = rows;
    }
  }
  __device__ int heads_each() const {
    return static_cast<int>(params.shape.heads) / static_cast<int>(params.shape.kv_heads);
  }
  __device__ static int kv_head() { return blockIdx.y; }
  __device__ static int begin() { return blockIdx.x * kRows; }  // index among queries x heads of a KV head

  // By a warp; elements beyond dim are 0.
  __device__ void load_query(int row, int64_t from) {
    constexpr int kAtOnce = 256, kEach = kRowsDim / kAtOnce;
    const int first = threadIdx.x % 32 * 8;
    uint4 words[kEach];
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      const int d = first + i * kAtOnce;
      const uint16_t* const q = static_cast<const uint16_t*>(params.q) + from + d;
      words[i] = uint4{};
      if (d < dim) words[i] = reinterpret_cast<uintptr_t>(q) % 16 == 0 ? *reinterpret_cast<const uint4*>(q) : gather(q);
    }
    float scale = params.shape.scale;
    if constexpr (kCasts<Q, T>) {
      int largest = 0;
      for (const uint4& w : words) largest = larger(larger(larger(larger(largest, w.x), w.y), w.z), w.w);
      const CastFactors factors = cast_factors(__reduce_max_sync(~0u, largest));
      for (uint4& w : words) {
        w = {cast_pair(w.x, factors.up), cast_pair(w.y, factors.up), cast_pair(w.z, factors.up),
             cast_pair(w.w, factors.up)};
      }
      scale = __fmul_rn(scale, factors.down);
    }
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      if (i * kAtOnce < dim) *reinterpret_cast<uint4*>(&shared.q[row][first + i * kAtOnce]) = words[i];
    }
    if (first == 0) shared.scale[row] = scale;
  }
  __device__ static uint4 gather(const uint16_t* q) {
    return {q[0] | uint32_t{q[1]} << 16, q[2] | uint32_t{q[3]} << 16, q[4] | uint32_t{q[5]} << 16,
            q[6] | uint32_t{q[7]} << 16};
  }

  // Calls see(group, owner) for the warp's groups; owner: the query that the rows belong to, or -1 if all share them.
  template <typename See>
  __device__ void each(const See& see) const {
    const int first = shared.first;
#pragma unroll 1
    for (int group = first + (warp + kGroups - first % kGroups) % kGroups; group <= shared.last; group += kGroups) {
      const bool all = (group + 1) * kGroup <= shared.committed && group * kGroup >= shared.seen_by_all;
#pragma unroll 1  // the bound is reread each time: registers are scarce where this is inlined
      for (int owner = all ? -1 : shared.query[0]; owner <= (all ? -1 : shared.query[kRows - 1]); ++owner) {
        if (owner < 0 || group <= params.positions[owner] / kGroup) see(group, owner);
      }
    }
  }
  // Whether row g, or g + 8, sees the group through the owner's rows.
  __device__ bool sees(int half, int group, int owner) const {
    const int row = g + 8 * half;
    return group >= shared.from[row] && group <= shared.position[row] / kGroup &&
           (owner < 0 || owner == shared.query[row]);
  }

  // The address of row lane % 16 of the group: a row of the ring, or, complemented, one of the pass.
  __device__ int find_row(int group, int owner) const {
    int p = group * kGroup + static_cast<int>(threadIdx.x % kGroup);
    if (owner >= 0) {  // later and earlier rows are not seen
      const int position = params.positions[owner];
      p = max(min(p, position), first_seen_of(params.shape, position));
    }
    const int ring_rows = static_cast<int>(params.ring_rows);
    if (p < shared.committed) return kv_head() * ring_rows + p % ring_rows;
    const int row = params.path[owner * params.path_stride + p - shared.committed];
    return ~(row * static_cast<int>(params.shape.kv_heads) + kv_head());
  }
  __device__ const uint16_t* row_at(const void* ring, const void* pass, int found, int key) const {
    const int row = __shfl_sync(~0u, found, key);
    return static_cast<const uint16_t*>(row >= 0 ? ring : pass) + int64_t{row >= 0 ? row : ~row} * dim;
  }

  // For 8 keys at a time, a lane loads 8 elements of key g and the same 8 elements of q's rows. The instruction assumes
  // another order of elements, which does not matter because it is the same for both.
  __device__ void score(int group, int owner) {
    ++groups;
    found = find_row(group, owner);
    const uint16_t* const k[2] = {row_at(params.ring_k, params.pass_k, found, g),
                                  row_at(params.ring_k, params.pass_k, found, g + 8)};
    float c[2][4] = {};
#pragma unroll 1
    for (int base = 0; base < dim; base += 128) {
      uint4 keys[2][4];
#pragma unroll
      for (int step = 0; step < 4; ++step) {
        const int d = base + step * 32 + t * 8;
#pragma unroll
        for (int n = 0; n < 2; ++n) keys[n][step] = d < dim ? *reinterpret_cast<const uint4*>(k[n] + d) : uint4{};
      }
#pragma unroll
      for (int step = 0; step < 4; ++step) {
        const int d = base + step * 32 + t * 8;
        const uint4 low = *reinterpret_cast<const uint4*>(&shared.q[g][d]);
        const uint4 high = *reinterpret_cast<const uint4*>(&shared.q[g + 8][d]);
        const uint32_t a[2][4] = {{low.x, high.x, low.y, high.y}, {low.z, high.z, low.w, high.w}};
#pragma unroll
        for (int n = 0; n < 2; ++n) {
          multiply(c[n], a[0], keys[n][step].x, keys[n][step].y, T{});
          multiply(c[n], a[1], keys[n][step].z, keys[n][step].w, T{});
        }
      }
    }
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      if (!sees(half, group, owner)) continue;
      const int begin = shared.seen[g + 8 * half] - group * kGroup,
                end = shared.position[g + 8 * half] - group * kGroup;
      const float scale = shared.scale[g + 8 * half];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        float& score = s[i / 2][2 * half + i % 2];
        const int key = i / 2 * 8 + t * 2 + i % 2;
        score = key >= begin && key <= end ? __fmul_rn(c[i / 2][2 * half + i % 2], scale) : -INFINITY;
      }
    }
  }

  // A row sees at most one of the warp's groups.
  __device__ void score() {
#pragma unroll
    for (int i = 0; i < 8; ++i) s[i / 4][i % 4] = -INFINITY;
    each([&](int group, int owner) { score(group, owner); });
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const float top =
          quad_max(fmaxf(fmaxf(s[0][2 * half], s[0][2 * half + 1]), fmaxf(s[1][2 * half], s[1][2 * half + 1])));
      if (t == 0) shared.top[g + 8 * half][warp] = top;
    }
  }
  __device__ float top_of(int row) const {
    float top = -INFINITY;
#pragma unroll
    for (int i = 0; i < kGroups; i += 4) {
      const float4 some = *reinterpret_cast<const float4*>(&shared.top[row][i]);
      top = fmaxf(top, fmaxf(fmaxf(some.x, some.y), fmaxf(some.z, some.w)));
    }
    return top;  // never -inf or NaN: a query sees at least itself
  }

  __device__ void weigh() {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const float top = top_of(g + 8 * half);
      float sum = 0.0f;
#pragma unroll
      for (int n = 0; n < 2; ++n) {
#pragma unroll
        for (int i = 2 * half; i < 2 * half + 2; ++i) {
          s[n][i] = weight_of(__fsub_rn(s[n][i], top));
          sum = __fadd_rn(sum, s[n][i]);
        }
      }
      sum = quad_sum(sum);
      if (t == 0) shared.sum[g + 8 * half][warp] = sum;
    }
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      float low = s[i / 2][i % 2 * 2], high = s[i / 2][i % 2 * 2 + 1];
#pragma unroll
      for (int part = 0; part < kParts; ++part) weights[part][i] = take<T>(low, high);
    }
  }

  // Elements of the group's values for sum(): 8 of each of 4 rows, placed so that the stores use different banks.
  __device__ void fetch(int chunk, uint4 (&v)[4]) const {
    const int d = chunk + (g / 2 + g % 2 * 4) * 8;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const uint16_t* const row = row_at(params.ring_v, params.pass_v, found, i / 2 * 8 + t * 2 + i % 2);
      v[i] = d < dim ? *reinterpret_cast<const uint4*>(row + d) : uint4{};
    }
  }

  // Writes the group's weighted values, of elements 8t + j and those 32 further on, to the rows among g and g + 8 that
  // `lives` selects. A row sees at most one of the warp's groups, so there is nothing to add to.
  __device__ void sum(const bool (&lives)[2], const uint4 (&v)[4]) {
    float o[8][4] = {};
#pragma unroll
    for (int j = 0; j < 8; ++j) {
      const auto pair = [&](const uint4& even, const uint4& odd) {
        const uint32_t words[2][4] = {{even.x, even.y, even.z, even.w}, {odd.x, odd.y, odd.z, odd.w}};
        return __byte_perm(words[0][j / 2], words[1][j / 2], j % 2 == 0 ? 0x5410 : 0x7632);
      };
      const uint32_t b0 = pair(v[0], v[1]), b1 = pair(v[2], v[3]);
#pragma unroll
      for (int part = kParts - 1; part >= 0; --part) {  // the small ones first
        multiply(o[j], weights[part], b0, b1, T{});
      }
    }
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      if (!lives[i / 2]) continue;
      float* const to = &shared.o[warp][g + i / 2 * 8][i % 2 * 32 + t * 8];
#pragma unroll
      for (int j = 0; j < 8; j += 4) {
        *reinterpret_cast<float4*>(to + j) = {o[j][i], o[j + 1][i], o[j + 2][i], o[j + 3][i]};
      }
    }
  }
};

// Writes a row's state, by a warp: the groups' sums in the order of positions.
template <typename Q, typename T>
struct TailEnd {
  const TailGroup<Q, T>& group;

  __device__ void write(int chunk) const {
    const TailShared& shared = group.shared;
    const int row = min(group.warp, shared.rows - 1), within = threadIdx.x % 32 * 2, d = chunk + within;
    const int first = shared.from[row], count = shared.position[row] / kGroup - first + 1;
    float2 o = {};
    float l = 0.0f;
    int warp = first % kGroups;
#pragma unroll 4
    for (int i = 0; i < count; ++i) {
      const float2 some = *reinterpret_cast<const float2*>(&shared.o[warp][row][within]);
      o.x = __fadd_rn(o.x, some.x);
      o.y = __fadd_rn(o.y, some.y);
      l = __fadd_rn(l, shared.sum[row][warp]);
      warp = warp + 1 == kGroups ? 0 : warp + 1;
    }
    const AttentionState& to = group.params.state;
    const int64_t place = shared.place[row];
    const int head = shared.place[row] % static_cast<int>(group.params.shape.heads);
    const SunkState state = with_sink(group.params.sinks, head, group.top_of(row), l);
    if (d < group.dim) {
      *reinterpret_cast<float2*>(to.o + place * group.dim + d) = {__fmul_rn(o.x, state.keep),
                                                                  __fmul_rn(o.y, state.keep)};
    }
    if (chunk == 0 && threadIdx.x % 32 == 0) reinterpret_cast<float2*>(to.ml)[place] = {state.m, state.l};
  }
};

template <typename Q, typename T>
__global__ void __launch_bounds__(kThreads, 1) tail_groups(const __grid_constant__ TailAttentionParams params) {
  extern __shared__ __align__(16) unsigned char memory[];
  TailShared& shared = *reinterpret_cast<TailShared*>(memory);
  TailGroup<Q, T> group(params, shared);
  __syncthreads();
  group.score();
  uint4 v[4];
  if (group.groups == 1) group.fetch(0, v);  // prefetch
  __syncthreads();                           // all maxima are written, and all threads have finished with q
  group.weigh();
  const TailEnd<Q, T> end{group};
#pragma unroll 1
  for (int chunk = 0; chunk < group.dim; chunk += kChunk) {
    if (group.groups == 1) {
      group.sum({true, true}, v);  // nothing is read for a row that does not see the group
    } else {
      group.each([&](int which, int owner) {
        group.found = group.find_row(which, owner);
        group.fetch(chunk, v);
        group.sum({group.sees(0, which, owner), group.sees(1, which, owner)}, v);
      });
    }
    if (group.groups == 1) group.fetch(chunk + kChunk, v);  // zeros beyond the last
    __syncthreads();
    if (group.warp < shared.rows) end.write(chunk);
    __syncthreads();
  }
}

template <typename Q, typename T>
void launch_tail(const TailAttentionParams& params, CudaStream& stream) {
  const AttentionShape& shape = params.shape;
  const dim3 grid(static_cast<unsigned>(ceil_div(shape.queries * (shape.heads / shape.kv_heads), kRows)),
                  static_cast<unsigned>(shape.kv_heads));
  launch(tail_groups<Q, T>, "tail_groups", grid, kThreads, static_cast<int>(sizeof(TailShared)), params, stream);
}

}  // namespace

void tail_attention(const TailAttentionParams& params, Stream& stream) {
  const AttentionShape& shape = params.shape;
  CudaStream& on = cuda_stream(stream);
  on.mark();
  if (!has_tensor_rows(shape) || shape.head_dim % 8 != 0) return tail_rows(params, on);
  if (shape.k_type == DType::kBF16) return launch_tail<__nv_bfloat16, __nv_bfloat16>(params, on);
  if (shape.type == DType::kBF16) return launch_tail<__nv_bfloat16, __half>(params, on);
  launch_tail<__half, __half>(params, on);
}

}  // namespace headrace::kernels::cuda
