// What headrace bench quality prints for people. Pure; any thread.
#pragma once

#include <string>

#include "runtime/commands/quality.h"

namespace headrace {

// The model, the machine and the columns' names; lines, each with its newline.
std::string quality_heading(const QualityReport& report);
std::string quality_line(const QualityRow& row);
std::string needle_heading();
std::string needle_line(const NeedleRow& row);
// What is behind the lines: the means over several documents, sentences found, and whether all lossless texts were.
std::string quality_summary(const QualityReport& report);

}  // namespace headrace
