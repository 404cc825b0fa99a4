// Products in 8 bits: the conversion of weights and activations, and the product of each matrix of a layer.

#include "bench/kernel_bench.h"
#include "kernels/int8/op.h"

namespace headrace::bench {
namespace {

// A matrix or activations in 8 bits.
class Converted {
 public:
  Converted(KernelBench& bench, int64_t rows, int64_t cols)
      : values_(bench.zeros(static_cast<int64_t>(int8_values_bytes(bench.stream().backend(), rows, cols)))),
        scales_(bench.zeros(rows * 4)) {}
  Int8Rows view() const { return {values_.as<int8_t>(), scales_.as<float>()}; }

 private:
  DeviceBuffer values_, scales_;
};

struct Matrix {
  const char* name;
  int64_t n, k;
  Int8Input input;
  bool residual;
};

std::vector<Matrix> matrices(const KernelBench& bench) {
  const BenchShape& c = bench.shape;
  return {{"qkv", bench.q_width() + 2 * bench.kv_width(), c.hidden, Int8Input::kNormed, false},
          {"out", c.hidden, bench.q_width(), Int8Input::kPlain, true},
          {"gate_up", 2 * c.ffn, c.hidden, Int8Input::kNormed, false},
          {"down", c.hidden, c.ffn, Int8Input::kGated, true}};
}

WeightType stored_type(const KernelBench& bench) { return bench.weights.value_or(plain_weight_type(bench.type)); }

// Whatever the bits of normal values are as blocks, they are finite there, too.
DeviceBuffer stored_weights(KernelBench& bench, int64_t n, int64_t k) {
  const auto bytes = static_cast<int64_t>(stored_weight_bytes(bench.stream().backend(), stored_type(bench), n, k));
  const int64_t element = static_cast<int64_t>(bench.weights ? 2 : bench.element());
  return bench.normal(bytes / element, bench.weights ? DType::kBF16 : bench.type, 0.02f);
}

void weights_of(KernelBench& bench, int64_t) {
  const WeightType type = stored_type(bench);
  for (const auto& [name, n, k, input, residual] : matrices(bench)) {
    if (k % weight_type_info(type).block_elements != 0) continue;
    const DeviceBuffer from = stored_weights(bench, n, k);
    const Converted to(bench, n, k);
    const Int8WeightParams params{{{{from.data(), type, n}, {}, {}}, 1, k}, bench.type, to.view()};
    const auto bytes = static_cast<int64_t>(stored_weight_bytes(bench.stream().backend(), type, n, k)) + n * k;
    bench.measure({{"bench", str("int8_weight ", name, " ", n, "x", k)}, {"weights", weight_type_info(type).name}},
                  {real(bytes), 0}, [&] { int8_weight(params, bench.stream()); });
  }
}

void activations(KernelBench& bench, int64_t rows) {
  for (const auto& [name, n, k, input, residual] : matrices(bench)) {
    const int64_t inputs = input == Int8Input::kGated ? 2 : 1;
    const DeviceBuffer x = bench.normal(rows * inputs * k, bench.type), norm = bench.normal(k, bench.type);
    const Converted to(bench, rows, k);
    Int8ActivationParams params{};
    params.x = x.data();
    params.input = input;
    params.norm = input == Int8Input::kNormed ? norm.data() : nullptr;
    params.eps = 1e-5f;
    params.type = bench.type;
    params.rows = rows;
    params.cols = k;
    params.out = to.view();
    const int64_t bytes = rows * k * (inputs * static_cast<int64_t>(bench.element()) + 1);
    bench.measure({{"bench", str("int8_activation ", name, " of ", k)}, {"rows", rows}}, {real(bytes), 0},
                  [&] { int8_activation(params, bench.stream()); });
  }
}

void int8_products(KernelBench& bench, int64_t rows) {
  for (const auto& [name, n, k, input, residual] : matrices(bench)) {
    const DeviceBuffer x = bench.normal(rows * k, bench.type), w = bench.normal(n * k, bench.type, 0.02f);
    const int64_t element = static_cast<int64_t>(bench.element());
    const DeviceBuffer out = bench.zeros(rows * n * element), added = bench.zeros(rows * n * element);
    const Converted x8(bench, rows, k), w8(bench, n, k);
    Int8ActivationParams activation{};
    activation.x = x.data();
    activation.type = bench.type;
    activation.rows = rows;
    activation.cols = k;
    activation.out = x8.view();
    int8_activation(activation, bench.stream());
    int8_weight({plain_weight(w.data(), bench.type, n, k), bench.type, w8.view()}, bench.stream());
    Int8ProductParams params{};
    params.x = x8.view();
    params.weight = w8.view();
    params.residual = residual ? added.data() : nullptr;
    params.out = out.data();
    params.type = bench.type;
    params.rows = rows;
    params.n = n;
    params.k = k;
    const int64_t bytes = (n + rows) * k + rows * n * element * (residual ? 2 : 1);
    // Its operations have another ceiling than those of bf16.
    bench.measure({{"bench", str("int8_product ", name, " ", n, "x", k)}, {"rows", rows}, {"bytes", bytes}},
                  {0, 2 * real(rows * n * k)}, [&] { int8_product(params, bench.stream()); });
  }
}

}  // namespace

const std::vector<Case> kInt8Cases = {{"int8_weight", weights_of, 0, 0},
                                      {"int8_activation", activations, 1, 8192},
                                      {"int8_product", int8_products, 1, 8192}};

}  // namespace headrace::bench
