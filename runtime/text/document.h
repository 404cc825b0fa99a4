// Documents: found, read whole and made into a prompt that fits. Reads files, owns nothing. Any thread.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace headrace {

// Replaces each folder with the files below it, in the order of their names, without hidden ones. Files stay, missing
// ones too, so that a batch can report them and continue. Leaves out `outputs`, the files and folders that the run
// writes, and the files that stdout and stderr are redirected to, under every name they have. Throws Error: a folder
// that cannot be listed (kBadInput); standard input named twice, or no document left (kUsage).
std::vector<std::string> expand_documents(const std::vector<std::string>& paths,
                                          const std::vector<std::string>& outputs = {});

// How much of a document is read.
constexpr uint64_t kMaxDocumentBytes = uint64_t{256} << 20;
struct DocumentLimit {
  uint64_t bytes = kMaxDocumentBytes;
  int64_t context_tokens = 0;  // what the limit is of; 0: of the program itself
};
// What is longer cannot fit the context: no token stands for more bytes.
DocumentLimit limit_of_context(int64_t context_tokens, uint64_t longest_token_bytes);
// Throws Error(kBadInput) with both sizes and what to do.
void check_document_size(const std::string& name, uint64_t bytes, const DocumentLimit& limit);
inline constexpr const char* kShortenHint =
    "Shorten it, ask for less with -n, raise -c/--ctx-size if the model allows, or use --truncate middle";

struct ReadOptions {
  DocumentLimit limit{};                         // a longer document is an error before it is read
  const std::atomic<bool>* interrupt = nullptr;  // set while a pipe is waited for: Error(kInterrupted)
};
// The whole text of a file ("-": standard input), a UTF-8 byte order mark left out. Throws Error(kBadInput) that names
// the file: not there, a folder, too long, not UTF-8 (with the offset), a git-LFS pointer, nothing but white space.
std::string read_document(const std::string& path, const ReadOptions& options = {});

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
