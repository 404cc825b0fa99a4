// What headrace plan says beside the plan itself: other settings side by side with those that were asked for, and the
// context that the model was made for. Internal to plan. Thread: one.
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "runtime/commands/plan.h"

namespace headrace {

// The engine of these options on a simulated device. Throws Error as Engine does.
std::unique_ptr<Engine> open_plan_engine(const PlanOptions& options, const DryRunCard& card,
                                         const std::optional<MachineRates>& rates);

// Sets own_context_tokens, card_rope and quantised.
void note_context(const PlanOptions& options, const Engine& engine, PlanReport* report);

// The run first, then those with smaller weights, a smaller cache or both, and with every pass over all of it.
// `report`: of the options, but for its settings.
std::vector<PlanSetting> compare_settings(const PlanOptions& options, const DryRunCard& card, const PlanReport& report);

}  // namespace headrace
