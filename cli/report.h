// What a run came to, for people: the lines that follow the text on stderr. Pure; any thread.
#pragma once

#include <string>

#include "runtime/engine.h"

namespace headrace {

// Several lines, each ended by a newline. `engine` is Engine::describe().
std::string format_report(const GenerateResult& result, const std::string& engine);

// One line for the trace that was written.
std::string format_trace(const TraceSummary& trace);

// One line for a document of a batch: "7,713 tokens in, 92 out, 61.2 s".
std::string format_summary_line(const GenerateResult& result);

}  // namespace headrace
