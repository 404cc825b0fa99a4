// The text output of headrace plan. Pure; any thread.
#pragma once

#include <string>

#include "runtime/commands/plan.h"

namespace headrace {

// Several lines, each ended by a newline.
std::string format_plan(const PlanReport& report);

}  // namespace headrace
