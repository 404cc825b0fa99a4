// The chunk form (FLA, arXiv 2406.06484 and 2412.06464). With G_i the sum of g up to row i of the chunk, S the state
// before it and L_ij = beta_i (k_i . k_j) exp(G_i - G_j) for j < i:
//
//   d_i = beta_i (v_i - exp(G_i) S^T k_i) - sum over j < i of L_ij d_j
//   o_i = exp(G_i) S^T q_i + sum over j <= i of (q_i . k_j) exp(G_i - G_j) d_j
//   S <- exp(G_n) S + sum over j of exp(G_n - G_j) k_j d_j^T
//
// Decays are exponentials of differences of G, which are at most 0, so nothing overflows.
#include "kernels/cpu/multiply.h"
#include "kernels/recurrence/cpu_state.h"

namespace headrace::kernels::HEADRACE_ISA_NAMESPACE {

namespace {

constexpr int64_t kChunkRows = kDeltaChunkRows;
static_assert(kChunkRows % kLanes == 0);

// Views of a chunk's rows for one value head.
struct Chunk {
  const float *q, *k, *v;  // rows k_stride, k_stride and v_stride elements apart
  const float *beta, *g;   // rows v_heads apart
  float* o;                // as v
  int64_t k_stride, v_stride, v_heads;

  Chunk(const DeltaChunksParams& p, int64_t first_row, int64_t head) {
    k_stride = p.shape.k_heads * p.shape.k_dim;
    v_stride = p.shape.v_heads * p.shape.v_dim;
    v_heads = p.shape.v_heads;
    const int64_t key = first_row * k_stride + key_head(p.shape, head) * p.shape.k_dim;
    const int64_t value = first_row * v_stride + head * p.shape.v_dim, scalar = first_row * v_heads + head;
    q = p.q + key, k = p.k + key, v = p.v + value, o = p.o + value;
    beta = p.beta + scalar, g = p.g + scalar;
  }
};

// In double: the difference of two large sums may be the small decay of one token.
struct Decay {
  double sum[kChunkRows];  // G
};
Decay decay_of(const Chunk& chunk) {
  Decay decay;
  double sum = 0.0;
  for (int64_t i = 0; i < kChunkRows; ++i) {
    sum += chunk.g[i * chunk.v_heads];
    decay.sum[i] = sum;
  }
  return decay;
}

// exp(from - G_j), for the lanes from j on; 1 where G_j < from: a later row, which the caller masks.
HEADRACE_SIMD vf decays(double from, const Decay& decay, int64_t j) {
  float apart[kLanes];
  for (int i = 0; i < kLanes; ++i) {
    const double difference = from - decay.sum[j + i];
    apart[i] = static_cast<float>(difference < 0.0 ? difference : 0.0);
  }
  return exp(load(apart));
}

// -L, then the weights of o: both [64, 64], zero above the diagonal (and -L on it).
constexpr int64_t kMatrix = kChunkRows * kChunkRows;
float* matrices_of(const DeltaChunksParams& params, int64_t chunk, int64_t head) {
  return static_cast<float*>(params.scratch) + (chunk * params.shape.v_heads + head) * 2 * kMatrix;
}

void transpose_keys(const Chunk& chunk, int64_t k_dim, float* to) {  // [k_dim, 64]
  for (int64_t j = 0; j < kChunkRows; ++j) {
    for (int64_t i = 0; i < k_dim; ++i) to[i * kChunkRows + j] = chunk.k[j * chunk.k_stride + i];
  }
}

// out [rows, columns] = a [rows, steps] b [steps, columns], plus keep[row] * out if kKeep. `steps_of(last_row)` may be
// fewer where the rest of a is zero.
struct Product {
  const float* a;
  int64_t a_stride;
  const float* b;
  float* out;
  int64_t rows, columns, steps;
  bool lower;  // row r of a is zero from r + 1 on
};
template <bool kKeep>
void multiply_all(const Product& p, const float* keep) {
  for (int64_t row = 0; row < p.rows; row += kMaxTileRows) {
    const int64_t count = p.rows - row < kMaxTileRows ? p.rows - row : kMaxTileRows;
    Operands x = {};
    for (int64_t r = 0; r < count; ++r) {
      x.a[r] = p.a + (row + r) * p.a_stride;
      x.c[r] = p.out + (row + r) * p.columns;
      x.keep[r] = kKeep ? keep[row + r] : 0.0f;
    }
    x.b = p.b;
    x.b_stride = p.columns;
    x.steps = p.lower ? row + count : p.steps;
    multiply_any<Multiply::kFloats, kKeep, float>(x, count, p.columns);
  }
}

void matrices(const DeltaChunksParams& params, int64_t chunk_index, int64_t head) {
  const Chunk chunk(params, chunk_index * kChunkRows, head);
  const int64_t k_dim = params.shape.k_dim;
  alignas(64) float keys[kMaxDeltaKeyDim * kChunkRows];
  transpose_keys(chunk, k_dim, keys);
  float* const solve = matrices_of(params, chunk_index, head);
  float* const weights = solve + kMatrix;
  multiply_all<false>({chunk.k, chunk.k_stride, keys, solve, kChunkRows, kChunkRows, k_dim, false}, nullptr);
  multiply_all<false>({chunk.q, chunk.k_stride, keys, weights, kChunkRows, kChunkRows, k_dim, false}, nullptr);
  const Decay decay = decay_of(chunk);
  vf lane;
  for (int i = 0; i < kLanes; ++i) lane[i] = static_cast<float>(i);
  for (int64_t i = 0; i < kChunkRows; ++i) {
    const vf beta = splat(-chunk.beta[i * chunk.v_heads]);
    for (int64_t j = 0; j < kChunkRows; j += kLanes) {
      const vf before = splat(static_cast<float>(i - j)) - lane;  // i minus the column
      const vf factor = select(before < 0.0f, zero(), decays(decay.sum[i], decay, j));
      float* const l = solve + i * kChunkRows + j;
      float* const w = weights + i * kChunkRows + j;
      store(l, select(before <= 0.0f, zero(), beta * (load(l) * factor)));
      store(w, select(before < 0.0f, zero(), load(w) * factor));
    }
  }
}

// Everything that a slice's walk holds, besides the state.
struct Work {
  alignas(64) float d[kChunkRows * kColumns];
  alignas(64) float o[kChunkRows * kColumns];
  alignas(64) float keys[kMaxDeltaKeyDim * kChunkRows];  // [k_dim, 64], each times exp(G_n - G_j)
  float grown[kChunkRows];                               // exp(G_i)
  float keep[kMaxDeltaKeyDim];                           // exp(G_n)
};

// d of all rows, from S^T k in w.d.
void solve_rows(const Chunk& chunk, const float* lower, const Columns& columns, int64_t first_column, Work& w) {
  for (int64_t i = 0; i < kChunkRows; ++i) {
    const Vectors seen = load_row(w.d + i * kColumns);
    Vectors d = load_columns(chunk.v + i * chunk.v_stride + first_column, columns);
    const float beta = chunk.beta[i * chunk.v_heads];
    for (int j = 0; j < kVectors; ++j) d.of[j] = (d.of[j] - seen.of[j] * w.grown[i]) * beta;
    for (int64_t before = 0; before < i; ++before) {
      const vf l = splat(lower[i * kChunkRows + before]);
      const Vectors earlier = load_row(w.d + before * kColumns);
      for (int j = 0; j < kVectors; ++j) d.of[j] = fma(l, earlier.of[j], d.of[j]);
    }
    store_row(w.d + i * kColumns, d);
  }
}

void scale_keys(const Chunk& chunk, const Decay& decay, int64_t k_dim, Work& w) {
  transpose_keys(chunk, k_dim, w.keys);
  const double end = decay.sum[kChunkRows - 1];
  for (int64_t j = 0; j < kChunkRows; j += kLanes) {
    const vf factor = decays(end, decay, j);
    for (int64_t i = 0; i < k_dim; ++i) {
      float* const at = w.keys + i * kChunkRows + j;
      store(at, load(at) * factor);
    }
  }
  for (int64_t i = 0; i < kChunkRows; ++i) w.grown[i] = exp_of(static_cast<float>(decay.sum[i]));
  for (int64_t i = 0; i < k_dim; ++i) w.keep[i] = w.grown[kChunkRows - 1];
}

void walk_chunk(const DeltaChunksParams& params, int64_t index, const DeltaSlice& slice, State& state, Work& w) {
  const Chunk chunk(params, index * kChunkRows, slice.head);
  const int64_t k_dim = params.shape.k_dim;
  const Columns columns = columns_of(params.shape, slice);
  const float* const lower = matrices_of(params, index, slice.head);
  scale_keys(chunk, decay_of(chunk), k_dim, w);
  multiply_all<false>({chunk.k, chunk.k_stride, state.of, w.d, kChunkRows, kColumns, k_dim, false}, nullptr);
  multiply_all<false>({chunk.q, chunk.k_stride, state.of, w.o, kChunkRows, kColumns, k_dim, false}, nullptr);
  solve_rows(chunk, lower, columns, slice.first_column, w);
  multiply_all<true>({lower + kMatrix, kChunkRows, w.d, w.o, kChunkRows, kColumns, kChunkRows, true}, w.grown);
  multiply_all<true>({w.keys, kChunkRows, w.d, state.of, k_dim, kColumns, kChunkRows, false}, w.keep);
  for (int64_t i = 0; i < kChunkRows; ++i) {
    store_columns(chunk.o + i * chunk.v_stride + slice.first_column, load_row(w.o + i * kColumns), columns);
  }
}

void walk_chunks(const DeltaChunksParams& params, const DeltaSlice& slice) {
  const DeltaShape& shape = params.shape;
  float* const head_state = params.state + slice.head * shape.k_dim * shape.v_dim;
  const Columns columns = columns_of(shape, slice);
  State state;
  Work work;
  load_state(state, shape, slice, head_state);
  const int64_t chunks = params.rows / kChunkRows;
  for (int64_t chunk = 0; chunk < chunks; ++chunk) walk_chunk(params, chunk, slice, state, work);
  for (int64_t row = chunks * kChunkRows; row < params.rows; ++row) {
    const Chunk token(params, row, slice.head);
    const Stepped stepped = step(
        state, {token.q, token.k, exp_of(*token.g), *token.beta, load_columns(token.v + slice.first_column, columns)});
    store_columns(token.o + slice.first_column, stepped.o, columns);
  }
  store_state(state, shape, slice, head_state);
}

}  // namespace

const DeltaChunkKernels delta_chunk_kernels = {matrices, walk_chunks};

}  // namespace headrace::kernels::HEADRACE_ISA_NAMESPACE
