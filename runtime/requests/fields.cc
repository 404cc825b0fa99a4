#include "runtime/requests/fields.h"

#include <algorithm>
#include <array>
#include <string_view>

#include "cache/base.h"

namespace headrace {
namespace {

using nlohmann::json;

constexpr auto kRead = std::to_array<std::string_view>({"model",
                                                        "messages",
                                                        "prompt",
                                                        "max_tokens",
                                                        "max_completion_tokens",
                                                        "temperature",
                                                        "top_p",
                                                        "top_k",
                                                        "min_p",
                                                        "seed",
                                                        "stop",
                                                        "logprobs",
                                                        "top_logprobs",
                                                        "stream_options",
                                                        "reasoning_format",
                                                        "reasoning_budget_tokens",
                                                        "thinking_budget_tokens",
                                                        "thinking_token_budget",
                                                        "response_format",
                                                        "guided_json",
                                                        "json_schema",
                                                        "structured_outputs",
                                                        "presence_penalty",
                                                        "frequency_penalty",
                                                        "repetition_penalty",
                                                        "repeat_penalty",
                                                        "tools",
                                                        "tool_choice",
                                                        "parallel_tool_calls"});
constexpr auto kOfStreams = std::to_array<std::string_view>({"stream", "return_progress"});

// The same of /v1/responses.
constexpr auto kReadOfResponses = std::to_array<std::string_view>({"model",
                                                                   "input",
                                                                   "instructions",
                                                                   "max_output_tokens",
                                                                   "temperature",
                                                                   "top_p",
                                                                   "top_k",
                                                                   "min_p",
                                                                   "seed",
                                                                   "stream",
                                                                   "stream_options",
                                                                   "text",
                                                                   "reasoning",
                                                                   "tools",
                                                                   "tool_choice",
                                                                   "parallel_tool_calls",
                                                                   "presence_penalty",
                                                                   "frequency_penalty",
                                                                   "repetition_penalty",
                                                                   "repeat_penalty"});

// Fields that change no answer: labels, hints, and the parameters of samplers that are off.
constexpr auto kIgnored = std::to_array<std::string_view>(
    {"user", "metadata", "prompt_cache_key", "safety_identifier", "prompt_cache_retention", "prompt_cache_options",
     "prediction", "request_id", "cache_prompt", "repeat_last_n", "dry_base", "dry_allowed_length",
     "dry_penalty_last_n", "dry_sequence_breakers", "xtc_threshold", "mirostat_tau", "mirostat_eta",
     "dynatemp_exponent", "early_stopping"});

// A field and the values that ask for nothing, or for what is done anyway: the members of a JSON list.
struct Neutral {
  std::string_view name;
  const char* values;
};
constexpr auto kNeutral = std::to_array<Neutral>({
    // OpenAI's
    {"n", "[1]"},
    {"best_of", "[1]"},
    {"stream", "[false]"},
    {"return_progress", "[false]"},
    {"echo", "[false]"},
    {"logit_bias", "[{}, []]"},
    {"suffix", R"([""])"},
    {"functions", "[[]]"},
    {"function_call", R"(["none", "auto"])"},
    {"modalities", R"([["text"], []])"},
    {"store", "[false]"},
    {"service_tier", R"(["auto", "default"])"},
    {"verbosity", R"(["medium"])"},
    {"web_search_options", "[]"},
    {"moderation", "[]"},
    {"reasoning_effort", R"(["none", "low", "medium", "high"])"},
    {"reasoning", R"([{}, {"effort": "none"}])"},
    // the template's: see asks_for_no_thinking()
    {"chat_template_kwargs", R"([{}, {"enable_thinking": false}])"},
    {"enable_thinking", "[false]"},
    {"thinking", R"([{"type": "disabled"}])"},
    {"chat_template", R"([""])"},
    {"add_generation_prompt", "[true]"},
    {"continue_final_message", "[false]"},
    {"documents", "[[]]"},
    // samplers
    {"length_penalty", "[1]"},
    {"typical_p", "[1]"},
    {"tfs_z", "[1]"},
    {"top_n_sigma", "[-1]"},
    {"dynatemp_range", "[0]"},
    {"dry_multiplier", "[0]"},
    {"xtc_probability", "[0]"},
    {"mirostat", "[0]"},
    {"use_beam_search", "[false]"},
    {"min_tokens", "[0]"},
    {"min_keep", "[0, 1]"},
    {"samplers", "[[]]"},
    {"logits_processors", "[[]]"},
    // what may be in the text
    {"ignore_eos", "[false]"},
    {"stop_token_ids", "[[]]"},
    {"include_stop_str_in_output", "[false]"},
    {"skip_special_tokens", "[true]"},
    {"spaces_between_special_tokens", "[true]"},
    {"allowed_token_ids", "[[]]"},
    {"bad_words", "[[]]"},
    {"grammar", R"([""])"},
    {"guided_choice", "[[]]"},
    {"guided_grammar", R"([""])"},
    {"guided_regex", R"([""])"},
    // what an answer has beside its text
    {"prompt_logprobs", "[false]"},
    {"n_probs", "[0]"},
    {"post_sampling_probs", "[false]"},
    {"return_tokens_as_token_ids", "[false]"},
    {"return_token_ids", "[false]"},
    {"return_tokens", "[false]"},
    {"timings_per_token", "[false]"},
    {"response_fields", "[[]]"},
    // the server's
    {"n_predict", "[-1]"},
    {"n_keep", "[0]"},
    {"n_discard", "[0]"},
    {"n_indent", "[0]"},
    {"t_max_predict_ms", "[0, -1]"},
    {"id_slot", "[-1]"},
    {"priority", "[0]"},
    {"lora", "[[]]"},
    {"image_data", "[[]]"},
    {"mm_processor_kwargs", "[{}]"},
    {"vllm_xargs", "[{}]"},
    {"extra_body", "[{}]"},
    // of /v1/responses, whose answers are not stored
    {"previous_response_id", R"([""])"},
    {"conversation", R"([""])"},
    {"background", "[false]"},
    {"include", "[[]]"},
    {"truncation", R"(["disabled"])"},
    {"max_tool_calls", "[0]"},
    {"top_logprobs", "[0]"},
    {"context_management", "[[]]"},
    {"cache_salt", R"([""])"},
    {"kv_transfer_params", "[{}]"},
});

bool contains(const auto& all, const auto& one) { return std::find(all.begin(), all.end(), one) != all.end(); }

const Neutral* neutral_values(std::string_view name) {
  const auto found =
      std::find_if(kNeutral.begin(), kNeutral.end(), [name](const Neutral& n) { return n.name == name; });
  return found == kNeutral.end() ? nullptr : &*found;
}

}  // namespace

void check_fields(const JsonFields& body, const json& object, KnownFields known) {
  const bool response = known == KnownFields::kResponse;
  for (const auto& item : object.items()) {
    const std::string& name = item.key();
    if (contains(kIgnored, name) || item.value().is_null()) continue;
    if (response ? contains(kReadOfResponses, name) : contains(kRead, name)) continue;
    if (known == KnownFields::kServer && contains(kOfStreams, name)) continue;
    const Neutral* const neutral = neutral_values(name);
    if (neutral == nullptr) body.refuse(name.c_str(), "is not supported: unknown field");
    const json values = json::parse(neutral->values);
    if (contains(values, item.value())) continue;
    if (values.empty()) body.refuse(name.c_str(), "is not supported");
    std::string only;
    for (const json& value : values) only += (only.empty() ? "" : " or ") + value.dump();
    body.refuse(name.c_str(), str("is not supported: only ", only, " is"));
  }
}

std::string effort_of(const JsonFields& body) {
  const std::string effort = body.string_or("reasoning_effort", "");
  return effort == "none" ? "" : effort;
}

bool asks_for_no_thinking(const JsonFields& body) {
  constexpr auto kNames = std::to_array<const char*>(
      {"reasoning_effort", "reasoning", "chat_template_kwargs", "enable_thinking", "thinking"});
  return effort_of(body).empty() && std::any_of(kNames.begin(), kNames.end(), [&body](const char* name) {
           return body.has(name) && !body.find(name)->empty();
         });
}

void check_message_fields(const JsonFields& body, const json& message) {
  for (const char* const name : {"function_call", "audio"}) {
    const auto found = message.find(name);
    if (found != message.end() && !found->is_null() && !found->empty()) {
      body.refuse("messages", str("has a message with ", name, ", which is not supported"));
    }
  }
}

void refuse_item(const JsonFields& body, const char* list, size_t index, const std::string& why) {
  throw_error(ExitCode::kBadInput, body.source(), str(body.label(list), "[", index, "] ", why));
}

}  // namespace headrace
