// All products of a decode step with quantised weights, recorded as one graph: what a step costs beside attention.
#include <algorithm>

#include "bench/kernel_bench.h"
#include "kernels/product/op.h"
#include "offload/device/cuda_stream.h"

namespace headrace::bench {
namespace {

// A model's weights in one buffer, tensor after tensor, and its products in their order.
class Step {
 public:
  Step(KernelBench& bench, int64_t rows) : bench_(bench), rows_(rows) {
    const BenchShape& c = bench.shape;
    const int64_t widest = std::max({2 * c.ffn, bench.q_width() + 2 * bench.kv_width(), c.vocab * 2});
    x_ = bench.normal(rows * std::max(c.hidden, c.ffn), bench.type);
    out_ = bench.zeros(rows * widest * static_cast<int64_t>(bench.element()));
    add_all();  // counts the bytes
    bytes = counted_;
    memory_ = bench.normal(counted_ / 2, DType::kBF16, 0.02f);
    products_.clear();
    counted_ = 0;
    add_all();
  }

  void run() const {
    for (const ProductParams& params : products_) product(params, bench_.stream());
  }

  int64_t bytes = 0, flops = 0;

 private:
  // As llama.cpp's Q4_K_M: v and down of half of the layers, and the head, in Q6_K.
  void add_all() {
    const BenchShape& c = bench_.shape;
    const auto type_of = [&](WeightType mixed) { return bench_.weights.value_or(mixed); };
    const WeightType usual = type_of(WeightType::kQ4K), better = type_of(WeightType::kQ6K);
    flops = 0;
    for (int64_t layer = 0; layer < c.layers; ++layer) {
      const int64_t eighth = c.layers / 8;
      const bool more = layer < eighth || layer >= c.layers - eighth || (layer - eighth) % 3 == 2;
      const int64_t q = bench_.q_width(), kv = bench_.kv_width();
      add(c.hidden, false, {{nullptr, usual, q}, {nullptr, usual, kv}, {nullptr, more ? better : usual, kv}});
      add(q, true, {{nullptr, usual, c.hidden}});
      add(c.hidden, false, {{nullptr, usual, c.ffn}, {nullptr, usual, c.ffn}});
      add(c.ffn, true, {{nullptr, more ? better : usual, c.hidden}});
    }
    add(c.hidden, false, {{nullptr, better, c.vocab}});
    products_.back().out_type = DType::kF32;
  }
  void add(int64_t k, bool residual, const std::vector<WeightPart>& parts) {
    ProductParams params{};
    params.weight.cols = k;
    for (WeightPart part : parts) {
      part.data = memory_.data() + counted_;
      counted_ +=
          static_cast<int64_t>(round_up(stored_weight_bytes(bench_.stream().backend(), part.type, part.rows, k), 256));
      params.weight.parts[params.weight.count++] = part;
    }
    params.x = x_.data();
    params.out = out_.data();
    params.residual = residual ? out_.data() : nullptr;
    params.type = bench_.type;
    params.out_type = residual ? DType::kF32 : bench_.type;  // the residual stream is f32
    params.rows = rows_;
    params.n = params.weight.rows();
    params.k = k;
    params.path = ProductPath::kDecode;
    flops += 2 * rows_ * params.n * k;
    products_.push_back(params);
  }

  KernelBench& bench_;
  const int64_t rows_;
  int64_t counted_ = 0;
  DeviceBuffer x_, out_, memory_;
  std::vector<ProductParams> products_;
};

void products_of_step(KernelBench& bench, int64_t rows) {
  if (bench.on_cpu()) return;
  Step step(bench, rows);
  CudaStream& stream = cuda_stream(bench.stream());
  step.run();  // takes the stream's memory
  stream.begin_recording();
  step.run();
  const std::unique_ptr<CudaGraph> graph = stream.end_recording();
  bench.measure({{"bench", "products of a step"},
                 {"rows", rows},
                 {"weights", bench.weights ? weight_type_info(*bench.weights).name : "Q4_K_M"}},
                {real(step.bytes), real(step.flops)}, [&] { graph->launch(); });
}

}  // namespace

const std::vector<Case> kStepCases = {{"step", products_of_step, 1, 384}};

}  // namespace headrace::bench
