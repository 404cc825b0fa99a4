// The text output of headrace bench. Pure; any thread.
#pragma once

#include <string>

#include "runtime/commands/bench.h"
#include "runtime/model/files/shapes.h"

namespace headrace {

// The model, the machine and its link, and the column names; lines with newlines.
std::string bench_heading(const BenchReport& report);
std::string bench_line(const BenchReport& report, const BenchRow& row);

// "llama-3.1-8b       8.03 B  32 layers of 4,096, …"
std::string shape_line(const Shape& shape);

}  // namespace headrace
