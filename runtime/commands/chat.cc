#include "runtime/commands/chat.h"

#include <nlohmann/json.hpp>
#include <utility>

#include "runtime/commands/report_json.h"
#include "runtime/text/document.h"

namespace headrace {
namespace {

constexpr std::string_view kBlank = " \t\r\n";

std::string_view trimmed(std::string_view text) {
  const size_t begin = text.find_first_not_of(kBlank);
  return begin == std::string_view::npos ? "" : text.substr(begin, text.find_last_not_of(kBlank) + 1 - begin);
}

std::string joined(const std::vector<TextPart>& parts) {
  std::string text;
  for (const TextPart& part : parts) text += part.text;
  return text;
}

// The parts after the first `bytes` bytes.
std::vector<TextPart> rest_of(const std::vector<TextPart>& parts, size_t bytes) {
  std::vector<TextPart> rest;
  for (const TextPart& part : parts) {
    const size_t before = std::min(bytes, part.text.size());
    bytes -= before;
    if (before < part.text.size()) rest.push_back({part.text.substr(before), part.special});
  }
  return rest;
}

}  // namespace

ChatLine parse_chat_line(std::string_view line) {
  using Kind = ChatLine::Kind;
  const std::string_view text = trimmed(line);
  if (text.empty()) return {};
  if (line.front() != '/') return {.kind = Kind::kQuestion, .text = std::string(text)};
  const size_t space = std::min(text.find_first_of(kBlank), text.size());
  const std::string_view name = text.substr(0, space);
  const std::string argument(trimmed(text.substr(space)));
  for (const auto& [command, kind] : {std::pair("/save", Kind::kSave), std::pair("/read", Kind::kRead)}) {
    if (name != command) continue;
    if (!argument.empty()) return {.kind = kind, .text = argument};
    return {.kind = Kind::kWrong, .text = str(command, " needs a file name: ", command, " FILE")};
  }
  constexpr std::pair<std::string_view, Kind> kPlain[] = {
      {"/new", Kind::kNew}, {"/stats", Kind::kStats}, {"/help", Kind::kHelp}, {"/quit", Kind::kQuit}};
  for (const auto& [command, kind] : kPlain) {
    if (name != command) continue;
    if (!argument.empty())
      return {.kind = Kind::kWrong, .text = str(command, " takes no argument, but got '", argument, "'")};
    return {.kind = kind, .text = ""};
  }
  return {.kind = Kind::kWrong,
          .text = str("'", name,
                      "' is not a command (/help lists them); put a space before a question that begins with /")};
}

bool ChatInput::add(std::string_view line) {
  constexpr std::string_view kQuotes = "\"\"\"";
  if (!begun() && trimmed(line).starts_with(kQuotes)) {
    quoted_ = question_ = true;
    line = line.substr(line.find(kQuotes) + kQuotes.size());
  } else if (quoted_) {
    text_ += '\n';
  }
  if (quoted_) {
    const std::string_view end = line.substr(0, line.find_last_not_of(kBlank) + 1);
    quoted_ = !end.ends_with(kQuotes);
    text_ += quoted_ ? line : end.substr(0, end.size() - kQuotes.size());
    return !quoted_;
  }
  const bool more = line.ends_with('\\');
  text_ += line.substr(0, line.size() - (more ? 1 : 0));
  if (more) text_ += '\n';
  return !more;
}

ChatLine ChatInput::take() {
  const std::string text = std::exchange(text_, {});
  quoted_ = false;
  if (!std::exchange(question_, false)) return parse_chat_line(text);
  const std::string question(trimmed(text));
  return {.kind = question.empty() ? ChatLine::Kind::kEmpty : ChatLine::Kind::kQuestion, .text = question};
}

Chat::Chat(Engine& engine, ChatOptions options) : engine_(engine), options_(std::move(options)) {
  engine_.render({.system = options_.system, .user = "?"});
}

std::string Chat::first_message(std::string_view question) const {
  return options_.document.empty() ? std::string(question) : options_.document + "\n\n" + std::string(question);
}

ChatMessages Chat::messages(std::string_view question) const {
  ChatMessages messages{.system = options_.system, .user = std::string(question), .earlier = turns_};
  std::string& first = turns_.empty() ? messages.user : messages.earlier.front().content;
  first = first_message(first);
  return messages;
}

// The turn after an answer ends with a special token, which no word crosses. If there is no such token, the whole text
// is encoded.
std::vector<int32_t> Chat::encode(const std::vector<TextPart>& parts, const std::string& text) const {
  const Tokenizer& tokenizer = engine_.tokenizer();
  if (!ids_.empty() && text.starts_with(text_)) {
    const std::vector<int32_t> more = tokenizer.encode(rest_of(parts, text_.size()), AddBos::kNo);
    if (!more.empty() && tokenizer.is_special(more.front())) {
      std::vector<int32_t> ids = ids_;
      ids.insert(ids.end(), more.begin(), more.end());
      return ids;
    }
  }
  return tokenizer.encode(parts, AddBos::kNo);
}

GenerateResult Chat::run(const std::vector<int32_t>& ids, int64_t most_tokens, const ChatObserver& observer) {
  const auto tokens = static_cast<int64_t>(ids.size()), limit = engine_.context_limit();
  if (tokens + 1 > limit) {
    throw_error(ExitCode::kBadInput, "the conversation",
                str("has ", tokens, " tokens with this question; the context holds ", limit, ", the answer included"),
                turns_.empty()
                    ? "--long split reads summaries of its parts, --truncate middle cuts it. Or give less "
                      "text, or raise -c if the model allows"
                    : "Ask a shorter question, or start over with /new; -c raises the context if the model allows");
  }
  GenerateOptions run = options_.generate;
  run.keep = KeepRows::kAll;
  run.max_tokens = most_tokens;
  run.interrupt = observer.interrupt;
  run.on_text = observer.on_text;
  return engine_.generate(ids, run, observer.progress);
}

// Also computes rows for the end of the message and the template's text after it, which the first question replaces.
std::optional<GenerateResult> Chat::read(const ChatObserver& observer) {
  if (options_.document.empty()) return std::nullopt;
  const ChatMessages messages{.system = options_.system, .user = options_.document};
  return run(engine_.tokenizer().encode(engine_.render(messages), AddBos::kNo), 0, observer);
}

GenerateResult Chat::ask(std::string_view question, const ChatObserver& observer) {
  if (const std::optional<size_t> bad = first_bad_utf8(question)) {
    throw_error(ExitCode::kBadInput, "the question", str("is not UTF-8: byte ", *bad));
  }
  const std::vector<TextPart> parts = engine_.render(messages(question));
  std::string text = joined(parts);
  std::vector<int32_t> ids = encode(parts, text);
  GenerateResult result = run(ids, options_.generate.max_tokens, observer);
  if (result.finish_reason == FinishReason::kInterrupted && result.token_ids.empty()) return result;
  turns_.push_back({.assistant = false, .content = std::string(question)});
  // A template that writes a message's channel takes its text alone.
  const bool channels = result.thinking.marks && result.thinking.marks->channels;
  turns_.push_back({.assistant = true, .content = channels ? result.thinking.parts(result.text).answer : result.text});
  text_ = std::move(text) + result.text;
  ids_ = std::move(ids);
  ids_.insert(ids_.end(), result.token_ids.begin(), result.token_ids.end());
  return result;
}

void Chat::restart() {
  turns_.clear();
  text_.clear();
  ids_.clear();
}

std::string Chat::messages_json() const {
  nlohmann::ordered_json list = nlohmann::ordered_json::array();
  const auto add = [&](const char* role, const std::string& content) {
    list.push_back({{"role", role}, {"content", content}});
  };
  if (!options_.system.empty()) add("system", options_.system);
  for (const ChatTurn& turn : turns_) {
    add(turn.assistant ? "assistant" : "user", &turn == turns_.data() ? first_message(turn.content) : turn.content);
  }
  return report_text(list);
}

}  // namespace headrace
