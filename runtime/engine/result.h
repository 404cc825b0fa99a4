// The result of a run: text, timings, memory. Plain values; any thread.
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
#include "runtime/text/thinking.h"

namespace headrace {

enum class FinishReason { kStop, kLength, kInterrupted };
inline const char* finish_reason_name(FinishReason reason) {
  constexpr const char* kNames[] = {"stop", "length", "interrupted"};
  return kNames[static_cast<size_t>(reason)];
}

struct Timings {
  double load_ms = 0;         // time to open the model and, once, to load its weights
  double host_memory_ms = 0;  // time to pin the KV cache's host memory, in parallel to loading and prefill
  double host_wait_ms = 0;    // time that prefill waited for it
  // Time from the start of prefill to the first token; 0 if there is no token. If a damaged saved prefix restarted the
  // run, it counts from the start of the first attempt.
  double ttft_ms = 0;
  double prefill_tokens_per_s = 0, decode_tokens_per_s = 0;  // computed tokens, without those of a saved prefix
  int64_t decode_steps = 0;
  int64_t decode_tokens = 0;     // tokens of the steps, an end token included, tokens accepted after it not
  double decode_ms = 0;          // from the start of the first step to the end of the last
  std::vector<float> step_ms{};  // time of each decode step, from its proposal to its commit
};

struct MemoryUse {
  uint64_t vram_peak_bytes = 0, host_peak_bytes = 0, disk_peak_bytes = 0;  // counted by the budgets
  uint64_t rss_peak_bytes = 0;                                             // of the process, as the system counts it
  uint64_t weights_bytes = 0, kv_bytes = 0;
};

struct Transfers {
  uint64_t prefill_d2h_bytes = 0, prefill_h2d_bytes = 0;
  uint64_t decode_h2d_bytes = 0, decode_d2h_bytes = 0;
};

// The prompt of a document whose middle was left out (--truncate middle). Zeros: nothing was left out.
struct LeftOut {
  int64_t whole_tokens = 0, tokens = 0;  // of the prompt with the whole document; of the part that is missing
};

// The answer to one part of a document that is longer than the context. The whole answer is made from such answers.
struct PartAnswer {
  int64_t level = 1;                   // 1: parts of the document; 2: parts of the answers of level 1; ...
  uint64_t first_byte = 0, bytes = 0;  // the part, in the text of its level
  int64_t prompt_tokens = 0, tokens = 0;
  double ttft_ms = 0, decode_ms = 0;
  bool cut = false;  // by -n
  std::string text;
};

struct PartTotals {
  int64_t prompt_tokens = 0, tokens = 0, cut = 0;
  double ms = 0;
};
inline PartTotals totals_of(const std::vector<PartAnswer>& parts) {
  PartTotals all;
  for (const PartAnswer& part : parts) {
    all.prompt_tokens += part.prompt_tokens;
    all.tokens += part.tokens;
    all.cut += part.cut ? 1 : 0;
    all.ms += part.ttft_ms + part.decode_ms;
  }
  return all;
}

// The part of an answer in which the model thinks.
struct Thinking {
  std::optional<ThinkingMarks> marks{};  // none: the model does not think
  bool inside = false;                   // the prompt has opened it
  int64_t tokens = 0;                    // without the marks
  bool cut = false;                      // no token of the model's ended the answer

  // `text` as the two parts that clients know. `calls`: it may call tools (ThinkingPlace::show_calls()).
  ThinkingPlace::Parts parts(std::string_view text, bool calls = false) const {
    return marks ? split_thinking(*marks, inside, text, calls, cut)
                 : ThinkingPlace::Parts{.thinking = {}, .answer = std::string(text)};
  }
};

// A token of GenerateOptions::forced.
struct ForcedToken {
  int32_t token = -1;
  bool sampled = false;              // the target would have sampled it
  std::optional<TokenRank> draft{};  // none: there is no draft, or it ranks no vocabulary
};

struct GenerateResult {
  std::string text;                // all of it, thinking and its marks included
  std::vector<int32_t> token_ids;  // without the end token
  Thinking thinking{};
  // With GenerateOptions::log_probs: each token that adds to the text; tokens of a stop text do not.
  std::vector<AnswerToken> answer{};
  int64_t prompt_tokens = 0;
  int64_t kept_tokens = 0;      // of the prompt: the previous run had kept their rows
  std::string chat_template{};  // of the engine: "model", a name, a file or "none"; empty: unknown
  LeftOut left_out{};
  std::vector<PartAnswer> parts{};  // empty: the document fitted the context
  FinishReason finish_reason = FinishReason::kLength;
  bool incomplete = false;  // the answer ends before it is a text of GenerateOptions::grammar
  Timings timings;
  MemoryUse memory;
  Transfers transfers;
  ExpertUse experts;  // of decode steps, where experts are in host memory
  SpillUse spill;
  Speculation speculation;
  DraftWindow draft_window{};         // of speculation.type
  std::vector<float> log_probs{};     // of GenerateOptions::score_next; empty if the run was interrupted
  std::vector<ForcedToken> forced{};  // all but the first; fewer if the run was interrupted or the context is full
  PrefixUse prefix;                   // saved prefixes that were read and written
  MemoryPlan plan;
  std::string memory_note{};                  // RunPlan's
  const char* verify_note = "";               // the same
  std::vector<WeightTypeUse> weight_types{};  // of the model's weights
  const char* prefill_type = "";              // the arithmetic that read the prompt: "int8", "bf16"
  std::vector<std::string> damage{};          // weights that hold NaN or infinity: a line for each tensor
  std::vector<std::string> plain_products{};  // of all runs so far (kernels/product/op.h)
  std::optional<Prediction> predicted{};      // none: the machine's rates are unknown
  double link_peak_gb_per_s = 0;              // to the device, by the kept profile; 0: not measured

  // Tokens of the prompt whose rows were not computed.
  int64_t reused_tokens() const { return prefix.rows + kept_tokens; }
};

// Whether two runs have the same tokens and the same reason for their end, as lossless runs and plain decoding must.
inline bool same_answer(const GenerateResult& a, const GenerateResult& b) {
  return a.token_ids == b.token_ids && a.finish_reason == b.finish_reason;
}

}  // namespace headrace
