#include "runtime/text/chat.h"

#include <algorithm>
#include <iterator>
#include <nlohmann/json.hpp>
#include <utility>

#include "cache/base.h"

namespace headrace {

namespace {

constexpr const char* kChatMl = R"({% for m in messages %}<|im_start|>{{ m.role }}
{{ m.content }}<|im_end|>
{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant
{% endif %})";

constexpr const char* kQwen3 = R"({% for m in messages %}<|im_start|>{{ m.role }}
{{ m.content }}<|im_end|>
{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant
<think>

</think>

{% endif %})";

constexpr const char* kLlama3 =
    R"({{ bos_token or '' }}{% for m in messages %}<|start_header_id|>{{ m.role }}<|end_header_id|>

{{ m.content | trim }}<|eot_id|>{% endfor %}{% if add_generation_prompt %}<|start_header_id|>assistant<|end_header_id|>

{% endif %})";

// The system block and the first question are trimmed as one text.
constexpr const char* kLlama2 = R"({% set first = namespace(text='') %}{% for m in messages %}
{% if m.role == 'system' %}{% set first.text = '<<SYS>>\n' ~ m.content ~ '\n<</SYS>>\n\n' %}
{% elif m.role == 'user' %}{{ bos_token or '' }}[INST] {{ (first.text ~ m.content) | trim }} [/INST]
{%- set first.text = '' %}
{% else %} {{ m.content | trim }} {{ eos_token or '' }}{% endif %}{% endfor %})";

constexpr const char* kMistral = R"({{ bos_token or '' }}{% set first = namespace(text='') %}{% for m in messages %}
{% if m.role == 'system' %}{% set first.text = m.content ~ '\n\n' %}
{% elif m.role == 'user' %}[INST] {{ first.text ~ m.content }} [/INST]{% set first.text = '' %}
{% else %} {{ m.content | trim }}{{ eos_token or '' }}{% endif %}{% endfor %})";

struct BuiltIn {
  std::string_view name;
  const char* source;
  std::vector<const char*> markers;  // that must be tokens
};

}  // namespace

std::string chat_template_by_name(std::string_view name, const Tokenizer& tokenizer) {
  static const BuiltIn kBuiltIn[] = {
      {"chatml", kChatMl, {"<|im_start|>", "<|im_end|>"}},
      {"llama2", kLlama2, {}},
      {"llama3", kLlama3, {"<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"}},
      {"mistral", kMistral, {}},
      {"qwen3", kQwen3, {"<|im_start|>", "<|im_end|>"}},
  };
  const auto found =
      std::find_if(std::begin(kBuiltIn), std::end(kBuiltIn), [&](const auto& t) { return t.name == name; });
  if (found == std::end(kBuiltIn)) {
    std::string choices = "give --chat-template one of:";
    for (const BuiltIn& known : kBuiltIn) choices += str(" ", known.name);
    throw_error(ExitCode::kUsage, "--chat-template", str("'", name, "' is not a chat template"),
                choices + "; or --no-chat-template");
  }
  for (const char* marker : found->markers) {
    if (tokenizer.find(marker) >= 0) continue;
    throw_error(ExitCode::kBadInput, "chat template", str("the model's tokenizer has no token '", marker, "'"),
                "choose another --chat-template, or --no-chat-template");
  }
  std::string source;
  for (const auto& [name_of_token, id] : {std::pair{"bos_token", tokenizer.bos()}, {"eos_token", tokenizer.eos()}}) {
    if (id < 0) continue;  // the model's files may not name it
    source += str("{% set ", name_of_token, " = ", nlohmann::json(tokenizer.token_name(id)).dump(), " %}");
  }
  source += found->source;
  constexpr std::string_view kClose = " [/INST]";  // without the space if it is a token: Mistral's third version
  if (name == "mistral" && tokenizer.find("[/INST]") >= 0) source.erase(source.find(kClose), 1);
  return source;
}

}  // namespace headrace
