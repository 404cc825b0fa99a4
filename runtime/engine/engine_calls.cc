// The engine's public functions but try_generate().
#include <algorithm>
#include <utility>

#include "kernels/attention/op.h"
#include "offload/device/trace.h"
#include "runtime/engine/engine_impl.h"

namespace headrace {

void refuse_effort(ExitCode code, const std::string& what, const std::string& effort) {
  throw_error(
      code, what,
      str("\"", effort, "\" is not supported with this model: its chat template does not read reasoning_effort"));
}

Engine::Engine(const EngineOptions& options, std::unique_ptr<Checkpoint> checkpoint, std::unique_ptr<Device> device)
    : impl_(std::make_unique<Impl>(options)) {
  impl_->checkpoint = std::move(checkpoint);
  impl_->device = std::move(device);
  impl_->open();
}
Engine::~Engine() = default;

std::vector<int32_t> Engine::encode(const ChatMessages& messages) const {
  const bool thinking = impl_->options.thinking && !messages.no_thinking;
  const ThinkingWish wish = {.thinking = thinking, .effort = impl_->options.reasoning_effort};
  if (impl_->chat) return encode_chat(*impl_->tokenizer, *impl_->chat, messages, wish);
  if (!messages.earlier.empty()) {
    throw_error(ExitCode::kBadInput, "messages", "hold a conversation, but there is no chat template to render it",
                "Give one with --chat-template or --chat-template-file");
  }
  return encode_plain(messages.system.empty() ? messages.user : messages.system + "\n\n" + messages.user);
}

std::vector<int32_t> Engine::encode_conversation(const Conversation& conversation) const {
  const bool thinking = impl_->options.thinking && !conversation.no_thinking;
  if (!conversation.effort.empty() && !impl_->chat_traits.effort)
    refuse_effort(ExitCode::kBadInput, "reasoning_effort", conversation.effort);
  if (impl_->chat) {
    const std::string& effort = conversation.effort.empty() ? impl_->options.reasoning_effort : conversation.effort;
    const ThinkingWish wish = {.thinking = thinking, .effort = effort};
    const auto parts = render_conversation(*impl_->tokenizer, *impl_->chat, impl_->chat_traits, conversation, wish);
    return impl_->tokenizer->encode(parts, AddBos::kNo);
  }
  if (!conversation.tools.is_null()) {
    throw_error(ExitCode::kBadInput, "tools", "need a chat template that supports them",
                "Give one with --chat-template-file");
  }
  ChatMessages messages;
  for (const auto& message : conversation.messages) {
    const std::string& role = message["role"].get_ref<const std::string&>();
    std::string& text = role == "user" ? messages.user : messages.system;
    const bool plain = role == "user" || role == "system" || role == "developer";
    if (!plain || !messages.user.empty() || !text.empty()) {
      messages.earlier.emplace_back();  // refused
    } else {
      text = message["content"].get<std::string>();
    }
  }
  return encode(messages);
}

CallForm Engine::call_form() const { return impl_->chat_traits.calls; }

std::vector<TextPart> Engine::render(const ChatMessages& messages) const {
  if (!impl_->chat) {
    throw_error(ExitCode::kUsage, model_path(), "there is no chat template to render a conversation",
                "Give one with --chat-template or --chat-template-file");
  }
  const ThinkingWish wish = {.thinking = impl_->options.thinking, .effort = impl_->options.reasoning_effort};
  return render_chat(*impl_->tokenizer, *impl_->chat, messages, wish);
}

std::vector<int32_t> Engine::encode_plain(std::string_view text) const {
  return impl_->tokenizer->encode(text, AddBos::kYes, SpecialTokens::kAsText);
}

std::optional<ThinkingPlace> Engine::thinking_after(const std::vector<int32_t>& prompt) const {
  const Thinking thinking = impl_->thinking_after(prompt);
  return thinking.marks ? std::optional<ThinkingPlace>(std::in_place, *thinking.marks, thinking.inside) : std::nullopt;
}

void Engine::check_prompt(const std::vector<int32_t>& prompt) const {
  headrace::check_prompt(impl_->context(), prompt, {});
}

GenerateResult Engine::generate(const std::vector<int32_t>& prompt, const GenerateOptions& options,
                                Progress* progress) {
  if (std::optional<GenerateResult> result = try_generate(prompt, options, progress)) return *std::move(result);
  throw impl_->refusal(prompt, options);
}

void Engine::use_draft(const DraftOptions& draft) { impl_->use_draft(draft); }

RunPlan Engine::plan(int64_t prompt_tokens, const GenerateOptions& options) const {
  CHECK(prompt_tokens > 0 && prompt_tokens < context_limit(), "prompt_tokens=", prompt_tokens);
  if (std::optional<RunPlan> plan = try_plan(prompt_tokens, options)) return *std::move(plan);
  throw impl_->refusal(prompt_tokens, options, nullptr);
}

std::optional<RunPlan> Engine::try_plan(int64_t prompt_tokens, const GenerateOptions& options) const {
  CHECK(prompt_tokens > 0 && prompt_tokens < context_limit(), "prompt_tokens=", prompt_tokens);
  for (const RunContext& context : impl_->contexts(prompt_tokens, options)) {
    if (std::optional<RunPlan> plan = try_run_plan(context, prompt_tokens, options)) return plan;
  }
  return std::nullopt;
}

std::optional<TraceSummary> Engine::write_trace() {
  Trace* const trace = impl_->device->trace();
  if (trace == nullptr || trace->finished()) return std::nullopt;
  return trace->finish();
}

const ModelConfig& Engine::config() const { return impl_->config; }
const ModelConfig& Engine::own_config() const { return impl_->checkpoint->config(); }
const Tokenizer& Engine::tokenizer() const {
  CHECK(impl_->tokenizer.has_value());
  return *impl_->tokenizer;
}
const Device& Engine::device() const { return *impl_->device; }
const DryRunCard& Engine::card() const { return impl_->limits; }
DType Engine::dtype() const { return impl_->weights->dtype(); }
bool Engine::prefills_in_int8() const { return impl_->context().prefills_in_int8(); }
std::vector<WeightTypeUse> Engine::weight_types() const { return impl_->weights->types(); }

std::string Engine::weights_note() const {
  // In bf16 only small matrices of recurrent layers are.
  if (dequantises(impl_->options.weights) || dtype() == DType::kBF16) return "";
  const std::vector<WeightTypeUse> types = weight_types();
  if (std::none_of(types.begin(), types.end(), [](const WeightTypeUse& use) { return use.dequantised(); })) return "";
  return str("the quantised weights are dequantised to ", dtype_name(dtype()),
             ": a GPU keeps them with --dtype bf16 only");
}

std::string Engine::cache_note() const {
  const DType type = dtype(), k = impl_->options.cache_type_k.value_or(type),
              v = impl_->options.cache_type_v.value_or(type);
  const bool fast = has_tensor_rows(type, k, v) || (low_bit(k) && low_bit(v));
  if (device().backend() != Backend::kCuda || type == DType::kF32 || fast) return "";
  return str("-ctk ", dtype_name(k), " -ctv ", dtype_name(v), " with weights of ", dtype_name(type),
             ": a GPU computes such attention without its tensor cores, many times slower; ",
             type == DType::kBF16 ? "bf16, f16" : "f16", " or int8 for both is fast");
}

int64_t Engine::context_limit() const { return impl_->context().context_limit(); }
MemoryBudget& Engine::host_mem() const { return impl_->device->host_mem(); }
const std::string& Engine::model_path() const { return impl_->checkpoint->path(); }
std::vector<FileStamp> Engine::model_files() const { return impl_->checkpoint->files(); }
SpecType Engine::draft_type() const { return impl_->options.draft.type; }
std::vector<FileStamp> Engine::draft_files() const {
  return impl_->draft_model ? impl_->draft_model->files() : std::vector<FileStamp>();
}
DocumentLimit Engine::document_limit() const {
  return limit_of_context(context_limit(), tokenizer().longest_token_bytes());
}

std::string Engine::describe() const {
  return str(impl_->checkpoint->path(), ", ", dtype_name(dtype()), ", on ", impl_->device->name());
}

}  // namespace headrace
