// Summaries of documents in the forms of summarize --summary-format, the names of their files, and the table after
// them. Pure; any thread.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "runtime/engine/engine.h"

namespace headrace {

enum class SummaryFormat : uint8_t { kText, kMarkdown, kCsv, kJsonLines };

// ".md"; of text ".txt".
const char* summary_suffix(SummaryFormat format);
// The line before the first one; empty: none.
std::string summary_heading(SummaryFormat format);
// The answer without its thinking, ended by a newline.
std::string format_summary(SummaryFormat format, const std::string& file, const GenerateResult& result);

// "report.txt" -> "report.txt.md", in the order of the documents; equal names get a number.
std::vector<std::string> summary_files(const std::vector<std::string>& documents, SummaryFormat format);

struct SummaryRow {
  std::string file;
  int64_t tokens = 0;  // read
  double seconds = 0;
  std::string first_line;  // of the summary, or the error
};
SummaryRow summary_row(const std::string& file, const GenerateResult& result);
// Lines of at most `columns` characters.
std::string format_summaries(const std::vector<SummaryRow>& rows, size_t columns);

}  // namespace headrace
