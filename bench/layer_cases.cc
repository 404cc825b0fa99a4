// The kernels between attention's, and sampling.

#include "bench/kernel_bench.h"
#include "kernels/elementwise/op.h"
#include "kernels/product/op.h"
#include "kernels/sample/op.h"

namespace headrace::bench {
namespace {

struct Weight {
  const char* name;
  int64_t n, k;
  bool residual;
  int64_t most_rows;
};

void product_of(KernelBench& bench, const Weight& weight, int64_t rows) {
  const auto [name, n, k, residual, most_rows] = weight;
  if (rows > most_rows) return;
  const bool logits = weight.n == bench.shape.vocab, blocks = bench.weights.has_value();
  const auto path = rows > kProductRowPadding && !blocks ? ProductPath::kPrefill : ProductPath::kDecode;
  // On the decode path the residual stream is f32.
  const DType out_type = logits || (residual && path == ProductPath::kDecode) ? DType::kF32 : bench.type;
  const int64_t element = static_cast<int64_t>(bench.element()),
                out_element = static_cast<int64_t>(dtype_bytes(out_type));
  const int64_t padded = padded_rows(rows);
  const WeightType stored = blocks ? *bench.weights : plain_weight_type(bench.type);
  const auto w_bytes = static_cast<int64_t>(stored_weight_bytes(bench.stream().backend(), stored, n, k));
  // Whatever the bits of normal values are as blocks, they are finite there, too.
  ColdCopies w(bench, blocks ? w_bytes / 2 : n * k, blocks ? DType::kBF16 : bench.type, 0.02f);
  const DeviceBuffer x = bench.normal(padded * k, bench.type), out = bench.zeros(padded * n * out_element);
  const DeviceBuffer added = bench.zeros(padded * n * out_element);
  ProductParams params{.x = x.data(),
                       .weight = {},
                       .residual = residual ? added.data() : nullptr,
                       .out = out.data(),
                       .type = bench.type,
                       .out_type = out_type,
                       .rows = rows,
                       .n = n,
                       .k = k,
                       .path = path};
  const int64_t bytes = w_bytes + rows * k * element + rows * n * out_element * (residual ? 2 : 1);
  bench.measure(
      {{"bench", str("product ", name, " ", n, "x", k)}, {"rows", rows}, {"weights", weight_type_info(stored).name}},
      {real(bytes), 2 * real(rows * n * k)}, [&] {
        params.weight = {.parts = {{w.next(), stored, n}, {}, {}}, .count = 1, .cols = k};
        product(params, bench.stream());
      });
}

void products(KernelBench& bench, int64_t rows) {
  const BenchShape& c = bench.shape;
  for (const Weight& weight :
       {Weight{"qkv", bench.q_width() + 2 * bench.kv_width(), c.hidden, false, rows},
        Weight{"out", c.hidden, bench.q_width(), true, rows}, Weight{"gate_up", 2 * c.ffn, c.hidden, false, rows},
        Weight{"down", c.hidden, c.ffn, true, rows},
        Weight{"logits", c.vocab, c.hidden, false, bench.weights ? 384 : 64}}) {
    product_of(bench, weight, rows);
  }
}

void elementwise(KernelBench& bench, int64_t rows) {
  const BenchShape& c = bench.shape;
  const int64_t element = static_cast<int64_t>(bench.element());
  const DeviceBuffer x = bench.normal(rows * std::max(2 * c.ffn, c.hidden), bench.type);
  const DeviceBuffer out = bench.zeros(rows * std::max(c.ffn, c.hidden) * element);
  const DeviceBuffer weight = bench.normal(c.hidden, bench.type), table = bench.zeros(c.vocab * c.hidden * element);
  std::vector<int32_t> tokens;  // spread over the table
  for (int64_t row = 0; row < rows; ++row) tokens.push_back(static_cast<int32_t>(row * 7919 % c.vocab));
  const DeviceBuffer ids = bench.upload(tokens);
  const auto report = [&](const char* name, int64_t elements, const std::function<void()>& call) {
    bench.measure({{"bench", name}, {"rows", rows}}, {real(elements * element), 0}, call);
  };
  report("embedding", 2 * rows * c.hidden, [&] {
    embedding({ids.as<int32_t>(), table.data(), out.data(), bench.type, bench.type, rows, c.vocab, c.hidden},
              bench.stream());
  });
  report("rms_norm", 2 * rows * c.hidden, [&] {
    rms_norm({x.data(), weight.data(), out.data(), bench.type, bench.type, rows, c.hidden, c.hidden, c.hidden, 1e-5f},
             bench.stream());
  });
  report("silu_mul", 3 * rows * c.ffn, [&] {
    silu_mul({x.data(), out.data(), bench.type, rows, c.ffn}, bench.stream());
  });
}

void rope_of(KernelBench& bench, int64_t rows) {
  const BenchShape& c = bench.shape;
  const int64_t element = static_cast<int64_t>(bench.element()), width = bench.q_width() + 2 * bench.kv_width();
  const DeviceBuffer qkv = bench.normal(rows * width, bench.type), positions = bench.ascending(rows);
  const DeviceBuffer cos_sin = bench.zeros(rows * c.head_dim * 4);
  const DeviceBuffer k_out = bench.zeros(rows * bench.kv_width() * element);
  const DeviceBuffer v_out = bench.zeros(rows * bench.kv_width() * element);
  std::byte* const k = qkv.data() + bench.q_width() * element;
  const RopeParams params{.q = qkv.data(),
                          .k = k,
                          .v = k + bench.kv_width() * element,
                          .positions = positions.as<int32_t>(),
                          .cos_sin = cos_sin.as<float>(),
                          .k_out = k_out.data(),
                          .v_out = v_out.data(),
                          .type = bench.type,
                          .k_type = bench.type,
                          .v_type = bench.type,
                          .rows = rows,
                          .heads = c.heads,
                          .kv_heads = c.kv_heads,
                          .head_dim = c.head_dim,
                          .qkv_stride = width,
                          .table_rows = rows,
                          .out_row_stride = c.head_dim,
                          .out_head_stride = rows * c.head_dim,
                          .out_first = nullptr};
  bench.measure({{"bench", "rope"}, {"rows", rows}}, {2 * real(rows * width * element), 0},
                [&] { rope(params, bench.stream()); });
}

void sampling(KernelBench& bench, int64_t rows) {
  if (bench.type != DType::kBF16) return;  // logits are fp32 in every type
  const int64_t vocab = bench.shape.vocab;
  const DeviceBuffer logits = bench.normal(rows * vocab, DType::kF32, 3.0f), positions = bench.same(rows, 0);
  const DeviceBuffer tokens = bench.zeros(rows * 4);
  const DeviceBuffer workspace = bench.zeros(static_cast<int64_t>(sample_workspace_bytes(rows, vocab)) + 1);
  const std::pair<const char*, SamplingSettings> kinds[] = {
      {"T=0", {}},
      {"T=0.8", {.temperature = 0.8f}},
      {"top-k 40, top-p 0.95, min-p 0.05", {.temperature = 0.8f, .top_k = 40, .top_p = 0.95f, .min_p = 0.05f}},
      {"top-p 0.95", {.temperature = 0.8f, .top_p = 0.95f}}};
  for (const auto& [name, settings] : kinds) {
    const SampleParams params{
        logits.as<float>(), positions.as<int32_t>(), tokens.as<int32_t>(), workspace.data(), rows, vocab, settings};
    bench.measure({{"bench", str("sample ", name, " of ", vocab)}, {"rows", rows}}, {4 * real(rows * vocab), 0},
                  [&] { sample(params, bench.stream()); });
  }
}

}  // namespace

const std::vector<Case> kLayerCases = {{"product", products, 1, 8192},
                                       {"elementwise", elementwise, 1, 16384},
                                       {"rope", rope_of, 1, 16384},
                                       {"sample", sampling, 1, 64}};

}  // namespace headrace::bench
