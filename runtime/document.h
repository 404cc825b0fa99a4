// Documents: found, read whole and made into a prompt that fits. Reads files, owns nothing. Any thread.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace headrace {

// Files stay as they are, those that are not there too, so that a batch can go on without them; a folder becomes the
// files under it in the order of their names, hidden ones left out. Throws Error: a folder that cannot be listed
// (kBadInput), standard input named twice (kUsage).
std::vector<std::string> expand_documents(const std::vector<std::string>& paths);

// The whole text of a file ("-": standard input), a UTF-8 byte order mark left out. Throws Error(kBadInput) that names
// the file: not there, a folder, not UTF-8 (with the offset), nothing but white space.
std::string read_document(const std::string& path);

// Where the first byte that is not UTF-8 stands.
std::optional<size_t> first_bad_utf8(std::string_view text);

enum class Truncate { kNone, kMiddle };

struct PromptRules {
  std::string instruction;  // put after the text
  Truncate truncate = Truncate::kNone;
  int64_t context_tokens = 0;  // what prompt and answer share
  int64_t answer_tokens = 1;   // of them, kept free for the answer
};
using EncodePrompt = std::function<std::vector<int32_t>(std::string_view user_text)>;

struct DocumentPrompt {
  std::vector<int32_t> ids;
  int64_t whole_tokens = 0;  // of the prompt with all of the text
  int64_t left_out_tokens() const { return whole_tokens - static_cast<int64_t>(ids.size()); }
};

// "text, instruction". A prompt that leaves less than the answer's room is an Error(kBadInput) that names the file and
// says how many tokens it has, or, with kMiddle, loses the middle of its text, cut at characters.
DocumentPrompt document_prompt(const std::string& file, std::string_view text, const PromptRules& rules,
                               const EncodePrompt& encode);

}  // namespace headrace
