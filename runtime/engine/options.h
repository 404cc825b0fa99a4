// The options of an engine, and those of each of its runs. Plain values; any thread.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
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
#include "runtime/grammar/grammar.h"
#include "runtime/kv/spill_options.h"
#include "runtime/model/rope_overrides.h"
#include "runtime/model/weight_store.h"
#include "runtime/prefix/store.h"
#include "runtime/session/log_probs.h"
#include "runtime/session/state_comparison.h"
#include "runtime/speculation/pending_tree.h"
#include "runtime/speculation/policy/refresh_policy.h"
#include "runtime/speculation/verify_options.h"

namespace headrace {

// What layers in host memory have on the device for partial steps (--weights-substitute).
struct SubstituteOptions {
  bool automatic = true;             // what is predicted to be fastest
  std::optional<WeightType> type{};  // if not: of this type; none: nothing
};

struct EngineOptions {
  std::string model;                                // a directory, a .gguf file or org/name
  DeviceOptions device;                             // --device, --vram, --host-mem, -t
  std::optional<DType> dtype;                       // --dtype; none: auto
  WeightPolicy weights = WeightPolicy::kKeep;       // --weights
  PrefillType prefill = PrefillType::kAuto;         // --prefill-type
  bool allow_damaged_weights = false;               // --allow-damaged-weights
  std::optional<DType> cache_type_k, cache_type_v;  // -ctk, -ctv; none: the weights' type
  int64_t ctx_size = 0;       // -c: the most tokens of a run, prompt and answer; 0: the context of the model
  KvMode kv = KvMode::kAuto;  // --kv
  WeightsPlace weights_place = WeightsPlace::kAuto;  // --weights-place
  SubstituteOptions substitute{};                    // --weights-substitute
  SpillOptions spill{};                              // --spill
  std::string chat_template;                         // --chat-template NAME; empty: the model's own
  std::string chat_template_file;                    // --chat-template-file: a Jinja source; empty: the model's own
  bool thinking = false;                             // --thinking: the template's enable_thinking
  std::string reasoning_effort;                      // --reasoning-effort: the template's; empty: its default
  RopeOverrides rope;                                // --rope-*
  bool use_chat_template = true;                     // --no-chat-template
  bool want_tokenizer = true;                        // false: prompts come as ids (tests, benches)
  RingOptions ring{};
  std::optional<bool> remainders{};  // SessionOptions; for tests and benches
  // SessionOptions; for tests. None: on a GPU, where nothing fits otherwise.
  std::optional<bool> host_states{}, host_embedding{};
  bool windowed_draft = false;        // DraftRun::windowed in every run; for tests
  bool all_window_rows = false;       // layers with a window keep all rows; for tests
  int64_t prefill_group = 0;          // rows of a prefill product; 0: the backend's
  DraftOptions draft{};               // --spec-type, -md, --tree, --draft-*
  PrefixCacheOptions prefix_cache{};  // --prefix-cache; no folder: none
  VerifyOptions verify{};             // --verify, --partial-*, --refresh-interval, --block-*
  // Returns the device's rates, for predictions; called once the device is open. Empty: nothing is predicted.
  std::function<std::optional<MachineRates>(const Device& device)> rates_of{};
};

// The rows of the KV cache that a run leaves to the next one, which computes only the tokens from the first difference
// on.
enum class KeepRows : uint8_t {
  kNone,
  kPrompt,  // prefill's rows that a fresh run would compute with the same bits, so the next text is that of a fresh run
  kAll      // the answer's rows, too, up to its last token
};

struct GenerateOptions {
  int64_t max_tokens = 256;    // -n; -1: until the context is full; 0: prefill only
  std::optional<KvMode> kv{};  // for this run instead of the engine's
  // The next run uses the rows if it has the same `keep` and the same options except max_tokens, keep_tokens, sampling
  // and stop. The plan is made once, for runs of keep_tokens tokens, prompt and answer; 0: the context. No run is
  // longer than its own keep_tokens. A run that is longer than the plan's has a new plan and none of the rows.
  KeepRows keep = KeepRows::kNone;
  int64_t keep_tokens = 0;
  SamplingSettings sampling{};  // its seed is the run's seed
  PenaltySettings penalties{};
  // The answer, behind its thinking, is a text of the grammar; needs the tokenizer. Null: any text.
  std::shared_ptr<const Grammar> grammar{};
  // The plan has memory for penalties and a grammar, so that runs with and without them share the kept rows.
  bool rules_reserved = false;
  bool rules() const { return grammar != nullptr || penalties.any() || rules_reserved; }
  bool ignore_eos = false;
  // After as many tokens of thinking its closing mark follows, whatever the target samples; -1: no limit.
  int64_t reasoning_budget = -1;
  // Stop texts: the answer ends before the first of them. UTF-8, none empty.
  std::vector<std::string> stop{};
  bool speculate = true;  // false: plain decoding, although the engine has a draft
  // Look-up also searches the answers of earlier runs with this option; not in approximate runs, whose text depends on
  // the draft.
  bool earlier_answers = false;
  std::optional<VerifyOptions> verify{};    // for this run instead of the engine's
  std::optional<TreeLimits> tree_limits{};  // of each step, instead of the choice of --tree auto
  // For tests and benches, instead of the device's default: the tree of a lossless run's pending tokens; width 0: they
  // are a chain.
  std::optional<PendingTreeLimits> pending{};
  // For tests and benches: step costs of another machine, for the choice of refreshes and trees.
  StepCosts step_costs{};
  // If not empty: the token after each token of the prompt; GenerateResult::log_probs has their log-probabilities.
  std::vector<int32_t> score_next{};
  // With score_next: prefill's arithmetic instead of the engine's, and what compares two of them (state_comparison.h).
  std::optional<PrefillType> prefill{};
  StateComparison* compare = nullptr;
  // If not empty: the tokens of the answer, whatever the target samples (teacher forcing). GenerateResult::forced tells
  // for each but the first whether the target samples it and how the draft ranks it. REQUIRES: max_tokens is their
  // number, verification is off (kFull), trees have one level.
  std::vector<int32_t> forced{};
  // kComputed: GenerateResult::answer has the log-probabilities of each token and of the `top_tokens` likeliest ones.
  LogProbs log_probs = LogProbs::kNone;
  int64_t top_tokens = 0;                                    // at most kMaxTopTokens
  std::function<void(const AnswerToken& token)> on_token{};  // called before on_text with its text; may be empty
  std::string label = "answer";                              // the run's name in a trace; empty: it is not traced
  const std::atomic<bool>* interrupt = nullptr;              // set: finish the current step and return
  std::function<void(std::string_view text)> on_text{};      // each piece of text as it becomes certain; may be empty
};

}  // namespace headrace
