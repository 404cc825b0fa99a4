#include "cli/print/summary_text.h"

#include <algorithm>
#include <filesystem>
#include <set>

#include "cache/base.h"
#include "cli/print/format.h"
#include "runtime/base/utf8.h"
#include "runtime/commands/report.h"

namespace headrace {
namespace {

std::string quoted(const std::string& field) {
  std::string text = "\"";
  for (const char c : field) text += c == '"' ? std::string("\"\"") : std::string(1, c);
  return text + "\"";
}

std::string ended(std::string text) {
  if (text.empty() || text.back() != '\n') text += '\n';
  return text;
}

double seconds_of(const GenerateResult& result) {
  return (result.timings.ttft_ms + result.timings.decode_ms + totals_of(result.parts).ms) / 1e3;
}

int64_t tokens_of(const GenerateResult& result) { return result.prompt_tokens + totals_of(result.parts).prompt_tokens; }

std::string answer_of(const GenerateResult& result) { return result.thinking.parts(result.text).answer; }

// At most `most` characters, at a border of one.
std::string cut_to(const std::string& text, size_t most) {
  if (text.size() <= most) return text;
  size_t end = most;
  while (end > 0 && is_continuation(text[end])) --end;
  return text.substr(0, end);
}

}  // namespace

const char* summary_suffix(SummaryFormat format) {
  constexpr const char* kSuffixes[] = {".txt", ".md", ".csv", ".jsonl"};
  return kSuffixes[static_cast<size_t>(format)];
}

std::string summary_heading(SummaryFormat format) {
  return format == SummaryFormat::kCsv ? "file,prompt_tokens,tokens,seconds,finish_reason,summary\n" : "";
}

std::string format_summary(SummaryFormat format, const std::string& file, const GenerateResult& result) {
  switch (format) {
    case SummaryFormat::kText:
      return ended(answer_of(result));
    case SummaryFormat::kMarkdown:
      return str("# ", visible_name(file), "\n\n", ended(answer_of(result)), "\n");
    case SummaryFormat::kCsv:
      return str(quoted(file), ",", tokens_of(result), ",", result.token_ids.size(), ",",
                 format_rate(seconds_of(result)), ",", finish_reason_name(result.finish_reason), ",",
                 quoted(answer_of(result)), "\n");
    case SummaryFormat::kJsonLines:
      break;
  }
  return result_json(result, {file, ""}) + "\n";
}

std::vector<std::string> summary_files(const std::vector<std::string>& documents, SummaryFormat format) {
  std::vector<std::string> names;
  std::set<std::string> taken;
  for (const std::string& document : documents) {
    const std::string base = document == "-" ? "stdin" : std::filesystem::path(document).filename().string();
    std::string name = base + summary_suffix(format);
    for (int number = 2; !taken.insert(name).second; ++number) name = str(base, "-", number, summary_suffix(format));
    names.push_back(std::move(name));
  }
  return names;
}

SummaryRow summary_row(const std::string& file, const GenerateResult& result) {
  const std::string text = answer_of(result);
  const size_t begin = std::min(text.find_first_not_of(" \t\r\n"), text.size());
  return {.file = file,
          .tokens = tokens_of(result),
          .seconds = seconds_of(result),
          .first_line = text.substr(begin, std::min(text.find('\n', begin), text.size()) - begin)};
}

std::string format_summaries(const std::vector<SummaryRow>& rows, size_t columns) {
  constexpr size_t kMaxName = 32;
  size_t width = 4;
  for (const SummaryRow& row : rows) width = std::max(width, std::min(kMaxName, visible_name(row.file).size()));
  std::string text = str("  ", filled("file", width), padded("tokens", 12), padded("time", 10), "  first line\n");
  for (const SummaryRow& row : rows) {
    const std::string name = visible_name(row.file);  // of a long one its end, which says which file it is
    const std::string shown = name.size() <= width ? name : "..." + name.substr(name.size() - width + 3);
    const std::string line =
        str("  ", filled(shown, width), padded(row.tokens > 0 ? format_count(row.tokens) : "", 12),
            padded(row.seconds > 0 ? format_duration(row.seconds) : "", 10), "  ", visible_name(row.first_line));
    text += cut_to(line, columns) + "\n";
  }
  return text;
}

}  // namespace headrace
