// Scores the tokens of a prompt by prefill's own states, for perplexity: the log-probability of each next token, and,
// if another run's states are there, how far the two distributions are from each other. Thread: the executor's.
#pragma once

#include "runtime/session/buffers.h"
#include "runtime/session/group_progress.h"

namespace headrace {

// Fills options.scores from work.hidden, which has the final states of all rows; `host` is the pinned memory of `work`.
// Waits for the stream. False: it was interrupted. REQUIRES: the prompt is scored.
bool score_prompt(const SessionLayout& layout, const SessionBuffers& buffers, const PrefillWork& work,
                  const PrefillStaging& host, const Watcher& watcher);

}  // namespace headrace
