// What the JSON reports share. Pure; any thread. Included by .cc files only, because nlohmann's header compiles slowly.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "offload/host/machine.h"
#include "runtime/commands/profile_store.h"
#include "runtime/engine/engine.h"

namespace headrace {

inline nlohmann::ordered_json machine_json(const Machine& machine, const std::string& device) {
  return {{"cpu", machine.cpu}, {"cores", machine.cores}, {"memory_bytes", machine.memory_bytes}, {"device", device}};
}

// [{"stored", "loaded", "tensors", "stored_bytes", "bytes"}]
nlohmann::ordered_json weights_json(const std::vector<WeightTypeUse>& types);
// "draft_window", "draft_trained_positions" and "draft_cache", if there are such.
void add_draft_window(const DraftWindow& window, nlohmann::ordered_json* out);
// By mode: {"steps", "nodes", "tau", "confirmed", "draft_ms_per_step", "verify_ms_per_step"}, rounded to `decimals`.
nlohmann::ordered_json steps_json(const Speculation& speculation, int decimals, bool with_nodes);
// What refreshes decided about pending tokens: {"judged", "overturned", "discarded", "rescued", "foretold",
// "overturn_rate"}, and with --max-overturned the "lossless_tokens".
nlohmann::ordered_json verdicts_json(const VerifyOutcome& outcome, int decimals, bool with_foretold);
// By age: {"tokens": of a group, "steps", "accepted", "judged", "overturned"}, lists with a number for each group.
nlohmann::ordered_json ages_json(const Speculation& speculation);
// The objects "rates" and "spread" of a profile.
nlohmann::ordered_json rates_json(const MachineRates& rates);
nlohmann::ordered_json spread_json(const std::vector<RateSpread>& spread);

nlohmann::ordered_json list_json(const auto& rows, const auto& row_json) {
  nlohmann::ordered_json list = nlohmann::ordered_json::array();
  for (const auto& row : rows) list.push_back(row_json(row));
  return list;
}

// Of a whole report, with a newline; of a line, without. Bytes that are not UTF-8 become U+FFFD.
std::string report_text(const nlohmann::ordered_json& report);
std::string line_text(const nlohmann::ordered_json& line);

}  // namespace headrace
