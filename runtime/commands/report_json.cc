#include "runtime/commands/report_json.h"

#include <cmath>

#include "runtime/base/rounding.h"

namespace headrace {

using nlohmann::ordered_json;

ordered_json weights_json(const std::vector<WeightTypeUse>& types) {
  return list_json(types, [](const WeightTypeUse& use) {
    return ordered_json{{"stored", use.stored},
                        {"loaded", use.loaded},
                        {"tensors", use.tensors},
                        {"stored_bytes", use.stored_bytes},
                        {"bytes", use.bytes}};
  });
}

void add_draft_window(const DraftWindow& window, ordered_json* out) {
  (*out)["draft_window"] = window.rows;
  if (window.trained_positions > 0) (*out)["draft_trained_positions"] = window.trained_positions;
  if (const RetrievalShape& chosen = window.retrieval; chosen.chunks > 0) {
    (*out)["draft_cache"] = {{"chunks", chosen.chunks}, {"rows", chosen.rows}, {"every", chosen.every}};
  }
}

ordered_json steps_json(const Speculation& speculation, int decimals, bool with_nodes) {
  ordered_json out = ordered_json::object();
  for (const StepMode mode : {StepMode::kFull, StepMode::kPartial, StepMode::kRefresh}) {
    const Speculation::Kind& kind = speculation.of(mode);
    if (kind.steps == 0) continue;
    const auto a_step = [&](double sum) { return to_decimals(sum / static_cast<double>(kind.steps), decimals); };
    ordered_json& steps = out[step_mode_name(mode)] = {{"steps", kind.steps}};
    if (with_nodes) steps["nodes"] = kind.nodes;
    steps["tau"] = to_decimals(kind.tau(), decimals);
    steps["confirmed"] = kind.committed;
    steps["draft_ms_per_step"] = a_step(kind.draft_ms);
    steps["verify_ms_per_step"] = a_step(kind.verify_ms);
  }
  return out;
}

ordered_json verdicts_json(const VerifyOutcome& outcome, int decimals, bool with_foretold) {
  ordered_json out = {{"judged", outcome.judged},
                      {"overturned", outcome.rejected},
                      {"discarded", outcome.discarded},
                      {"rescued", outcome.recovered}};
  if (with_foretold) out["foretold"] = to_decimals(outcome.predicted, decimals);
  out["overturn_rate"] = to_decimals(outcome.overturn_rate(), decimals);
  if (outcome.lossless_tokens > 0) out["lossless_tokens"] = outcome.lossless_tokens;
  return out;
}

ordered_json ages_json(const Speculation& speculation) {
  const auto list = [&](int64_t Speculation::Age::*of) {
    return list_json(speculation.by_age, [of](const Speculation::Age& age) { return ordered_json(age.*of); });
  };
  return {{"tokens", Speculation::kAgeTokens},
          {"steps", list(&Speculation::Age::steps)},
          {"accepted", list(&Speculation::Age::accepted)},
          {"judged", list(&Speculation::Age::judged)},
          {"overturned", list(&Speculation::Age::rejected)}};
}

ordered_json rates_json(const MachineRates& rates) {
  ordered_json json = {{"gpu", rates.gpu}};
  for (const RateName& rate : kRateNames) json[rate.name] = std::round(rates.*rate.rate * 1e4) / 1e4;
  return json;
}

ordered_json spread_json(const std::vector<RateSpread>& spread) {
  ordered_json json = ordered_json::object();
  for (const RateSpread& one : spread) json[one.rate->name] = to_decimals(one.share, 4);
  return json;
}

std::string report_text(const ordered_json& report) {
  return report.dump(1, ' ', false, ordered_json::error_handler_t::replace) + "\n";
}
std::string line_text(const ordered_json& line) {
  return line.dump(-1, ' ', false, ordered_json::error_handler_t::replace);
}

}  // namespace headrace
