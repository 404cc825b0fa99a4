// What an engine is opened with, and what each of its runs may ask for. Plain values; any thread.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "cache/cost.h"
#include "cache/memory_plan.h"
#include "kernels/sample/op.h"
#include "offload/device/device.h"
#include "runtime/draft/draft_model.h"
#include "runtime/engine/answer_token.h"
#include "runtime/kv/spill_options.h"
#include "runtime/model/rope_overrides.h"
#include "runtime/model/weight_store.h"
#include "runtime/prefix/store.h"
#include "runtime/session/log_probs.h"
#include "runtime/speculation/pending_tree.h"
#include "runtime/speculation/policy/refresh_policy.h"
#include "runtime/speculation/verify_options.h"

namespace headrace {

struct EngineOptions {
  std::string model;                                // a directory, a .gguf file or org/name
  DeviceOptions device;                             // --device, --vram, --host-mem, -t
  std::optional<DType> dtype;                       // --dtype; none: auto
  WeightPolicy weights = WeightPolicy::kKeep;       // --weights
  bool allow_damaged_weights = false;               // --allow-damaged-weights
  std::optional<DType> cache_type_k, cache_type_v;  // -ctk, -ctv; none: the weights' type
  int64_t ctx_size = 0;            // -c: the most tokens a run may hold; 0: what the model was made for
  KvMode kv = KvMode::kAuto;       // --kv
  SpillOptions spill{};            // --spill
  std::string chat_template;       // --chat-template NAME; empty: the model's own
  std::string chat_template_file;  // --chat-template-file: a Jinja source; empty: the model's own
  bool thinking = false;           // --thinking: the template's enable_thinking
  RopeOverrides rope;              // --rope-*
  bool use_chat_template = true;   // --no-chat-template
  bool want_tokenizer = true;      // false: prompts come as ids (tests, benches)
  RingOptions ring{};
  std::optional<bool> remainders{};   // SessionOptions; for tests and benches
  int64_t prefill_group = 0;          // rows of a prefill product; 0: the backend's
  DraftOptions draft{};               // --spec-type, -md, --tree, --draft-*
  PrefixCacheOptions prefix_cache{};  // --prefix-cache; no folder: none
  VerifyOptions verify{};             // --verify, --partial-*, --refresh-interval, --block-*
  // What the device does a second, for predictions; asked once it is open. Empty: nothing is predicted.
  std::function<std::optional<MachineRates>(const Device& device)> rates_of{};
};

// Rows of the KV cache that a run leaves to the next one, which computes only what differs from their tokens.
enum class KeepRows : uint8_t {
  kNone,
  kPrompt,  // those that prefill computed, where a fresh run computes the same bits: the next text is that of a fresh
            // run
  kAll      // the answer's too, up to its last token
};

struct GenerateOptions {
  int64_t max_tokens = 256;    // -n; -1: until the context is full; 0: prefill alone
  std::optional<KvMode> kv{};  // in the place of the engine's, for this run
  // The next run uses the rows if it keeps as much and has the same options but max_tokens, keep_tokens, sampling and
  // stop. The plan is made once, for runs of keep_tokens tokens, prompt and answer; 0: the context. No run is longer
  // than its own keep_tokens. One that is longer than the plan's has another plan and none of the rows.
  KeepRows keep = KeepRows::kNone;
  int64_t keep_tokens = 0;
  SamplingSettings sampling{};  // its seed is the run's seed
  bool ignore_eos = false;
  // Texts that end the answer where the first of them begins; none of it is in the text. UTF-8, none empty.
  std::vector<std::string> stop{};
  bool speculate = true;  // false: plain decoding, though the engine has a draft
  // Look-up finds what earlier runs with this option answered, too, except in approximate runs, whose text depends on
  // the draft.
  bool earlier_answers = false;
  std::optional<VerifyOptions> verify{};    // in the place of the engine's, for this run
  std::optional<TreeLimits> tree_limits{};  // of each step, in the place of --tree auto's own choice
  // For tests and benches, in the place of what suits the device: the tree of a lossless run's pending tokens; no
  // width: they are a chain.
  std::optional<PendingTreeLimits> pending{};
  // For tests and benches: what steps are taken to cost where a refresh or a tree is chosen by cost, as if on another
  // machine.
  StepCosts step_costs{};
  // Not empty: the token after each token of the prompt; GenerateResult::log_probs then has their log-probabilities.
  std::vector<int32_t> score_next{};
  // Not empty: the tokens of the answer, whatever the target samples (teacher forcing). GenerateResult::forced then has
  // what target and draft hold of each but the first. REQUIRES: max_tokens of as many, verification off (kFull), trees
  // of one level.
  std::vector<int32_t> forced{};
  // kComputed: GenerateResult::answer has each token's log-probability and those of the `top_tokens` likeliest.
  LogProbs log_probs = LogProbs::kNone;
  int64_t top_tokens = 0;                                    // at most kMaxTopTokens
  std::function<void(const AnswerToken& token)> on_token{};  // one of them, before on_text has its text; may be empty
  std::string label = "answer";                              // what a trace calls the run; empty: it is in none
  const std::atomic<bool>* interrupt = nullptr;              // set: finish the current step and return what there is
  std::function<void(std::string_view text)> on_text{};      // each piece of text as it becomes certain; may be empty
};

}  // namespace headrace
