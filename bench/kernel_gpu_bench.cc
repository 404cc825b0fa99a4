// The kernels between attention's on a GPU, at the shape of Llama-3.1-8B in bf16, and sampling. One JSON object a line:
// microseconds of a call, what that is in GB/s and TFLOP/s, and how near it comes to what the same GPU gave at best in
// the same run (bench/gpu_bench.h).
//   kernel_gpu_bench
// A call's time: many are enqueued, then waited for, so that launches cost nothing; the median of five such runs.
// Weights are cold: calls take turns over copies larger than the second-level cache.
#include <cstdint>
#include <cstdio>
#include <string>
#include <vector>

#include "bench/gpu_bench.h"
#include "bench/program.h"
#include "kernels/elementwise.h"
#include "kernels/product.h"
#include "kernels/sample.h"
#include "offload/device.h"

namespace headrace {
namespace {

constexpr int64_t kHidden = 4096, kHeads = 32, kKvHeads = 8, kDim = 128, kMlp = 14336, kVocab = 128256;
constexpr int kCalls = 200;
constexpr int64_t kColdBytes = 256 * static_cast<int64_t>(kMiB);

class Bench : public bench::GpuBench {
 public:
  Bench() : GpuBench("kernel_gpu_bench") {}

  void product_of(const char* name, int64_t rows, int64_t n, int64_t k, bool residual, DType out_type);
  void elementwise(int64_t rows);
  void rope_of(int64_t rows);
  void sampling(const char* name, int64_t rows, int64_t vocab, const SamplingSettings& settings);

 private:
  void report_rows(const std::string& name, int64_t rows, double us, double bytes, double flops = 0) {
    report({{"bench", name}, {"rows", rows}}, us, {bytes, flops});
  }
};

void Bench::product_of(const char* name, int64_t rows, int64_t n, int64_t k, bool residual, DType out_type) {
  const int64_t padded = static_cast<int64_t>(round_up(static_cast<uint64_t>(rows), kProductRowPadding));
  const int64_t copies = kColdBytes / (n * k * 2) + 1;
  const DeviceBuffer x = normal(padded * k, DType::kBF16), w = normal(copies * n * k, DType::kBF16, 0.02f);
  const DeviceBuffer out = zeros(padded * n * static_cast<int64_t>(dtype_bytes(out_type)));
  const DeviceBuffer added = zeros(padded * n * 2);
  ProductParams params{};
  params.x = x.data();
  params.residual = residual ? added.data() : nullptr;
  params.out = out.data();
  params.type = DType::kBF16;
  params.out_type = out_type;
  params.rows = rows;
  params.n = n;
  params.k = k;
  params.path = rows > kProductRowPadding ? ProductPath::kPrefill : ProductPath::kDecode;
  int64_t turn = 0;
  const double us = time(rows > kProductRowPadding ? 20 : 100, [&] {
    params.w = w.data() + turn++ % copies * n * k * 2;
    product(params, stream());
  });
  const int64_t bytes =
      (n * k + rows * k + (residual ? rows * n : 0)) * 2 + rows * n * static_cast<int64_t>(dtype_bytes(out_type));
  report_rows(str("product ", name, " ", n, "x", k), rows, us, static_cast<double>(bytes),
              2.0 * static_cast<double>(rows * n * k));
}

void Bench::elementwise(int64_t rows) {
  const DeviceBuffer x = normal(rows * 2 * kMlp, DType::kBF16), out = zeros(rows * kMlp * 2);
  const DeviceBuffer weight = normal(kHidden, DType::kBF16), table = zeros(kVocab * kHidden * 2);
  std::vector<int32_t> tokens;  // from all over the table
  for (int64_t row = 0; row < rows; ++row) tokens.push_back(static_cast<int32_t>(row * 7919 % kVocab));
  const DeviceBuffer ids = upload(tokens);
  const EmbeddingParams embed{ids.as<int32_t>(), table.data(), out.data(), DType::kBF16, rows, kVocab, kHidden};
  const RmsNormParams norm{x.data(), weight.data(), out.data(), DType::kBF16, rows,
                           1,        kHidden,       kHidden,    kHidden,      1e-5f};
  const SiluMulParams silu{x.data(), out.data(), DType::kBF16, rows, kMlp};
  const auto hidden_bytes = static_cast<double>(rows * kHidden) * 2, mlp_bytes = static_cast<double>(rows * kMlp) * 2;
  report_rows("embedding", rows, time(kCalls, [&] { embedding(embed, stream()); }), 2 * hidden_bytes);
  report_rows("rms_norm", rows, time(kCalls, [&] { rms_norm(norm, stream()); }), 2 * hidden_bytes);
  report_rows("silu_mul", rows, time(kCalls, [&] { silu_mul(silu, stream()); }), 3 * mlp_bytes);
}

void Bench::rope_of(int64_t rows) {
  constexpr int64_t kQkv = (kHeads + 2 * kKvHeads) * kDim;
  const DeviceBuffer qkv = normal(rows * kQkv, DType::kBF16), positions = zeros(rows * 4),
                     cos_sin = zeros(rows * kDim * 4);
  const DeviceBuffer k_out = zeros(rows * kKvHeads * kDim * 2), v_out = zeros(rows * kKvHeads * kDim * 2);
  RopeParams p{};
  p.q = qkv.data();
  p.k = qkv.data() + kHeads * kDim * 2;
  p.v = qkv.data() + (kHeads + kKvHeads) * kDim * 2;
  p.positions = positions.as<int32_t>();
  p.cos_sin = cos_sin.as<float>();
  p.k_out = k_out.data();
  p.v_out = v_out.data();
  p.type = p.k_type = p.v_type = DType::kBF16;
  p.rows = p.table_rows = rows;
  p.heads = kHeads;
  p.kv_heads = kKvHeads;
  p.head_dim = kDim;
  p.qkv_stride = kQkv;
  p.out_row_stride = kDim;
  p.out_head_stride = rows * kDim;
  report_rows("rope", rows, time(kCalls, [&] { rope(p, stream()); }), static_cast<double>(rows * kQkv) * 4);
}

void Bench::sampling(const char* name, int64_t rows, int64_t vocab, const SamplingSettings& settings) {
  const DeviceBuffer logits = normal(rows * vocab, DType::kF32, 3.0f), positions = zeros(rows * 4);
  const DeviceBuffer tokens = zeros(rows * 4),
                     workspace = zeros(static_cast<int64_t>(sample_workspace_bytes(rows, vocab)));
  const SampleParams params{
      logits.as<float>(), positions.as<int32_t>(), tokens.as<int32_t>(), workspace.data(), rows, vocab, settings};
  report_rows(str("sample ", name, " of ", vocab), rows, time(50, [&] { sample(params, stream()); }),
              static_cast<double>(rows * vocab) * 4);
}

void run() {
  Bench bench;
  for (int64_t rows : {1, 64, 512, 2048, 8192}) {
    bench.product_of("qkv", rows, (kHeads + 2 * kKvHeads) * kDim, kHidden, false, DType::kBF16);
    bench.product_of("out", rows, kHidden, kHidden, true, DType::kBF16);
    bench.product_of("gate_up", rows, 2 * kMlp, kHidden, false, DType::kBF16);
    bench.product_of("down", rows, kHidden, kMlp, true, DType::kBF16);
  }
  for (int64_t rows : {1, 64}) bench.product_of("logits", rows, kVocab, kHidden, false, DType::kF32);
  for (int64_t rows : {1, 64, 2048, 16384}) {
    bench.elementwise(rows);
    bench.rope_of(rows);
  }
  SamplingSettings drawn, filtered, nucleus;
  drawn.temperature = filtered.temperature = nucleus.temperature = 0.8f;
  filtered.top_k = 40;
  filtered.top_p = 0.95f;
  filtered.min_p = 0.05f;
  nucleus.top_p = 0.95f;
  for (int64_t rows : {1, 64}) {
    for (int64_t vocab : {kVocab, int64_t{151936}}) {
      bench.sampling("T=0", rows, vocab, {});
      bench.sampling("T=0.8", rows, vocab, drawn);
      bench.sampling("top-k 40, top-p 0.95, min-p 0.05", rows, vocab, filtered);
      bench.sampling("top-p 0.95", rows, vocab, nucleus);
    }
  }
}

}  // namespace
}  // namespace headrace

int main() {
  return headrace::bench::guarded("kernel_gpu_bench", [] { headrace::run(); });
}
