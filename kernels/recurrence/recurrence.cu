// The recurrence along paths, the commit, and what prefill leaves to the recurrence. A warp has eight columns of a
// value head and walks alone; nothing is shared between warps.
#include <type_traits>

#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/rows.cuh"
#include "kernels/recurrence/bodies.h"
#include "kernels/recurrence/cuda.cuh"
#include "kernels/recurrence/state.cuh"

namespace headrace::kernels::cuda {

namespace {

constexpr int kThreads = 128;

// ---- The recurrence -------------------------------------------------------------------------------------------------

// The state before call row `row`: the committed one, or the one ahead, and the rows of the path behind it.
template <int kRows>
__device__ void state_before(const DeltaRecurrenceParams& p, const WarpPlace& place, const int32_t* path, int64_t last,
                             WarpState<kRows>& state) {
  const int64_t length = p.ahead.state != nullptr && *p.ahead.row >= 0 ? *p.ahead.length : 0;
  const bool from_ahead = length > 0 && length <= last && path[length - 1] == *p.ahead.row;
  const int64_t begin = from_ahead ? length : 0;
  state.load(p.shape, (from_ahead ? p.ahead.state : p.state) + place.head * p.shape.k_dim * p.shape.v_dim, place);
  replay_rows<false>(state, p.shape, p.stored, place.head, place, last - begin,
                     [&](int64_t j) { return path[begin + j]; });  // the next call row is in the registers
}

// A call row and its place in the tree.
template <int kRows>
struct CallRow {
  int64_t own, parent, last;  // pass rows; parent -1: the committed state. last: its ancestors in the pass
  Token<kRows> token;

  __device__ void load(const DeltaRecurrenceParams& p, const WarpPlace& place, int64_t row) {
    const DeltaShape& shape = p.shape;
    const int32_t* const path = p.path.path + row * p.path.path_stride;
    last = p.path.positions[row] - *p.path.committed;
    own = row + (p.path.first != nullptr ? *p.path.first : 0);
    device_check(last >= 0 && last < p.path.path_stride && own < p.pass_rows && path[last] == own);
    parent = last > 0 ? path[last - 1] : -1;
    const int64_t value = row * shape.v_heads + place.head, key = key_head(shape, place.head) * shape.k_dim;
    token.load(
        {p.q + row * k_width(shape) + key, p.stored.k + own * k_width(shape) + key,
         p.v + value * shape.v_dim + place.column, p.beta + value, p.stored.g + own * shape.v_heads + place.head},
        place.part, shape.k_dim);
  }
};

// The states behind the rows that a warp computed last, in shared memory: a sibling of one of the next rows starts
// there.
template <int kRows>
struct LastStates {
  static constexpr int kCount = 3;
  static constexpr int kBytes = kThreads * kCount * kRows * static_cast<int>(sizeof(float));
  float* of_lane;
  int64_t rows[kCount];

  __device__ explicit LastStates(float* shared) : of_lane(shared + threadIdx.x) {
#pragma unroll
    for (int slot = 0; slot < kCount; ++slot) rows[slot] = -1;
  }
  __device__ void keep(int64_t turn, int64_t row, const WarpState<kRows>& state) {
#pragma unroll
    for (int slot = 0; slot < kCount; ++slot) {
      if (turn % kCount != slot) continue;
      rows[slot] = row;
#pragma unroll
      for (int i = 0; i < kRows; ++i) of_lane[(slot * kRows + i) * kThreads] = state.s[i];
    }
  }
  __device__ bool find(int64_t row, WarpState<kRows>& state) const {
#pragma unroll
    for (int slot = 0; slot < kCount; ++slot) {
      if (row < 0 || rows[slot] != row) continue;
#pragma unroll
      for (int i = 0; i < kRows; ++i) state.s[i] = of_lane[(slot * kRows + i) * kThreads];
      return true;
    }
    return false;
  }
};

// Grid: blocks of warps. Shared memory: LastStates, if there is more than one row.
template <int kRows>
__global__ void __launch_bounds__(kThreads) delta_recurrence_kernel(DeltaRecurrenceParams p) {
  extern __shared__ __align__(16) unsigned char shared[];
  const DeltaShape& shape = p.shape;
  const WarpPlace place = warp_place(shape);
  if (place.head >= shape.v_heads) return;
  LastStates<kRows> states(reinterpret_cast<float*>(shared));
  WarpState<kRows> state;
  CallRow<kRows> next;
  next.load(p, place, 0);
  int64_t held = -2;  // the pass row whose state is held; -1: the committed one
#pragma unroll 1
  for (int64_t row = 0; row < p.rows; ++row) {
    const CallRow<kRows> call = next;
    if (row + 1 < p.rows) next.load(p, place, row + 1);
    if (held != call.parent && !states.find(call.parent, state)) {
      state_before(p, place, p.path.path + row * p.path.path_stride, call.last, state);
    }
    const auto stepped = state.step(call.token);
    if (place.part == 0) {
      p.stored.d[(call.own * shape.v_heads + place.head) * shape.v_dim + place.column] = stepped.d;
      p.o[(row * shape.v_heads + place.head) * shape.v_dim + place.column] = stepped.o;
    }
    __syncwarp();  // other lanes may read d for a later row's replay
    if (row + 1 < p.rows) states.keep(row, call.own, state);
    held = call.own;
  }
}

// ---- Commit ---------------------------------------------------------------------------------------------------------

template <int kRows>
__global__ void __launch_bounds__(kThreads) delta_commit_kernel(DeltaCommitParams p) {
  const DeltaShape& shape = p.shape;
  const WarpPlace place = warp_place(shape);
  if (place.head >= p.layers * shape.v_heads) return;
  const int64_t layer = place.head / shape.v_heads, head = place.head % shape.v_heads;
  float* const head_state = p.state + place.head * shape.k_dim * shape.v_dim;
  WarpState<kRows> state;
  state.load(shape, head_state, place);
  replay_rows<true>(state, shape, p.stored, head, place, p.count, [&](int64_t i) {
    const int64_t source = p.source[i];
    device_check(source >= 0 && source < p.pass_rows);
    return layer * p.pass_rows + source;
  });
  state.store(shape, head_state, place);
}

// ---- Prefill: rows behind the last whole chunk ----------------------------------------------------------------------

template <int kRows>
__global__ void __launch_bounds__(kThreads) delta_remainder_kernel(DeltaChunksParams p, int64_t begin) {
  const DeltaShape& shape = p.shape;
  const WarpPlace place = warp_place(shape);
  if (place.head >= shape.v_heads) return;
  const int64_t key = key_head(shape, place.head) * shape.k_dim;
  float* const head_state = p.state + place.head * shape.k_dim * shape.v_dim;
  WarpState<kRows> state;
  state.load(shape, head_state, place);
  Token<kRows> next;
  const auto load = [&](int64_t row) {
    const int64_t value = row * shape.v_heads + place.head;
    next.load({p.q + row * k_width(shape) + key, p.k + row * k_width(shape) + key,
               p.v + value * shape.v_dim + place.column, p.beta + value, p.g + value},
              place.part, shape.k_dim);
  };
  load(begin);
#pragma unroll 1
  for (int64_t row = begin; row < p.rows; ++row) {
    const Token<kRows> token = next;
    if (row + 1 < p.rows) load(row + 1);
    const auto stepped = state.step(token);
    if (place.part == 0) p.o[(row * shape.v_heads + place.head) * shape.v_dim + place.column] = stepped.o;
  }
  state.store(shape, head_state, place);
}

// ---- The convolution state ------------------------------------------------------------------------------------------

// m behind the convolution state: pass rows of a list, or rows that follow one another.
struct ConvMove {
  void* conv;             // [layers, 3, C]
  const void* m;          // [layers, layer_rows, C], rows m_stride apart
  const int32_t* source;  // [count]; null: the layer's first `count` rows
  DType type;
  int64_t channels, m_stride, layer_rows, count;
};

// Grid: layers x blocks of channels. A thread reads all of its channel before it writes.
__global__ void __launch_bounds__(kThreads) move_conv_kernel(ConvMove p) {
  const int64_t channel = static_cast<int64_t>(blockIdx.y) * kThreads + threadIdx.x, layer = blockIdx.x;
  if (channel >= p.channels) return;
  const int64_t conv = layer * kDeltaConvRows * p.channels + channel;
  float kept[kDeltaConvRows];
#pragma unroll
  for (int i = 0; i < kDeltaConvRows; ++i) {
    const int64_t from = p.count + i - kDeltaConvRows;
    if (from < 0) {
      kept[i] = load_one(p.type, p.conv, conv + (p.count + i) * p.channels);
    } else {
      const int64_t row = layer * p.layer_rows + (p.source != nullptr ? p.source[from] : from);
      kept[i] = load_one(p.type, p.m, row * p.m_stride + channel);
    }
  }
#pragma unroll
  for (int i = 0; i < kDeltaConvRows; ++i) store_one(p.type, p.conv, conv + i * p.channels, kept[i]);
}

void move_conv(const ConvMove& move, int64_t layers, Stream& stream) {
  launch_on(cuda_stream(stream), "move_conv", {layers, ceil_div(move.channels, kThreads), kThreads}, move_conv_kernel,
            move);
}

// =====================================================================================================================

// Calls body with the rows that a lane has, as an integral constant.
template <typename Body>
void with_rows(int64_t k_dim, const Body& body) {
  if (k_dim <= 8 * kWarpParts) {
    body(std::integral_constant<int, 8>());
  } else if (k_dim <= 16 * kWarpParts) {
    body(std::integral_constant<int, 16>());
  } else {
    body(std::integral_constant<int, 32>());
  }
}
static_assert(kMaxDeltaKeyDim == 32 * kWarpParts);

Grid warps_of(const DeltaShape& shape, int64_t layers = 1) {
  const int64_t warps = layers * shape.v_heads * (shape.v_dim / kWarpColumns);
  return {ceil_div(warps * 32, kThreads), 1, kThreads};
}

}  // namespace

void delta_recurrence(const DeltaRecurrenceParams& params, Stream& stream) {
  with_rows(params.shape.k_dim, [&](auto rows) {
    Grid grid = warps_of(params.shape);
    if (params.rows > 1) grid.shared_bytes = LastStates<rows()>::kBytes;
    launch_on(cuda_stream(stream), "delta_recurrence", grid, delta_recurrence_kernel<rows()>, params);
  });
}

void delta_commit(const DeltaCommitParams& params, Stream& stream) {
  with_rows(params.shape.k_dim, [&](auto rows) {
    launch_on(cuda_stream(stream), "delta_commit", warps_of(params.shape, params.layers), delta_commit_kernel<rows()>,
              params);
  });
  if (params.conv == nullptr) return;
  const int64_t channels = params.shape.channels();
  move_conv(
      {params.conv, params.stored.m, params.source, params.type, channels, channels, params.pass_rows, params.count},
      params.layers, stream);
}

void delta_remainder(const DeltaChunksParams& params, Stream& stream) {
  const int64_t begin = params.rows / kDeltaChunkRows * kDeltaChunkRows;
  if (begin < params.rows) {
    with_rows(params.shape.k_dim, [&](auto rows) {
      launch_on(cuda_stream(stream), "delta_remainder", warps_of(params.shape), delta_remainder_kernel<rows()>, params,
                begin);
    });
  }
  move_conv({params.conv, params.m, nullptr, params.type, params.shape.channels(), params.m_stride, 0, params.rows}, 1,
            stream);
}

}  // namespace headrace::kernels::cuda
