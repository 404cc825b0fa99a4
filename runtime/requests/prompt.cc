#include "runtime/requests/prompt.h"

#include <algorithm>
#include <utility>

#include "runtime/text/document.h"

namespace headrace {

std::vector<int32_t> take_prompt(const Engine& engine, PromptForm form, const std::string& source, Request* request) {
  const std::string text = request->text();
  check_document_size(source, text.size(), engine.document_limit());
  Conversation conversation = std::exchange(request->conversation, {});
  const CallForm calls = engine.call_form();
  const bool strict = std::any_of(request->tools.tools.begin(), request->tools.tools.end(),
                                  [](const Tool& tool) { return tool.strict; });
  const bool form_or_call = request->tools.choice == ToolChoice::kAuto && (strict || request->grammar != nullptr);
  if (form_or_call && calls != CallForm::kNone) {  // without a form no call is read
    const BesideCalls beside = request->grammar == nullptr ? BesideCalls::kText : BesideCalls::kNothing;
    request->grammar = call_grammar(request->tools, calls, beside, request->grammar.get(), source + ": tools");
  } else if (request->tools.choice == ToolChoice::kRequired) {
    if (calls == CallForm::kNone) {
      throw_error(ExitCode::kBadInput, source + ": tool_choice",
                  "is not supported with this model but for \"none\" and \"auto\": its chat template has no calls in "
                  "<tool_call> that this program can write");
    }
    request->grammar = call_grammar(request->tools, calls, BesideCalls::kNothing, nullptr, source + ": tools");
  }
  conversation.tools = std::exchange(request->tools.definitions, {});
  if (request->kind == RequestKind::kCompletion) return engine.encode_plain(text);
  if (form == PromptForm::kByTemplate) return engine.encode_conversation(conversation);
  if (!conversation.tools.is_null()) {
    throw_error(ExitCode::kBadInput, source + ": tools", "need a chat template (--no-chat-template)");
  }
  return engine.encode_plain(text);
}

}  // namespace headrace
