// The report of a run: the lines after the text, on stderr. Pure; any thread.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "runtime/commands/plan.h"
#include "runtime/engine/engine.h"

namespace headrace {

// Several lines, each ended by a newline. `engine` is Engine::describe(), `most_tokens` the value of -n (0: unknown),
// which tells a text that ended at the context's limit from one of full length.
std::string format_report(const GenerateResult& result, const std::string& engine, int64_t most_tokens = 0);

// A line with the advice to measure again if the run contradicts the profile measured at `measured`; empty: it does not
// (runtime/commands/report.h).
std::string format_contradiction(const GenerateResult& result, const std::string& measured);

// "the answer was cut after 256 tokens: -n allows more (-n -1: as many as fit)"; empty: it ended by itself, or by
// Ctrl-C. `most_tokens`: as in format_report().
std::string format_cut(const GenerateResult& result, int64_t most_tokens);

// "faster: --weights q4_k, about 27 tokens/s": the setting beside the first one, the run's own, with which it is
// predicted to be fastest, if it is by a quarter or more; else empty. `tokens_per_s`: of the run.
std::string format_faster(const std::vector<PlanSetting>& settings, double tokens_per_s);

// One line about the written trace.
std::string format_trace(const TraceSummary& trace);

// One line for a document of a batch: "7,713 tokens in, 92 out, 61.2 s", with the tokens that --truncate left out after
// the first number.
std::string format_summary_line(const GenerateResult& result);

// One line for an answer of a chat: "40 tokens, 34.4 tokens/s; 31 of 7,760 tokens read, first token after 0.31 s".
std::string format_chat_line(const GenerateResult& result);

}  // namespace headrace
