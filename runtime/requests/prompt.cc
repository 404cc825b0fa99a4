#include "runtime/requests/prompt.h"

#include <utility>

#include "runtime/text/document.h"

namespace headrace {

std::vector<int32_t> take_prompt(const Engine& engine, PromptForm form, const std::string& source, Request* request) {
  const std::string text = request->text();
  check_document_size(source, text.size(), engine.document_limit());
  Conversation conversation = std::exchange(request->conversation, {});
  if (request->tools.choice == ToolChoice::kRequired) {
    if (engine.call_form() == CallForm::kNone) {
      throw_error(ExitCode::kBadInput, source + ": tool_choice",
                  "is not supported with this model but for \"none\" and \"auto\": its chat template has no calls in "
                  "<tool_call> that this program can write");
    }
    request->grammar = call_grammar(request->tools, engine.call_form(), source + ": tools");
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
