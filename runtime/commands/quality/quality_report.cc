// A quality report as JSON, the format of bench/results.
#include <nlohmann/json.hpp>

#include "runtime/base/rounding.h"
#include "runtime/commands/machine_json.h"
#include "runtime/commands/quality/quality.h"

namespace headrace {
namespace {

using nlohmann::ordered_json;

double four_decimals(double value) { return to_decimals(value, 4); }

ordered_json interval_json(int64_t interval) {
  return interval == kAutoInterval ? ordered_json("auto") : ordered_json(interval);
}

void add_reading(const PartialReading& reading, ordered_json* out) {
  (*out)["partial_kv"] = partial_kind_name(reading.kind);
  if (reading.budget > 0) (*out)["budget"] = reading.budget;
}

// Steps, tau, committed tokens and times by mode, and the refreshes' verdicts on pending tokens.
ordered_json steps_json(const Speculation& s) {
  ordered_json out = ordered_json::object();
  for (const StepMode mode : {StepMode::kFull, StepMode::kPartial, StepMode::kRefresh}) {
    const Speculation::Kind& kind = s.of(mode);
    if (kind.steps == 0) continue;
    out[step_mode_name(mode)] = {
        {"steps", kind.steps},
        {"tau", four_decimals(kind.tau())},
        {"confirmed", kind.committed},
        {"draft_ms_per_step", four_decimals(kind.draft_ms / static_cast<double>(kind.steps))},
        {"verify_ms_per_step", four_decimals(kind.verify_ms / static_cast<double>(kind.steps))}};
  }
  return out;
}

ordered_json judged_json(const VerifyOutcome& verify_outcome) {
  return {{"judged", verify_outcome.judged},
          {"overturned", verify_outcome.rejected},
          {"discarded", verify_outcome.discarded},
          {"rescued", verify_outcome.recovered},
          {"overturn_rate", four_decimals(verify_outcome.overturn_rate())}};
}

ordered_json row_json(const QualityRow& row) {
  ordered_json out = ordered_json::object();
  if (!row.document.empty()) out["document"] = row.document;
  out["temperature"] = four_decimals(static_cast<double>(row.temperature));
  add_reading(row.reading, &out);
  out["interval"] = interval_json(row.interval);
  out["runs"] = row.runs;
  out["prompt_tokens"] = row.prompt_tokens;
  out["decode_tokens"] = row.decode_tokens;
  out["partial_holds_all"] = row.holds_all;
  out["lossless"] = judged_json(row.lossless.verify_outcome);
  out["lossless"]["steps"] = steps_json(row.lossless);
  out["lossless"]["same_text"] = row.lossless_same;
  out["approximate"] = judged_json(row.approximate.verify_outcome);
  out["approximate"]["steps"] = steps_json(row.approximate);
  out["approximate"]["same_text"] = row.approximate_same;
  out["approximate"]["rouge_l"] = four_decimals(row.rouge_l());
  return out;
}

ordered_json needle_json(const NeedleRow& row) {
  ordered_json out = {{"document", row.document},
                      {"depth", four_decimals(row.depth)},
                      {"temperature", four_decimals(static_cast<double>(row.temperature))},
                      {"verify", row.reading ? "approximate" : "full"}};
  if (row.reading) {
    add_reading(*row.reading, &out);
    out["interval"] = interval_json(row.interval);
  }
  out["prompt_tokens"] = row.prompt_tokens;
  out["number"] = row.number;
  out["found"] = row.found;
  out["answer"] = row.answer;
  out["tau"] = four_decimals(row.speculation.tau());
  out["steps"] = steps_json(row.speculation);
  return out;
}

}  // namespace

std::string quality_json(const QualityReport& report) {
  const QualityOptions& options = report.options;
  ordered_json out = {{"program", "headrace bench quality"},
                      {"machine", machine_json(report.machine, report.device)},
                      {"model", report.model},
                      {"dtype", dtype_name(report.dtype)},
                      {"prefill_type", report.prefill_type},
                      {"draft", report.draft},
                      {"instruction", options.instruction},
                      {"prompt_tokens", options.prompt_tokens},
                      {"decode_tokens", options.decode_tokens},
                      {"ignore_eos", options.ignore_eos},
                      {"seed", options.seed},
                      {"seconds", four_decimals(report.seconds)}};
  out["rows"] = ordered_json::array();
  for (const QualityRow& row : report.rows) out["rows"].push_back(row_json(row));
  out["all_documents"] = ordered_json::array();
  for (const QualityRow& row : report.means()) out["all_documents"].push_back(row_json(row));
  out["needles"] = ordered_json::array();
  for (const NeedleRow& row : report.needles) out["needles"].push_back(needle_json(row));
  out["interrupted"] = report.interrupted;
  return out.dump(1, ' ', false, ordered_json::error_handler_t::replace) + "\n";
}

}  // namespace headrace
