// What came of a run: its text, and what it took. Plain values; any thread.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "cache/memory_plan.h"
#include "runtime/draft/draft.h"
#include "runtime/draft/window.h"
#include "runtime/engine/answer_token.h"
#include "runtime/engine/run_plan.h"
#include "runtime/kv/spill_options.h"
#include "runtime/prefix/run.h"
#include "runtime/speculation/stats.h"

namespace headrace {

enum class FinishReason { kStop, kLength, kInterrupted };
inline const char* finish_reason_name(FinishReason reason) {
  constexpr const char* kNames[] = {"stop", "length", "interrupted"};
  return kNames[static_cast<size_t>(reason)];
}

struct Timings {
  double load_ms = 0;         // opening the model and, once, loading its weights
  double host_memory_ms = 0;  // taking the KV cache's host memory, beside the loading and prefill
  double host_wait_ms = 0;    // that prefill has waited for some of it
  // From the start of prefill to the first token, of the first attempt where a damaged saved prefix made the run start
  // again; 0 if there is no token.
  double ttft_ms = 0;
  double prefill_tokens_per_s = 0, decode_tokens_per_s = 0;  // tokens that were computed, not found in a prefix cache
  int64_t decode_steps = 0;
  int64_t decode_tokens = 0;     // that came out of the steps, an end token included; not what was accepted behind it
  double decode_ms = 0;          // from the start of the first step to the end of the last
  std::vector<float> step_ms{};  // of each decode step, from its proposal to its commit
};

struct MemoryUse {
  uint64_t vram_peak_bytes = 0, host_peak_bytes = 0, disk_peak_bytes = 0;  // by our own budgets
  uint64_t rss_peak_bytes = 0;                                             // by the operating system, of the process
  uint64_t weights_bytes = 0, kv_bytes = 0;
};

struct Transfers {
  uint64_t prefill_d2h_bytes = 0, prefill_h2d_bytes = 0;
  uint64_t decode_h2d_bytes = 0, decode_d2h_bytes = 0;
};

// A document whose middle was left out: what of its prompt. Nothing: it was whole, or there was no document.
struct LeftOut {
  int64_t whole_tokens = 0, tokens = 0;  // of the prompt as it would have been, and of what it lost
};

// The answer to a part of a document that is longer than the context, from which the whole answer was made.
struct PartAnswer {
  int64_t level = 1;                   // 1: parts of the document; 2: parts of the answers of level 1; ...
  uint64_t first_byte = 0, bytes = 0;  // in the text of its level
  int64_t prompt_tokens = 0;
  double ttft_ms = 0, decode_ms = 0;
  std::string text;
};

// A token of GenerateOptions::forced.
struct ForcedToken {
  int32_t token = -1;
  bool sampled = false;              // the target would have sampled it
  std::optional<TokenRank> draft{};  // none: there is no draft, or one that ranks no vocabulary
};

struct GenerateResult {
  std::string text;
  std::vector<int32_t> token_ids;  // the end token not included
  // With GenerateOptions::log_probs: of each token that adds to the text, which those of a stop text do not.
  std::vector<AnswerToken> answer{};
  int64_t prompt_tokens = 0;
  int64_t kept_tokens = 0;      // of the prompt, whose rows the run before had kept
  std::string chat_template{};  // the engine's: "model", a name, a file or "none"; empty: not known
  LeftOut left_out{};
  std::vector<PartAnswer> parts{};  // none: the document fitted
  FinishReason finish_reason = FinishReason::kLength;
  Timings timings;
  MemoryUse memory;
  Transfers transfers;
  SpillUse spill;
  Speculation speculation;
  DraftWindow draft_window{};         // of speculation.type
  std::vector<float> log_probs{};     // of GenerateOptions::score_next; empty if the run was interrupted
  std::vector<ForcedToken> forced{};  // all but the first; fewer if the run was interrupted, or the context is full
  PrefixUse prefix;                   // saved prefixes: what was taken and what was saved
  MemoryPlan plan;
  std::vector<WeightTypeUse> weight_types{};  // of the model's weights
  std::vector<std::string> damage{};          // weights that hold NaN or infinity: a line a tensor
  std::vector<std::string> plain_products{};  // that a slower kernel runs (kernels/product/op.h); of the engine's runs
  std::optional<Prediction> predicted{};      // where the machine's rates are known
  double link_peak_gb_per_s = 0;              // to the device, by the kept profile; 0: nobody measured it

  // Of the prompt, whose rows were not computed.
  int64_t reused_tokens() const { return prefix.rows + kept_tokens; }
};

// The same tokens, ended for the same reason: what a lossless run owes to plain decoding.
inline bool same_answer(const GenerateResult& a, const GenerateResult& b) {
  return a.token_ids == b.token_ids && a.finish_reason == b.finish_reason;
}

}  // namespace headrace
