// The engine: a model on a device, ready to answer one prompt after another. Owns the device, the weights and the
// tokenizer; a run's KV cache is planned and allocated before its first token and freed at its end.
// Thread: one at a time, but for `interrupt`, which any thread or a signal handler may set, and for the functions that
// any thread may call.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "offload/device/device.h"
#include "offload/device/dry_run_device.h"
#include "offload/device/trace_file.h"
#include "runtime/base/progress.h"
#include "runtime/engine/options.h"
#include "runtime/engine/result.h"
#include "runtime/engine/run_plan.h"
#include "runtime/model/checkpoint.h"
#include "runtime/text/chat_render.h"
#include "runtime/text/conversation.h"
#include "runtime/text/document.h"
#include "runtime/text/tokenizer.h"

namespace headrace {

class Engine {
 public:
  // Opens the model and reserves its weights' memory; the first run loads them, once it is planned. Throws Error.
  // A model that is not a file, or an open device, replaces the options that name it.
  explicit Engine(const EngineOptions& options, std::unique_ptr<Checkpoint> checkpoint = nullptr,
                  std::unique_ptr<Device> device = nullptr);
  ~Engine();

  // The prompt's ids: by the chat template (the default) or as plain text with the tokenizer's own BOS. Any thread.
  std::vector<int32_t> encode(const ChatMessages& messages) const;
  std::vector<int32_t> encode_conversation(const Conversation& conversation) const;
  std::vector<int32_t> encode_plain(std::string_view text) const;
  CallForm call_form() const;  // in which the model calls tools, by its chat template. Any thread
  // A conversation as text, by the chat template. Throws Error(kUsage) if there is none.
  std::vector<TextPart> render(const ChatMessages& messages) const;

  // Splits the answer to this prompt in thinking and the rest; none: the model does not think. Any thread.
  std::optional<ThinkingPlace> thinking_after(const std::vector<int32_t>& prompt) const;

  // Throws Error(kBadInput) for a prompt that is empty, that has ids outside the vocabulary or that does not fit the
  // context (with the numbers). Any thread.
  void check_prompt(const std::vector<int32_t>& prompt) const;

  // Plan, prefill, decode. Throws Error(kBadInput) as check_prompt() does, Error(kDoesNotFit) for budgets, before any
  // work is done.
  GenerateResult generate(const std::vector<int32_t>& prompt, const GenerateOptions& options, Progress* progress);
  // The same for callers with an alternative. None: it does not fit, and what would has not been searched for.
  std::optional<GenerateResult> try_generate(const std::vector<int32_t>& prompt, const GenerateOptions& options,
                                             Progress* progress);

  // Replaces the engine's draft, or removes it; the target's weights stay loaded. The next run loads the new one.
  // Throws Error as the constructor does; the engine then has no draft.
  void use_draft(const DraftOptions& draft);

  // The plan that generate() would execute for a prompt of `prompt_tokens` tokens. Throws Error(kDoesNotFit).
  // REQUIRES: 0 < prompt_tokens < context_limit().
  RunPlan plan(int64_t prompt_tokens, const GenerateOptions& options) const;
  std::optional<RunPlan> try_plan(int64_t prompt_tokens, const GenerateOptions& options) const;  // as try_generate()

  // Writes the trace of all runs so far to options.device.trace_path; later runs are not traced. None: no trace was
  // requested. Throws Error(kStorage).
  std::optional<TraceSummary> write_trace();

  // What is reserved of it before the first run, no run has.
  MemoryBudget& host_mem() const;

  // Values that do not change; any thread.
  const ModelConfig& config() const;
  const ModelConfig& own_config() const;  // without --rope-*
  const Tokenizer& tokenizer() const;     // REQUIRES: want_tokenizer
  const Device& device() const;
  const DryRunCard& card() const;  // the same for planning: its budgets, and what others had of them at first
  DType dtype() const;
  bool prefills_in_int8() const;                    // by --prefill-type
  std::vector<WeightTypeUse> weight_types() const;  // of the model's weights
  // Why quantised weights are not kept although the options ask for it; empty: they are kept, or there are none.
  std::string weights_note() const;
  // That attention is slow with the types of the KV cache; empty: it is not.
  std::string cache_note() const;
  int64_t context_limit() const;          // tokens: -c, or the model's own
  const std::string& model_path() const;  // of the model's files, after a hub name is resolved
  SpecType draft_type() const;            // never kAuto
  // The opened weight files; empty: the weights are not in files, or there is no draft.
  std::vector<FileStamp> model_files() const;
  std::vector<FileStamp> draft_files() const;
  // The limit of a text that context_limit() tokens can hold. REQUIRES: want_tokenizer.
  DocumentLimit document_limit() const;
  // One line for the report: the model, its type and the device, as in "SmolLM2-135M… bf16 on CPU, 2 threads".
  std::string describe() const;

  struct Impl;  // internal

 private:
  std::unique_ptr<Impl> impl_;
};

}  // namespace headrace
