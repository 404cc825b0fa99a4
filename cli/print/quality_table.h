// The text output of headrace bench quality. Pure; any thread.
#pragma once

#include <string>

#include "runtime/commands/perplexity.h"
#include "runtime/commands/quality.h"

namespace headrace {

// The model, the machine and the column names; lines with newlines.
std::string quality_heading(const QualityReport& report);
std::string quality_line(const QualityRow& row);
std::string needle_heading();
std::string needle_line(const NeedleRow& row);
// After the rows: the means over several documents, sentences found, and whether all lossless texts were equal.
std::string quality_summary(const QualityReport& report);

// The same for --perplexity; the summary is empty for one document.
std::string perplexity_heading(const PerplexityReport& report);
std::string perplexity_line(const PerplexityRow& row);
std::string perplexity_summary(const PerplexityReport& report);

}  // namespace headrace
