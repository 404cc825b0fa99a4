// Executes a planned run: prefill, then the loop of decode steps, and measures the time and the link's bytes of both.
// Internal to the engine. Thread: one.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>

#include "offload/host/clock.h"
#include "runtime/base/progress.h"
#include "runtime/engine/drafting.h"
#include "runtime/engine/output.h"
#include "runtime/engine/result.h"
#include "runtime/engine/run_setup.h"
#include "runtime/session/session.h"

namespace headrace {

// All references must outlive the run.
struct Run {
  const RunSetup& setup;
  const GenerateOptions& options;
  const std::string& model;  // the model's path, for errors
  Session& session;
  Drafting& drafting;  // outlives the session, which waits for the work that uses its memory
  Output& output;
  Progress* progress;  // may be null

  bool streams() const { return session.plan().ring_slots > 0; }  // passes over the full KV wait for the link
};

// Returns the token after the prompt; none: the run was interrupted, or a saved prefix is damaged. Times and bytes are
// added to those of earlier attempts. `started`: when the first attempt began its prefill.
std::optional<int32_t> prefill(const Run& run, std::span<const int32_t> prompt, HostClock::time_point started,
                               GenerateResult* result);

// Runs from the token after the prompt to the end.
void decode(const Run& run, int32_t first, GenerateResult* result);

}  // namespace headrace
