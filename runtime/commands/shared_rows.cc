#include "runtime/commands/shared_rows.h"

#include <algorithm>
#include <array>
#include <filesystem>
#include <fstream>
#include <limits>

namespace headrace {

namespace fs = std::filesystem;

namespace {

constexpr size_t kMinSharedBytes = 1024;
constexpr int64_t kWholeContext = std::numeric_limits<int64_t>::max();

// SharedPrompt::shared may be as little as half of the common beginning.
bool is_long(size_t shared, const SharedPrompt& prompt) { return shared > 0 && shared >= prompt.bytes / 8; }

int64_t with_answer(int64_t prompt_tokens, int64_t answer_tokens) {
  return answer_tokens < 0 ? kWholeContext : prompt_tokens + answer_tokens;
}

// Estimates from the bytes per token of a prompt with the same beginning, with a margin: the rest may be another kind
// of text.
int64_t estimated_tokens(const SharedPrompt& known, int64_t tokens, const SharedPrompt& other) {
  const double bytes_ratio = static_cast<double>(other.bytes) / static_cast<double>(std::max<uint64_t>(known.bytes, 1));
  return static_cast<int64_t>(static_cast<double>(tokens) * bytes_ratio * 17 / 16) + 64;
}

// The length of the common beginning of two files; 0 if it is less than a kilobyte, or if either is not a file.
size_t common_beginning(const std::string& a, const std::string& b) {
  std::error_code error;
  if (!fs::is_regular_file(a, error) || !fs::is_regular_file(b, error)) return 0;
  std::ifstream left(a, std::ios::binary), right(b, std::ios::binary);
  std::array<char, 4096> left_block{}, right_block{};
  size_t common = 0;
  for (;;) {
    left.read(left_block.data(), left_block.size());
    right.read(right_block.data(), right_block.size());
    const auto bytes = std::min(left.gcount(), right.gcount());
    const auto alike = std::mismatch(left_block.begin(), left_block.begin() + bytes, right_block.begin()).first;
    common += static_cast<size_t>(alike - left_block.begin());
    if (alike != left_block.end()) return common < kMinSharedBytes ? 0 : common;
  }
}

}  // namespace

std::vector<SharedPrompt> shared_prompts(const std::vector<std::string>& files, int64_t answer_tokens) {
  std::vector<SharedPrompt> prompts;
  for (size_t i = 0; i < files.size(); ++i) {
    std::error_code error;
    const uintmax_t bytes = fs::file_size(files[i], error);
    prompts.push_back({.bytes = error ? 0 : bytes,
                       .shared = i == 0 ? 0 : common_beginning(files[i - 1], files[i]),
                       .answer_tokens = answer_tokens});
  }
  return prompts;
}

std::vector<size_t> shared_bytes(std::span<const SharedPrompt> prompts) {
  std::vector<size_t> shared;
  for (const SharedPrompt& prompt : prompts) shared.push_back(prompt.shared);
  return shared;
}

bool may_share_rows(const EngineOptions& options) {
  return options.prefix_cache.folder.empty() && options.verify.mode != VerifyMode::kApproximate;
}

int64_t tokens_to_share(std::span<const SharedPrompt> prompts, size_t index, int64_t prompt_tokens) {
  const SharedPrompt& own = prompts[index];
  const int64_t least = with_answer(prompt_tokens, own.answer_tokens);
  int64_t longest = is_long(own.shared, own) ? least : 0;
  size_t shared = own.bytes;
  for (size_t next = index + 1; next < prompts.size(); ++next) {
    shared = std::min(shared, prompts[next].shared);
    if (!is_long(shared, prompts[next])) break;
    const int64_t tokens = estimated_tokens(own, prompt_tokens, prompts[next]);
    longest = std::max({longest, least, with_answer(tokens, prompts[next].answer_tokens)});
  }
  return longest;
}

GenerateResult generate_sharing(Engine& engine, const std::vector<int32_t>& prompt, GenerateOptions options,
                                int64_t keep_tokens, Progress* progress) {
  if (keep_tokens == 0) return engine.generate(prompt, options, progress);
  GenerateOptions keeping = options;
  keeping.keep = KeepRows::kPrompt;
  // Prompts with and without log-probabilities, schemas and penalties share rows.
  if (keeping.log_probs == LogProbs::kNone) keeping.log_probs = LogProbs::kReserved;
  keeping.rules_reserved = true;
  const int64_t own = with_answer(static_cast<int64_t>(prompt.size()), options.max_tokens);
  for (const int64_t tokens : {keep_tokens, own}) {
    keeping.keep_tokens = tokens;
    if (std::optional<GenerateResult> result = engine.try_generate(prompt, keeping, progress)) {
      return *std::move(result);
    }
  }
  return engine.generate(prompt, options, progress);
}

}  // namespace headrace
