// Finds documents, reads them, and makes prompts that fit. Reads files, owns nothing. Any thread.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "cache/base.h"
#include "runtime/base/input_file.h"

namespace headrace {

// Replaces each folder with the files below it, in the order of their names, without hidden ones. Files stay, missing
// ones too, so that a batch can report them and continue. Leaves out `outputs`, the files and folders that the run
// writes, and the files that stdout and stderr are redirected to, under every name they have. Throws Error: a folder
// that cannot be listed (kBadInput); standard input named twice, or no document left (kUsage).
// `skipped` is not null: files of folders that are neither text nor of a format that document_text() converts are added
// to it, and left out.
std::vector<std::string> expand_documents(const std::vector<std::string>& paths,
                                          const std::vector<std::string>& outputs = {},
                                          std::vector<std::string>* skipped = nullptr);
bool is_document(const std::string& path);  // a file of such a kind, or one that cannot be read
// "skipped 3 files that are not documents: 2 .png, 1 without a suffix"; empty if there are none.
std::string skipped_note(const std::vector<std::string>& skipped);

// A text or a prompt that is too long for the context: kBadInput, which OpenAI's clients know by a code of its own.
class ContextExceeded : public Error {
 public:
  ContextExceeded(std::string where, std::string what, std::string hint)
      : Error({ExitCode::kBadInput, std::move(where), std::move(what), std::move(hint)}) {}
};

// How much of a document may be read.
constexpr uint64_t kMaxDocumentBytes = kMaxStreamBytes;
struct DocumentLimit {
  uint64_t bytes = kMaxDocumentBytes;
  int64_t context_tokens = 0;  // the context that sets the limit; 0: the program's own limit
};
// A longer document cannot fit the context, because no token has more bytes.
DocumentLimit limit_of_context(int64_t context_tokens, uint64_t longest_token_bytes);
// Throws Error(kBadInput), or ContextExceeded, with both sizes and what to do.
void check_document_size(const std::string& name, uint64_t bytes, const DocumentLimit& limit);
inline constexpr const char* kShortenHint =
    "summarize --long split answers it in parts, --truncate middle cuts it. Or shorten it, ask for less with -n, or "
    "raise "
    "-c/--ctx-size if the model allows";

struct ReadOptions {
  DocumentLimit limit{};                         // a longer document is rejected before it is read
  const std::atomic<bool>* interrupt = nullptr;  // if set while the read waits for a pipe: Error(kInterrupted)
  double convert_seconds = 120;                  // of document_text(): limits of the converter
  uint64_t convert_memory_bytes = 4 * kGiB;
};
// The whole text of a file ("-": standard input), without a UTF-8 byte order mark. Throws Error(kBadInput) that names
// the file: missing, a folder, too long, not UTF-8 (with the offset), a git-LFS pointer, only white space.
std::string read_document(const std::string& path, const ReadOptions& options = {});
// The same for a document in any format: of PDF, DOCX, ODT, EPUB, HTML and RTF the text that a converter makes of it
// (document_format.h), which the limit is for. Such a file may have kMaxDocumentBytes.
std::string document_text(const std::string& path, const ReadOptions& options = {});
// The same of what has been read; `name` is for errors, and its suffix tells HTML from text.
std::string text_of_document(const std::string& name, std::string content, const ReadOptions& options = {});

// The offset of the first byte that is not UTF-8.
std::optional<size_t> first_bad_utf8(std::string_view text);

enum class Truncate { kNone, kMiddle };

struct PromptRules {
  std::string instruction;  // follows the text
  Truncate truncate = Truncate::kNone;
  int64_t context_tokens = 0;  // shared by prompt and answer
  int64_t answer_tokens = 1;   // of those, reserved for the answer
};
using EncodePrompt = std::function<std::vector<int32_t>(std::string_view user_text)>;

struct DocumentPrompt {
  std::vector<int32_t> ids;
  std::string text;          // that they are of, without the instruction
  int64_t whole_tokens = 0;  // of the prompt with the whole text
  int64_t left_out_tokens() const { return whole_tokens - static_cast<int64_t>(ids.size()); }
};

// "text, instruction". If the prompt leaves less than the answer's room: kNone throws Error(kBadInput) that names the
// file and the number of tokens (ContextExceeded); kMiddle removes the middle of the text, at character borders.
DocumentPrompt document_prompt(const std::string& file, std::string_view text, const PromptRules& rules,
                               const EncodePrompt& encode);

}  // namespace headrace
