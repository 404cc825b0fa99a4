// Gated DeltaNet in the shape of Qwen3.5-27B, whatever the model of the other cases: 48 layers with 16 key heads and 48
// value heads of 128.
#include <algorithm>
#include <numeric>

#include "bench/kernel_bench.h"
#include "kernels/recurrence/op.h"

namespace headrace::bench {
namespace {

constexpr DeltaShape kShape = {16, 48, 128, 128, true};
constexpr int64_t kLayers = 48, kMostPassRows = 256;
constexpr int64_t kState = kShape.v_heads * kShape.k_dim * kShape.v_dim;

// A binary tree, level by level: the pass row of each position of each row's path.
std::vector<int32_t> binary_paths(int64_t rows) {
  std::vector<int32_t> paths(static_cast<size_t>(rows * rows));
  for (int64_t row = 0; row < rows; ++row) {
    std::vector<int32_t> path;
    for (int64_t node = row + 1; node > 0; node /= 2) path.insert(path.begin(), static_cast<int32_t>(node - 1));
    std::copy(path.begin(), path.end(), paths.begin() + row * rows);
  }
  return paths;
}
std::vector<int32_t> depths(int64_t rows) {
  std::vector<int32_t> of_rows;
  for (int64_t row = 0; row < rows; ++row) {
    int32_t depth = -1;
    for (int64_t node = row + 1; node > 0; node /= 2) ++depth;
    of_rows.push_back(depth);
  }
  return of_rows;
}

// A chain: the same, each row's path is all rows before it.
std::vector<int32_t> chain_paths(int64_t rows) {
  std::vector<int32_t> paths(static_cast<size_t>(rows * rows));
  for (int64_t row = 0; row < rows; ++row) std::iota(&paths[row * rows], &paths[row * rows] + row + 1, 0);
  return paths;
}
std::vector<int32_t> ascending(int64_t rows) {
  std::vector<int32_t> of_rows(static_cast<size_t>(rows));
  std::iota(of_rows.begin(), of_rows.end(), 0);
  return of_rows;
}

// The arrays of one layer's call, beside the state.
struct Arrays {
  DeviceBuffer in, conv, conv_weight, decay, bias, q, k, v, beta, g, d, o, m;

  Arrays(KernelBench& bench, int64_t rows)
      : in(bench.normal(rows * kShape.in_width(), bench.type)),
        conv(bench.normal(3 * kShape.channels(), bench.type)),
        conv_weight(bench.normal(4 * kShape.channels(), DType::kF32)),
        decay(bench.normal(kShape.v_heads, DType::kF32, 0.01f)),
        bias(bench.normal(kShape.v_heads, DType::kF32)),
        q(bench.normal(rows * kShape.k_width(), DType::kF32, 0.01f)),
        k(bench.normal(rows * kShape.k_width(), DType::kF32, 0.05f)),
        v(bench.normal(rows * kShape.v_width(), DType::kF32)),
        beta(bench.zeros(rows * kShape.v_heads * 4)),
        g(bench.zeros(rows * kShape.v_heads * 4)),
        d(bench.zeros(rows * kShape.v_width() * 4)),
        o(bench.zeros(rows * kShape.v_width() * 4)),
        m(bench.zeros(rows * kShape.channels() * static_cast<int64_t>(bench.element()))) {}

  DeltaRows stored() const { return {m.data(), k.as<float>(), d.as<float>(), g.as<float>()}; }
};

void around(KernelBench& bench, int64_t rows, const Arrays& a) {
  const auto element = static_cast<int64_t>(bench.element());
  const DeviceBuffer out = bench.zeros(rows * kShape.v_width() * element),
                     norm = bench.normal(kShape.v_dim, DType::kF32);
  DeltaInputsParams inputs{};
  inputs.shape = kShape;
  inputs.in = a.in.data(), inputs.conv = a.conv.data(), inputs.conv_weight = a.conv_weight.as<float>();
  inputs.decay = a.decay.as<float>(), inputs.dt_bias = a.bias.as<float>();
  inputs.stored = a.stored();
  inputs.q = a.q.as<float>(), inputs.v = a.v.as<float>(), inputs.beta = a.beta.as<float>();
  inputs.type = bench.type;
  inputs.rows = inputs.pass_rows = rows, inputs.in_stride = kShape.in_width();
  bench.measure({{"bench", "delta_inputs"}, {"rows", rows}}, {real(rows * kShape.channels() * (2 * element + 4)), 0},
                [&] { delta_inputs(inputs, bench.stream()); });
  const DeltaOutputParams output{kShape,     a.o.as<float>(), a.in.data(), norm.as<float>(),  out.data(),
                                 bench.type, bench.type,      rows,        kShape.in_width(), 1e-6f};
  bench.measure({{"bench", "delta_output"}, {"rows", rows}}, {real(rows * kShape.v_width() * (2 * element + 4)), 0},
                [&] { delta_output(output, bench.stream()); });
}

// Every call has another layer's state, as a step has.
void decode(KernelBench& bench, int64_t rows, const Arrays& a, bool chain) {
  const DeviceBuffer states = bench.normal(kLayers * kState, DType::kF32, 0.1f);
  const DeviceBuffer positions = bench.upload(chain ? ascending(rows) : depths(rows)),
                     path = bench.upload(chain ? chain_paths(rows) : binary_paths(rows)), committed = bench.same(1, 0);
  DeltaRecurrenceParams params{};
  params.shape = kShape;
  params.q = a.q.as<float>(), params.v = a.v.as<float>(), params.beta = a.beta.as<float>();
  params.path = {positions.as<int32_t>(), committed.as<int32_t>(), path.as<int32_t>(), rows};
  params.stored = a.stored();
  params.o = a.o.as<float>();
  params.rows = params.pass_rows = rows;
  int64_t turn = 0;
  bench.measure({{"bench", chain ? "delta_recurrence of a chain" : "delta_recurrence"}, {"rows", rows}},
                {real(kState * 4), 0}, [&] {
                  params.state = states.as<float>() + turn++ % kLayers * kState;
                  delta_recurrence(params, bench.stream());
                });
}

void commit(KernelBench& bench, int64_t rows) {
  const auto element = static_cast<int64_t>(bench.element());
  const DeviceBuffer states = bench.zeros(kLayers * kState * 4),
                     conv = bench.zeros(kLayers * 3 * kShape.channels() * element);
  const DeviceBuffer k = bench.zeros(kLayers * rows * kShape.k_width() * 4),
                     d = bench.zeros(kLayers * rows * kShape.v_width() * 4),
                     g = bench.zeros(kLayers * rows * kShape.v_heads * 4),
                     m = bench.zeros(kLayers * rows * kShape.channels() * element), source = bench.ascending(rows);
  const DeltaCommitParams params{kShape,
                                 {m.data(), k.as<float>(), d.as<float>(), g.as<float>()},
                                 source.as<int32_t>(),
                                 states.as<float>(),
                                 conv.data(),
                                 bench.type,
                                 kLayers,
                                 rows,
                                 rows};
  const int64_t stored = rows * (kShape.k_width() + kShape.v_width()) * 4;
  bench.measure({{"bench", str("delta_commit of ", kLayers, " layers")}, {"rows", rows}},
                {real(kLayers * (2 * kState * 4 + stored)), 0}, [&] { delta_commit(params, bench.stream()); });
}

void chunks(KernelBench& bench, int64_t rows, const Arrays& a) {
  const DeviceBuffer state = bench.zeros(kState * 4),
                     scratch = bench.zeros(static_cast<int64_t>(delta_chunks_scratch_bytes(kShape, rows)) + 1);
  const DeltaChunksParams params{
      kShape,      a.q.as<float>(),   a.k.as<float>(), a.v.as<float>(), a.beta.as<float>(), a.g.as<float>(),
      a.in.data(), state.as<float>(), a.conv.data(),   a.o.as<float>(), scratch.data(),     bench.type,
      rows,        kShape.in_width()};
  // q, k and the columns of the state; the matrices, d and the weights' product.
  const int64_t of_row = 3 * kShape.k_dim * kShape.v_dim + kDeltaChunkRows * (2 * kShape.k_dim + 2 * kShape.v_dim) / 2;
  const int64_t bytes = rows * (2 * kShape.k_width() + 2 * kShape.v_width()) * 4 + 2 * kState * 4;
  bench.measure({{"bench", "delta_chunks"}, {"rows", rows}}, {real(bytes), 2 * real(rows * kShape.v_heads * of_row)},
                [&] { delta_chunks(params, bench.stream()); });
}

void recurrence(KernelBench& bench, int64_t rows) {
  const Arrays arrays(bench, rows);
  around(bench, rows, arrays);
  if (rows <= kMostPassRows) {
    decode(bench, rows, arrays, false);
    if (rows > 1) decode(bench, rows, arrays, true);
    commit(bench, rows);
  }
  if (rows >= kDeltaChunkRows) chunks(bench, rows, arrays);
}

}  // namespace

const std::vector<Case> kRecurrenceCases = {{"recurrence", recurrence, 1, 8192}};

}  // namespace headrace::bench
