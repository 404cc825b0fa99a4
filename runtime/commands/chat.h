// A conversation about documents (headrace chat): questions and answers as messages, as text and as token ids.
//
// The rows of all its tokens stay in the KV cache (GenerateOptions::keep). The chat template renders the next prompt
// from the whole conversation. If that text begins with the text so far, the ids of the text so far are those that
// prefill read and the model generated, and only the rest is encoded. If the template renders an earlier turn
// differently (it drops thinking, or trims an answer), all of it is encoded, and the engine computes from the first
// different id on. So a prompt's text is always the template's.
//
// Borrows the engine. Thread: one, except for `interrupt`.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/engine/engine.h"

namespace headrace {

// A line of the terminal or of a pipe.
struct ChatLine {
  enum class Kind { kQuestion, kEmpty, kNew, kStats, kSave, kRead, kHelp, kQuit, kWrong };
  Kind kind = Kind::kEmpty;
  std::string text{};  // the question, the file of /save or /read, or what is wrong with the line
};
ChatLine parse_chat_line(std::string_view line);
inline constexpr const char* kChatCommands[] = {"/help", "/new", "/quit", "/read ", "/save ", "/stats"};

// Joins the lines of one message: a \ at a line's end continues it, and lines between two \"\"\" are a question as they
// are, whatever they begin with.
class ChatInput {
 public:
  // True: the message is complete.
  bool add(std::string_view line);
  bool begun() const { return quoted_ || !text_.empty(); }
  // The message so far, which need not be complete; the next line begins another.
  ChatLine take();
  void drop() { *this = {}; }

 private:
  std::string text_;
  bool quoted_ = false, question_ = false;
};
inline constexpr const char* kChatHelp =
    "/new         start over; the documents stay\n"
    "/read FILE   read a document, which goes before the next question\n"
    "/stats       show tokens and times\n"
    "/save FILE   write the conversation as JSON messages\n"
    "/help        show this\n"
    "/quit        end, as Ctrl-D does\n"
    "A \\ at a line's end continues it; \"\"\" begins and ends a question of several lines. Tab completes.\n"
    "Ctrl-C stops an answer; at the prompt, a second one ends the chat.\n";

struct ChatOptions {
  std::string system{};    // message; empty: the template's default
  std::string document{};  // the documents' text, the beginning of the first message; empty: none
  GenerateOptions generate{};
};

// The observers of one answer; each may be empty.
struct ChatObserver {
  std::function<void(std::string_view text)> on_text{};
  const std::atomic<bool>* interrupt = nullptr;
  Progress* progress = nullptr;
};

class Chat {
 public:
  // Throws Error(kUsage) if the model has no template for a conversation.
  Chat(Engine& engine, ChatOptions options);

  // Prefills the documents; nothing if there are none. Throws as ask().
  std::optional<GenerateResult> read(const ChatObserver& observer);
  // Returns the answer. An interrupted answer is kept as it is; if it has no token, the question is not part of the
  // conversation. Throws Error(kBadInput) for a question that is not UTF-8 or does not fit the context. An exception
  // leaves the conversation unchanged.
  GenerateResult ask(std::string_view question, const ChatObserver& observer);
  void restart();  // forgets questions and answers

  int64_t questions() const { return static_cast<int64_t>(turns_.size() / 2); }
  int64_t tokens() const { return static_cast<int64_t>(ids_.size()); }  // of the conversation so far
  // A list of {"role", "content"}, as headrace inspect --render and other programs read it; the documents are in the
  // first of the user's.
  std::string messages_json() const;

 private:
  ChatMessages messages(std::string_view question) const;
  std::string first_message(std::string_view question) const;
  std::vector<int32_t> encode(const std::vector<TextPart>& parts, const std::string& text) const;
  GenerateResult run(const std::vector<int32_t>& ids, int64_t most_tokens, const ChatObserver& observer);

  Engine& engine_;
  const ChatOptions options_;
  std::vector<ChatTurn> turns_;  // questions and answers by turns, without the documents
  // The rendered conversation up to the last answer, and its ids. Empty before the first answer.
  std::string text_;
  std::vector<int32_t> ids_;
};

}  // namespace headrace
