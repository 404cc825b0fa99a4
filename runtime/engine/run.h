// A run under way: prefill, then the loop of decode steps, each timed and its bytes over the link counted. Internal to
// the engine. Thread: one.
#pragma once

#include <vector>

#include "offload/device/device.h"
#include "offload/host/clock.h"
#include "runtime/base/progress.h"
#include "runtime/engine/drafting.h"
#include "runtime/engine/output.h"
#include "runtime/engine/result.h"
#include "runtime/engine/run_setup.h"
#include "runtime/session/session.h"

namespace headrace {

// The result is that of all attempts: times and bytes of one that a damaged saved prefix ended are in it already.
struct Answer {
  Device& device;
  Stream& compute;
  const RunSetup& setup;
  const std::vector<int32_t>& prompt;
  const std::string& model;  // in errors
  std::string damage;        // the weights that hold NaN or infinity, for errors; empty: none do
  const GenerateOptions& run;
  Session& session;
  Drafting& drafting;
  Output& output;
  GenerateResult& result;         // has the plan
  HostClock::time_point started;  // when the first attempt began its prefill
  Progress* progress;             // may be null
};

void answer(const Answer& answer);

}  // namespace headrace
