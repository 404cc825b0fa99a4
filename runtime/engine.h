// The engine: a model on a device, ready to answer one prompt after another. Owns the device, the weights and the
// tokenizer; a run's KV cache is planned and allocated before its first token and freed at its end.
// Thread: one at a time, but for `interrupt`, which any thread or a signal handler may set.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/sample.h"
#include "offload/device.h"
#include "offload/trace_file.h"
#include "runtime/draft/draft_model.h"
#include "runtime/growth_rule.h"
#include "runtime/model/checkpoint.h"
#include "runtime/pending_tree.h"
#include "runtime/prefix/run.h"
#include "runtime/progress.h"
#include "runtime/run_plan.h"
#include "runtime/speculation.h"
#include "runtime/spill_options.h"
#include "runtime/text/chat.h"
#include "runtime/text/tokenizer.h"

namespace headrace {

// What --rope-* puts in the place of the model's own rope settings.
struct RopeOverrides {
  std::optional<RopeScaling> scaling{};  // --rope-scaling
  double factor = 0;                     // --rope-scale: the context grows by it; 0: the model's
  double theta = 0;                      // --rope-freq-base; 0: the model's
  int64_t original_positions = 0;        // --yarn-orig-ctx; 0: the model's
};
// The model's config with these in place. Throws Error(kUsage) for settings that contradict each other.
ModelConfig with_rope(ModelConfig config, const RopeOverrides& overrides);

struct EngineOptions {
  std::string model;                                // a directory, a .gguf file or org/name
  DeviceOptions device;                             // --device, --vram, --host-mem, -t
  std::optional<DType> dtype;                       // --dtype; none: auto
  std::optional<DType> cache_type_k, cache_type_v;  // -ctk, -ctv; none: the weights' type
  int64_t ctx_size = 0;            // -c: the most tokens a run may hold; 0: what the model was made for
  KvMode kv = KvMode::kAuto;       // --kv
  SpillOptions spill{};            // --spill
  std::string chat_template;       // --chat-template NAME; empty: the model's own
  std::string chat_template_file;  // --chat-template-file: a Jinja source to recognise; empty: the model's own
  RopeOverrides rope;              // --rope-*
  bool use_chat_template = true;   // --no-chat-template
  bool want_tokenizer = true;      // false: prompts come as ids (tests, benches)
  int ring_slots = 0;              // the staging ring; 0: defaults
  uint64_t ring_slot_bytes = 0;
  int64_t prefill_group = 0;          // rows of a prefill product; 0: the backend's
  DraftOptions draft{};               // --spec-type, -md, --tree, --draft-*
  PrefixCacheOptions prefix_cache{};  // --prefix-cache; no folder: none
  VerifyOptions verify{};             // --verify, --partial-budget, --refresh-interval, --block-*
  // What the device does a second, for predictions; asked once it is open. Empty: nothing is predicted.
  std::function<std::optional<MachineRates>(const Device& device)> rates_of{};
};

struct GenerateOptions {
  int64_t max_tokens = 256;     // -n; -1: until the context is full
  std::optional<KvMode> kv{};   // in the place of the engine's, for this run
  SamplingSettings sampling{};  // its seed is the run's seed
  bool ignore_eos = false;
  bool speculate = true;                    // false: plain decoding, though the engine has a draft
  std::optional<VerifyOptions> verify{};    // in the place of the engine's, for this run
  std::optional<TreeLimits> tree_limits{};  // of each step, in the place of --tree auto's own choice
  // For tests and benches, in the place of what suits the device: the tree of a lossless run's pending tokens; no
  // width: they are a chain.
  std::optional<PendingTreeLimits> pending{};
  // For benches, what steps cost when a draft guesses so well: each accepts so many tokens on the average, the target's
  // own included, and refreshes overturn nothing. The text is then nobody's. 0: none of this.
  double forced_tokens = 0;
  // For benches: what steps are taken to cost where a refresh is chosen by cost, as if on another machine.
  StepCosts step_costs{};
  std::string label = "answer";                          // what a trace calls the run; empty: it is in none
  const std::atomic<bool>* interrupt = nullptr;          // set: finish the current step and return what there is
  std::function<void(std::string_view text)> on_text{};  // each piece of text as it becomes certain; may be empty
};

enum class FinishReason { kStop, kLength, kInterrupted };
const char* finish_reason_name(FinishReason reason);  // "stop", "length", "interrupted"

struct Timings {
  double load_ms = 0;         // opening the model and, once, loading its weights
  double host_memory_ms = 0;  // taking the KV cache's host memory, beside the loading and prefill
  double host_wait_ms = 0;    // that prefill has waited for some of it
  double ttft_ms = 0;  // from the start of generate(), the loading left out, to the first token; 0 if there is none
  double prefill_tokens_per_s = 0, decode_tokens_per_s = 0;  // tokens that were computed, not found in a prefix cache
  int64_t decode_steps = 0;
  int64_t decode_tokens = 0;     // that came out of the steps, an end token included; not what was accepted behind it
  double decode_ms = 0;          // of all steps, and what lies between them: the trial of a disk (--spill), too
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

struct GenerateResult {
  std::string text;
  std::vector<int32_t> token_ids;  // the end token not included
  int64_t prompt_tokens = 0;
  FinishReason finish_reason = FinishReason::kLength;
  Timings timings;
  MemoryUse memory;
  Transfers transfers;
  SpillUse spill;
  Speculation speculation;
  PrefixUse prefix;  // saved prefixes: what was taken and what was saved
  MemoryPlan plan;
  std::optional<Prediction> predicted{};  // where the machine's rates are known
};

class Weights;

class Engine {
 public:
  // Opens the model and reserves its weights' memory; the first run loads them, once it is planned. Throws Error.
  explicit Engine(const EngineOptions& options);
  // The same with a model that is no file, or on a device that is open: what is given is not looked for in the options.
  Engine(const EngineOptions& options, std::unique_ptr<Checkpoint> checkpoint,
         std::unique_ptr<Device> device = nullptr);
  ~Engine();

  // The prompt's ids: by the chat template (the default) or as plain text with the tokenizer's own BOS.
  std::vector<int32_t> encode(const ChatMessages& messages) const;
  std::vector<int32_t> encode_plain(std::string_view text) const;

  // Plan, prefill, decode. Throws Error(kBadInput) for a prompt that is empty, that has ids outside the vocabulary or
  // that does not fit the context (with the numbers), Error(kDoesNotFit) for budgets, before any work is done.
  GenerateResult generate(const std::vector<int32_t>& prompt, const GenerateOptions& options, Progress* progress);

  // The plan that generate() would carry out for a prompt of so many tokens. Throws Error(kDoesNotFit).
  // REQUIRES: 0 < prompt_tokens < context_limit().
  RunPlan plan(int64_t prompt_tokens, const GenerateOptions& options) const;

  // The trace that options.device.trace_path asked for, of all runs so far; what is generated after it is in none. None
  // if there was none to write. Throws Error(kStorage).
  std::optional<TraceSummary> write_trace();

  const ModelConfig& config() const;
  const Tokenizer& tokenizer() const;  // REQUIRES: want_tokenizer
  const Device& device() const;
  DType dtype() const;
  int64_t context_limit() const;          // tokens: -c, or the model's own
  const std::string& model_path() const;  // of the files: a hub name resolved
  // A line that says what runs where, for the report: "SmolLM2-135M… bf16 on CPU, 2 threads".
  std::string describe() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace headrace
