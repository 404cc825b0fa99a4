// What a run came to, for people: the lines that follow the text on stderr. Pure; any thread.
#pragma once

#include <cstdint>
#include <string>

#include "runtime/engine/engine.h"

namespace headrace {

// Several lines, each ended by a newline. `engine` is Engine::describe(), `most_tokens` what -n was (0: not known), so
// that a text which ends for want of context is told from one that has its length.
std::string format_report(const GenerateResult& result, const std::string& engine, int64_t most_tokens = 0);

// A line that says how to measure again, where the run contradicts the profile that was measured at `measured`; empty:
// it does not (runtime/commands/report.h).
std::string format_contradiction(const GenerateResult& result, const std::string& measured);

// One line for the trace that was written.
std::string format_trace(const TraceSummary& trace);

// One line for a document of a batch: "7,713 tokens in, 92 out, 61.2 s"; what --truncate left out is said behind the
// first number.
std::string format_summary_line(const GenerateResult& result);

}  // namespace headrace
