// Ranking a draft's candidates.
#include "bench/kernel_bench.h"
#include "kernels/tree/op.h"

namespace headrace::bench {
namespace {

constexpr int64_t kDraftVocab = 32000;

struct Ranking {
  int64_t k;
  float temperature;
  bool mapped;
};

void ranking(KernelBench& bench, int64_t rows) {
  if (bench.type != DType::kBF16) return;  // logits are fp32 in every type
  for (const int64_t vocab : {int64_t{8192}, kDraftVocab, bench.shape.vocab}) {
    for (const auto& [k, temperature, mapped] :
         {Ranking{10, 0, false}, Ranking{10, 0.8f, false}, Ranking{10, 0.8f, true}, Ranking{50, 0, true}}) {
      const DeviceBuffer logits = bench.normal(rows * vocab, DType::kF32, 3.0f), map = bench.ascending(vocab, 4);
      const DeviceBuffer positions = bench.ascending(rows);
      const DeviceBuffer log_probs = bench.zeros(rows * k * 4), tokens = bench.zeros(rows * k * 4);
      const DeviceBuffer workspace = bench.zeros(static_cast<int64_t>(top_log_probs_workspace_bytes(rows, vocab, k)));
      const TopLogProbsParams params{.logits = logits.as<float>(),
                                     .map = mapped ? map.as<int32_t>() : nullptr,
                                     .positions = positions.as<int32_t>(),
                                     .log_probs = log_probs.as<float>(),
                                     .tokens = tokens.as<int32_t>(),
                                     .workspace = workspace.data(),
                                     .rows = rows,
                                     .vocab = vocab,
                                     .stride = vocab,
                                     .k = k,
                                     .temperature = temperature};
      bench.measure({{"bench", str("top_log_probs, ", k, " of ", vocab, temperature > 0 ? ", noise" : "",
                                   mapped ? ", mapped" : "")},
                     {"rows", rows}},
                    {}, [&] { top_log_probs(params, bench.stream()); });
    }
  }
}

}  // namespace

const std::vector<Case> kTreeCases = {{"top_log_probs", ranking, 1, 64}};

}  // namespace headrace::bench
