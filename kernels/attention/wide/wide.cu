// Attention with heads of more than 256 elements, on tensor cores: prefill, and a prefix of exact rows.
#include "kernels/attention/launch.cuh"
#include "kernels/attention/prefix_block.cuh"
#include "kernels/attention/wide/wide_tile.cuh"

namespace headrace::kernels::cuda {

namespace {

// A block's rows of q in a prefill: queries times the query heads of one KV head, so that a tile is read once for all
// of them. The longest ones first.
template <int kRows>
struct PrefillBlock {
  const PrefillAttentionParams& params;
  const int group, rows;     // query heads of a KV head; all rows
  const int kv_head, begin;  // begin: the block's first row

  __device__ explicit PrefillBlock(const PrefillAttentionParams& of)
      : params(of),
        group(opaque(static_cast<int>(of.shape.heads)) / static_cast<int>(of.shape.kv_heads)),
        rows(static_cast<int>(of.shape.queries) * group),
        kv_head(static_cast<int>(blockIdx.y)),
        begin(static_cast<int>(gridDim.x - 1 - blockIdx.x) * kRows) {}

  __device__ int last() const { return min(begin + kRows, rows) - 1; }
  __device__ int position_of(int packed) const { return static_cast<int>(params.first_position) + packed / group; }
  __device__ int64_t state_of(int row) const {  // of [queries, heads]
    const int packed = min(begin + row, rows - 1);
    return packed / group * params.shape.heads + kv_head * group + packed % group;
  }
  __device__ PrefixRow row_of(int row) const {
    const int packed = min(begin + row, last()), position = position_of(packed);
    const int64_t head = kv_head * group + packed % group;
    return {static_cast<const unsigned short*>(params.q) + packed / group * params.shape.q_stride +
                head * params.shape.head_dim,
            first_seen_of(params.shape, position), position + 1, 0};
  }
  __device__ TileBounds bounds() const {
    const int low = position_of(begin), high = position_of(last());
    return {first_seen_of(params.shape, low), first_seen_of(params.shape, high), low + 1, high + 1};
  }
};

template <typename Q, typename T>
__global__ void __launch_bounds__(WideHeadTile<Q, T, 2, 2, false>::kThreads, 1)
    prefill_wide(const __grid_constant__ PrefillAttentionParams params) {
  extern __shared__ __align__(128) unsigned char shared[];
  using Tile = WideHeadTile<Q, T, 2, 2, false>;
  using Block = PrefillBlock<Tile::kRows>;
  const AttentionShape& shape = params.shape;
  const TileBounds bounds = Block(params).bounds();
  Tile tile(shape, params.segments, bounds, bounds.first / Tile::kKeys * Tile::kKeys, bounds.limit, shared);
  {
    const Block block(params);
    tile.start([&](int row) { return block.row_of(row); });
  }
  tile.walk();
  const Block block(params);  // the products leave no registers to keep it in
  tile.finish([&](int row, int part, int half, const typename Tile::Sums& sums) {
    if (block.begin + row >= block.rows) return;
    Q* const out = static_cast<Q*>(params.out) + block.state_of(row) * shape.head_dim;
#pragma unroll
    for (int n = 0; n < Tile::kNTiles; ++n) {
      const int d = Tile::column_of(n);
      if (d >= shape.head_dim) break;
      const auto value = [&](float sum) {
        // + 0: a zero's sign must not depend on rows with weight 0.
        return __fadd_rn(__fdiv_rn(__fmul_rn(sum, sums.factor), sums.l), 0.0f);
      };
      *reinterpret_cast<uint32_t*>(out + d) =
          pack(value(tile.o[part][n][2 * half]), value(tile.o[part][n][2 * half + 1]), Q{});
    }
  });
}

template <typename Q, typename T, int kGroups, int kEach>
__global__ void __launch_bounds__(WideHeadTile<Q, T, kGroups, kEach, true>::kThreads, 1)
    prefix_wide(const __grid_constant__ PrefixAttentionParams params) {
  extern __shared__ __align__(128) unsigned char shared[];
  using Tile = WideHeadTile<Q, T, kGroups, kEach, true>;
  const AttentionShape& shape = params.shape;
  using Block = PrefixBlock<T, Tile::kRows>;
  const KvSegment& segment = params.segments[Block(params).n];
  const TileBounds bounds = Block(params).bounds();
  const int skip = max(bounds.first - segment.position, 0) / Tile::kKeys * Tile::kKeys;
  Tile tile(shape, &segment, bounds, segment.position + skip, min(segment.position + segment.rows, bounds.limit),
            shared);
  {
    const Block block(params);
    tile.start([&](int row) { return block.row_of(row); });
  }
  tile.walk();
  const Block block(params);  // the products leave no registers to keep it in
  tile.finish([&](int row, int part, int half, const typename Tile::Sums& sums) {
    if (block.begin + row >= block.rows) return;
    const int64_t state = block.state_of(row);
    if (Tile::column_of(0) == 0) {
      params.scratch.ml[2 * state] = sums.m;
      params.scratch.ml[2 * state + 1] = sums.l;
    }
#pragma unroll
    for (int n = 0; n < Tile::kNTiles; ++n) {
      const int d = Tile::column_of(n);
      if (d >= shape.head_dim) break;
      // + 0: a zero's sign must not depend on rows with weight 0.
      *reinterpret_cast<float2*>(params.scratch.o + state * shape.head_dim + d) = {
          __fadd_rn(__fmul_rn(tile.o[part][n][2 * half], sums.factor), 0.0f),
          __fadd_rn(__fmul_rn(tile.o[part][n][2 * half + 1], sums.factor), 0.0f)};
    }
  });
}

// body(q, t): with values of the types of q and of the rows.
template <typename Body>
void with_types(const AttentionShape& shape, const Body& body) {
  if (shape.k_type == DType::kBF16) return body(__nv_bfloat16(), __nv_bfloat16());
  if (shape.type == DType::kBF16) return body(__nv_bfloat16(), __half());
  body(__half(), __half());
}

}  // namespace

void wide_prefill(const PrefillAttentionParams& params, CudaStream& stream) {
  const AttentionShape& shape = params.shape;
  with_types(shape, [&](auto q, auto t) {
    using Tile = WideHeadTile<decltype(q), decltype(t), 2, 2, false>;
    const dim3 grid(static_cast<unsigned>(ceil_div(shape.queries * (shape.heads / shape.kv_heads), Tile::kRows)),
                    static_cast<unsigned>(shape.kv_heads));
    launch(prefill_wide<decltype(q), decltype(t)>, "prefill_wide", grid, Tile::kThreads, Tile::kSharedBytes, params,
           stream);
  });
}

void wide_segment_states(const PrefixAttentionParams& params, const LaunchStream& on) {
  with_types(params.shape, [&](auto q, auto t) {
    const auto launch_block = [&](auto groups, auto each) {
      using Tile = WideHeadTile<decltype(q), decltype(t), groups.value, each.value, true>;
      launch(prefix_wide<decltype(q), decltype(t), groups.value, each.value>, "prefix_wide", prefix_grid<Tile>(params),
             Tile::kThreads, Tile::kSharedBytes, params, on);
    };
    // Few rows use smaller blocks, which compute each row identically.
    using One = std::integral_constant<int, 1>;
    using Two = std::integral_constant<int, 2>;
    if (prefix_rows_of(params.shape) <= 16) return launch_block(One(), One());
    launch_block(Two(), Two());
  });
}

}  // namespace headrace::kernels::cuda
