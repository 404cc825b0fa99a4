#include "runtime/layers/int8_forward.h"

#include <algorithm>

#include "offload/device/trace.h"
#include "runtime/layers/experts.h"

namespace headrace {
namespace {

// Experts beside a dense part are multiplied as they are stored.
bool in_int8(const LayerSpec& layer) { return layer.ffn.experts && !layer.ffn.experts->beside; }

struct Size {
  int64_t n, k;
};
struct Sizes {
  Size qkv, output, gate_up, down;
};
// No bytes for a matrix that no layer has.
uint64_t values_bytes(Backend backend, int64_t rows, int64_t cols) {
  return rows == 0 || cols == 0 ? 0 : int8_values_bytes(backend, rows, cols);
}
// The largest of each, over all layers, which differ in the rows or in the columns of a matrix alone.
Sizes largest_sizes(const ModelConfig& config) {
  Sizes most{};
  const auto grow = [](Size* size, Size by) { *size = {std::max(size->n, by.n), std::max(size->k, by.k)}; };
  for (const LayerSpec& layer : config.layers) {
    grow(&most.qkv, {layer.in_width(), config.hidden});
    grow(&most.output, {config.hidden, layer.out_width()});
    if (layer.ffn.width == 0) continue;  // int8_experts.h
    grow(&most.gate_up, {2 * layer.ffn.width, config.hidden});
    grow(&most.down, {config.hidden, layer.ffn.width});
  }
  return most;
}

struct Int8Product {
  const Weight& weight;
  const Int8Rows& converted;
  const void *bias, *residual;
  void* out;
};
// Of `input`, which has been converted.
void multiply(const Pass& pass, const Int8Layer& matrices, const Int8Product& p) {
  const DType type = pass.type;
  if (matrices.lean) int8_weight({.weight = p.weight, .type = type, .out = p.converted}, *pass.stream);
  int8_product({.x = matrices.input,
                .weight = p.converted,
                .bias = p.bias,
                .residual = p.residual,
                .out = p.out,
                .type = type,
                .rows = pass.rows,
                .n = p.weight.rows(),
                .k = p.weight.cols},
               *pass.stream);
}

// Converts x [rows, cols], or silu(gate) * up of its halves, to the input of the next product.
struct Input {
  const void* x;
  Int8Input kind;
  int64_t cols;
  const void* norm = nullptr;
  Activation activation = Activation::kSilu;
};
void convert_input(const Pass& pass, const Int8Layer& matrices, const Input& input) {
  int8_activation({.x = input.x,
                   .input = input.kind,
                   .norm = input.norm,
                   .eps = pass.eps,
                   .type = pass.type,
                   .rows = pass.rows,
                   .cols = input.cols,
                   .out = matrices.input,
                   .activation = input.activation},
                  *pass.stream);
}

// hidden = (hidden + the product) * scalar; the product is normalised before unless `norm` is null. REQUIRES: without a
// norm there is no scalar.
void add_product(const Pass& pass, const Int8Layer& matrices, Int8Product p, const void* norm, void* hidden,
                 const void* scalar = nullptr) {
  CHECK(norm != nullptr || scalar == nullptr);
  p.residual = norm == nullptr ? hidden : nullptr;
  p.out = norm == nullptr ? hidden : pass.work.branch;
  multiply(pass, matrices, p);
  if (norm != nullptr) {
    add_branch(pass, {.norm = norm, .cols = p.weight.rows(), .residual = hidden, .out = hidden, .scalar = scalar});
  }
}

}  // namespace

uint64_t int8_threads_bytes(const ModelConfig& config, Backend backend, int threads) {
  const Sizes sizes = largest_sizes(config);
  const int64_t most =
      std::max({sizes.qkv.k, sizes.output.k, sizes.gate_up.k, sizes.down.k, LayerWidths::of(config).expert_ffn});
  return static_cast<uint64_t>(threads) * int8_thread_bytes(backend, most);
}

Int8Layer carve_int8_layer(const ModelConfig& config, const Int8LayerSize& size, BumpAllocator& allocator) {
  const Sizes sizes = largest_sizes(config);
  Int8Layer layer{.lean = size.lean};
  struct Matrix {
    Int8Rows* rows;
    Size size;
  };
  const Matrix matrices[] = {{&layer.qkv, sizes.qkv},
                             {&layer.output, sizes.output},
                             {&layer.gate_up, sizes.gate_up},
                             {&layer.down, sizes.down}};
  uint64_t largest = 0;
  int64_t most_n = 0, most_k = 0;
  for (const Matrix& matrix : matrices) {
    largest = std::max(largest, values_bytes(size.backend, matrix.size.n, matrix.size.k));
    most_n = std::max(most_n, matrix.size.n);
    most_k = std::max(most_k, matrix.size.k);
  }
  const auto values = [&](uint64_t bytes) { return reinterpret_cast<int8_t*>(allocator.take_bytes(bytes)); };
  if (size.lean) {
    const Int8Rows shared = {.values = values(largest), .scales = allocator.take<float>(most_n)};
    for (const Matrix& matrix : matrices) *matrix.rows = shared;
  } else {
    for (const Matrix& matrix : matrices) {
      matrix.rows->values = values(values_bytes(size.backend, matrix.size.n, matrix.size.k));
      matrix.rows->scales = allocator.take<float>(matrix.size.n);
    }
  }
  uint64_t input = 0;
  for (const Matrix& matrix : matrices) {
    input = std::max(input, values_bytes(size.backend, size.rows, matrix.size.k));
  }
  layer.input = {.values = values(input), .scales = allocator.take<float>(size.rows)};
  layer.experts = carve_int8_experts(config, size, allocator);
  return layer;
}

void int8_layer_weights(const LayerWeights& w, DType type, const Int8Layer& to, Stream& stream) {
  if (to.lean) return;
  const TraceSpan span(stream, "weights to int8");
  int8_weight({.weight = w.qkv, .type = type, .out = to.qkv}, stream);
  int8_weight({.weight = w.output, .type = type, .out = to.output}, stream);
  if (in_int8(w.spec)) int8_expert_weights(w, type, to.experts, stream);
  if (w.spec.ffn.width == 0) return;
  int8_weight({.weight = w.gate_up, .type = type, .out = to.gate_up}, stream);
  int8_weight({.weight = w.down, .type = type, .out = to.down}, stream);
}

void int8_qkv_product(const Pass& pass, const LayerWeights& w, const Int8Layer& matrices, const void* hidden) {
  const TraceSpan span(*pass.stream, "qkv");
  CHECK(pass.hidden_type == pass.type);
  convert_input(pass, matrices, {hidden, Int8Input::kNormed, w.qkv.cols, w.input_norm});
  multiply(pass, matrices, {w.qkv, matrices.qkv, w.qkv_bias, nullptr, pass.work.qkv});
}

void int8_layer_output(const Pass& pass, const LayerWeights& w, const Int8Layer& matrices, void* hidden) {
  const TraceSpan span(*pass.stream, "output, mlp");
  convert_input(pass, matrices, {pass.work.attention, Int8Input::kPlain, w.output.cols});
  add_product(pass, matrices, {w.output, matrices.output, w.output_bias, nullptr, nullptr}, w.output_norm, hidden);
  const std::optional<ExpertsSpec>& experts = w.spec.ffn.experts;
  const auto activate = [&] {
    // A shared expert's input has been converted with that of the others.
    if (!experts || !experts->shared)
      convert_input(pass, matrices, {hidden, Int8Input::kNormed, w.gate_up.cols, w.ffn_norm});
    multiply(pass, matrices, {w.gate_up, matrices.gate_up, nullptr, nullptr, pass.work.gate_up});
    convert_input(pass, matrices,
                  {pass.work.gate_up, Int8Input::kGated, w.spec.ffn.width, nullptr, w.spec.ffn.activation});
  };
  const auto dense = [&] {
    activate();
    multiply(pass, matrices, {w.down, matrices.down, nullptr, nullptr, pass.work.branch});
  };
  if (in_int8(w.spec)) return int8_experts_forward(pass, w, matrices.experts, matrices.input, dense, hidden);
  if (experts) return experts_beside(pass, w, dense, hidden);
  activate();
  add_product(pass, matrices, {w.down, matrices.down, nullptr, nullptr, nullptr}, w.down_norm, hidden, w.scalar);
}

}  // namespace headrace
