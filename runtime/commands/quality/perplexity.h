// headrace bench quality --perplexity: how well a model predicts documents, to compare weight types and KV types. Each
// document is one context: every token but the first is scored, given all tokens before it. No window and no stride, so
// the figure does not depend on where a window ends. Thread: one, except for `interrupt`.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "offload/host/machine.h"
#include "runtime/engine/engine.h"

namespace headrace {

struct PerplexityOptions {
  EngineOptions engine;
  std::vector<std::string> documents;
  int64_t most_tokens = 0;  // of a document; 0: all, and one that exceeds the context is an error
  const std::atomic<bool>* interrupt = nullptr;
  std::vector<std::string> outputs{};    // files that the run writes: no documents
  std::optional<PrefillType> against{};  // --against: scores each document with this --prefill-type, too, and compares
};

struct PerplexityRow {
  std::string document;   // empty: all
  int64_t tokens = 0;     // of the context, the first included
  int64_t predicted = 0;  // tokens that were scored
  double nats_sum = 0;    // of their negative log-probabilities
  double seconds = 0;     // prefill and scores
  // With --against: the sums of the other prefill's negative log-probabilities, of the divergence of the distributions
  // from it, and of the positions where both have the same first token.
  double against_nats_sum = 0, kl_sum = 0;
  int64_t same_first = 0;

  double nats() const { return nats_sum / static_cast<double>(predicted); }  // per token
  double perplexity() const;
  PerplexityRow against() const;  // its perplexity
  double kl() const { return kl_sum / static_cast<double>(predicted); }
  double top1() const { return static_cast<double>(same_first) / static_cast<double>(predicted); }
  void add(const PerplexityRow& more);
};

struct PerplexityReport {
  Machine machine;
  std::string device, model;
  DType dtype = DType::kBF16, k_type = DType::kBF16, v_type = DType::kBF16;
  std::string prefill_type, against;  // "int8", "bf16"; empty: nothing is compared
  std::vector<WeightTypeUse> weight_types;
  std::vector<std::string> damage;  // weights that hold NaN or infinity
  std::vector<PerplexityRow> rows;
  bool interrupted = false;

  PerplexityRow all() const;  // tokens of all documents count alike
};

struct PerplexityHooks {
  Progress* progress = nullptr;
  std::function<void(const Engine& engine)> on_engine{};
  std::function<void(const PerplexityReport& so_far)> on_row{};  // the last row is new
};

// Throws Error: unreadable documents, a document of one token or of more than the context, logits that are not finite.
PerplexityReport run_perplexity(const PerplexityOptions& options, const PerplexityHooks& hooks);

// The report as one JSON object, indented, with a newline.
std::string perplexity_json(const PerplexityReport& report);

}  // namespace headrace
