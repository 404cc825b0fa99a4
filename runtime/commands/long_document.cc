#include "runtime/commands/long_document.h"

#include <algorithm>
#include <utility>

#include "cache/base.h"
#include "runtime/text/split.h"

namespace headrace {
namespace {

// `text` in `parts` parts with as few tokens in the longest as `most` and the borders of paragraphs allow; none if
// there are no so small parts.
std::vector<std::string_view> split_in(size_t parts, std::string_view text, int64_t tokens, int64_t most,
                                       const CountTokens& count) {
  const auto mean = static_cast<double>(tokens) / static_cast<double>(parts);
  for (const double slack : {1.02, 1.06, 1.15, 1.3}) {  // parts end where paragraphs do
    const auto even = static_cast<int64_t>(mean * slack) + 1;
    if (even >= most) break;
    std::vector<std::string_view> equal = split_to_fit(text, even, count);
    if (equal.size() == parts) return equal;
  }
  return {};
}

// As many parts as split_to_fit() makes, of about the same size. The last of them is else as short as it happens to be,
// and where paragraphs are long it is still: then it shares with the one before it.
std::vector<std::string_view> split_evenly(std::string_view text, int64_t most, const CountTokens& count) {
  std::vector<std::string_view> parts = split_to_fit(text, most, count);
  if (parts.size() < 2) return parts;
  int64_t tokens = 0;
  for (const std::string_view part : parts) tokens += count(part);
  if (auto equal = split_in(parts.size(), text, tokens, most, count); !equal.empty()) parts = std::move(equal);
  const std::string_view before = parts[parts.size() - 2], last = parts.back();
  const std::string_view both(before.data(), static_cast<size_t>(last.data() + last.size() - before.data()));
  if (const auto pair = split_in(2, both, count(both), most, count); !pair.empty()) {
    parts[parts.size() - 2] = pair[0], parts.back() = pair[1];
  }
  return parts;
}

}  // namespace

GenerateResult answer_long(const std::string& file, const std::string& text, const PromptRules& rules,
                           const EncodePrompt& encode, const AnswerPrompt& answer) {
  const int64_t most = std::max<int64_t>(1, rules.context_tokens - std::max<int64_t>(1, rules.answer_tokens));
  const auto prompt = [&](std::string_view part) { return encode(std::string(part) + rules.instruction); };
  const auto count = [&](std::string_view part) { return static_cast<int64_t>(prompt(part).size()); };
  std::vector<PartAnswer> done;
  std::string current = text;
  size_t parts_before = 0;
  for (int64_t level = 1;; ++level) {
    const std::vector<int32_t> whole = prompt(current);
    if (static_cast<int64_t>(whole.size()) <= most) {
      GenerateResult result = answer(whole, {.level = level});
      result.parts = std::move(done);
      return result;
    }
    const std::vector<std::string_view> parts = split_evenly(current, most, count);
    if (parts.empty()) {
      throw_error(
          ExitCode::kBadInput, file,
          str("cannot be split: the context of ", rules.context_tokens, " tokens does not hold the instruction, ",
              rules.answer_tokens, " tokens for the answer and one character"),
          "Raise -c/--ctx-size, or ask for less with -n");
    }
    if (level > 1 && parts.size() >= parts_before) {
      throw_error(ExitCode::kBadInput, file,
                  str("the answers to its ", parts_before, " parts fill ", parts.size(), " parts again"),
                  "Ask for shorter answers with -n, or raise -c/--ctx-size");
    }
    parts_before = parts.size();
    std::string joined;
    for (size_t i = 0; i < parts.size(); ++i) {
      GenerateResult part = answer(prompt(parts[i]), {.last = false,
                                                      .level = level,
                                                      .part = static_cast<int64_t>(i) + 1,
                                                      .parts = static_cast<int64_t>(parts.size())});
      if (part.finish_reason == FinishReason::kInterrupted) return part;
      if (!joined.empty()) joined += "\n\n";
      joined += part.text;
      done.push_back({.level = level,
                      .first_byte = static_cast<uint64_t>(parts[i].data() - current.data()),
                      .bytes = parts[i].size(),
                      .prompt_tokens = part.prompt_tokens,
                      .tokens = static_cast<int64_t>(part.token_ids.size()),
                      .ttft_ms = part.timings.ttft_ms,
                      .decode_ms = part.timings.decode_ms,
                      .cut = part.finish_reason == FinishReason::kLength,
                      .text = std::move(part.text)});
    }
    current = std::move(joined);
  }
}

}  // namespace headrace
