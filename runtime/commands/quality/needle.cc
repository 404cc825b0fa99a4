#include "runtime/commands/quality/needle.h"

#include <algorithm>

#include "runtime/base/random.h"
#include "runtime/base/utf8.h"

namespace headrace {
namespace {

constexpr size_t kLongestToken = 16;  // bytes, on average over any text

std::string_view first_bytes(std::string_view text, size_t bytes) {
  bytes = std::min(bytes, text.size());
  while (bytes > 0 && bytes < text.size() && is_continuation(text[bytes])) --bytes;
  return text.substr(0, bytes);
}

}  // namespace

void check_prompt_tokens(const Engine& engine, int64_t prompt_tokens, int64_t behind) {
  const int64_t limit = engine.context_limit();
  if (prompt_tokens + behind <= limit) return;
  throw_error(ExitCode::kUsage, "--prompt-tokens",
              str(prompt_tokens, " and ", behind, " after them are more than ", limit, ", the context of ",
                  engine.model_path()),
              "Shorten them, or add --rope-scaling and --rope-scale.");
}

std::vector<int32_t> document_prompt(const Engine& engine, std::string_view text, std::string_view request) {
  return engine.encode({"", str(text, "\n\n", request)});
}

// Tokens are not spread evenly over a text, so each guess is corrected by its result.
std::string cut_document(const Engine& engine, const std::string& file, std::string_view text, std::string_view request,
                         int64_t tokens) {
  const auto wanted = static_cast<double>(tokens);
  const auto frame = static_cast<double>(document_prompt(engine, "", request).size());
  text = first_bytes(text, static_cast<size_t>(tokens) * kLongestToken);
  for (int attempt = 0; attempt < 32 && frame < wanted; ++attempt) {
    const auto taken = static_cast<double>(document_prompt(engine, text, request).size());
    if (taken <= wanted) return std::string(text);
    const double share = (wanted - frame) / std::max(1.0, taken - frame) - 0.001 * attempt;
    text = first_bytes(text, static_cast<size_t>(std::max(0.0, share) * static_cast<double>(text.size())));
  }
  throw_error(ExitCode::kUsage, "--prompt-tokens",
              str(tokens, " tokens are too few for ", file, " and a request after it"));
}

std::string needle_number(uint64_t seed, size_t index) {
  return str(1'000'000 + random64(seed ^ 0x6e6565646c65, index) % 9'000'000);
}

std::string needle_sentence(std::string_view number) {
  return str("The secret number of the lighthouse keeper is ", number, ".");
}

std::string with_needle(std::string_view text, double depth, std::string_view sentence) {
  const auto from = static_cast<size_t>(std::clamp(depth, 0.0, 1.0) * static_cast<double>(text.size()));
  size_t at = text.find(". ", from);
  at = at == std::string_view::npos ? text.find_first_of(" \n", from) : at + 1;
  at = std::min(at, text.size());
  return str(text.substr(0, at), " ", sentence, text.substr(at));
}

bool has_number(std::string_view answer, std::string_view number) {
  std::string digits;
  for (size_t i = 0; i < answer.size(); ++i) {
    const bool inside = i > 0 && i + 1 < answer.size() && answer[i - 1] >= '0' && answer[i - 1] <= '9' &&
                        answer[i + 1] >= '0' && answer[i + 1] <= '9';
    if (!inside || (answer[i] != ',' && answer[i] != ' ')) digits += answer[i];
  }
  return digits.find(number) != std::string::npos;
}

}  // namespace headrace
