#include "runtime/commands/report.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <numeric>
#include <utility>

#include "runtime/base/rounding.h"
#include "runtime/commands/report_json.h"

namespace headrace {
namespace {

using nlohmann::ordered_json;

constexpr double kContradicts = 0.25;  // of the prediction
constexpr double kMinMs = 500;         // shorter times are too noisy to compare

ordered_json labelled(const LineLabel& label) {
  ordered_json line = ordered_json::object();
  if (!label.file.empty()) line["file"] = label.file;
  if (!label.key.empty()) line["key"] = label.key;
  return line;
}

// Three decimals: timings are not more precise than a microsecond.
double rounded(double value) { return to_decimals(value, 3); }

double per_step(double sum, int64_t steps) { return steps > 0 ? rounded(sum / static_cast<double>(steps)) : 0; }

ordered_json speculation_json(const GenerateResult& result) {
  const Speculation& s = result.speculation;
  ordered_json out = {{"type", s.type.empty() ? "none" : s.type},
                      {"verify", verify_mode_name(s.verify)},
                      {"partial_kv", s.partial_kv.empty() ? "none" : s.partial_kv},
                      {"tau", rounded(s.tau())},
                      {"tokens_per_step", rounded(s.tokens_per_step())},
                      {"steps", s.steps},
                      {"proposed", s.proposed},
                      {"accepted", s.accepted},
                      {"confirmed", s.committed},
                      {"offered_by_depth", s.offered_by_depth},
                      {"accepted_by_depth", s.accepted_by_depth},
                      {"draft_ms_per_step", per_step(s.draft_ms, s.steps)},
                      {"verify_ms_per_step", per_step(s.verify_ms, s.steps)},
                      {"modes", steps_json(s, 3, true)},
                      {"pending", verdicts_json(s.verify_outcome, 3, true)}};
  if (!s.substitute.empty()) out["weights_substitute"] = s.substitute;
  if (!s.by_age.empty()) out["by_age"] = ages_json(s);
  if (!s.type.empty()) add_draft_window(result.draft_window, &out);
  return out;
}

// In runs without drafts and refreshes each step is timed, and the median counts, as in headrace bench.
double median_step_ms(std::vector<float> steps) {
  if (steps.empty()) return 0;
  std::nth_element(steps.begin(), steps.begin() + static_cast<int64_t>(steps.size() / 2), steps.end());
  return static_cast<double>(steps[steps.size() / 2]);
}

ordered_json predicted_json(const GenerateResult& result) {
  ordered_json out = ordered_json::object();
  for (const Compared& row : compare(result)) {
    out[str(row.what, "_ms")] = {{"predicted", rounded(row.predicted_ms)}, {"measured", rounded(row.measured_ms)}};
  }
  return out;
}

ordered_json prefix_json(const PrefixUse& p) {
  return {{"cached_tokens", p.rows},
          {"saved_tokens", p.saved_rows},
          {"restarts", p.restarts},
          {"read_bytes", p.read_bytes},
          {"saved_bytes", p.saved_bytes},
          {"save_ms", rounded(p.save_wait_ms)},
          {"notes", p.notes}};
}

ordered_json spill_json(const SpillUse& spill) {
  return {{"folder", spill.folder},
          {"how", spill.file.how},
          {"file_bytes", spill.file.file_bytes},
          {"prefill_written_bytes", spill.prefill_written_bytes},
          {"decode_written_bytes", spill.file.written_bytes - spill.prefill_written_bytes},
          {"decode_read_bytes", spill.file.read_bytes},
          {"read_busy_ms", rounded(spill.file.read_busy_ms)},
          {"checksum_ms", rounded(spill.file.checksum_ms)},
          {"verify_wait_ms", rounded(spill.file.verify_wait_ms)},
          {"read_depth", spill.file.reads_at_once}};
}

}  // namespace

std::vector<Compared> compare(const GenerateResult& result) {
  std::vector<Compared> rows;
  if (!result.predicted) return rows;
  const Speculation& s = result.speculation;
  const bool fresh = result.prefix.rows == 0 && result.prefix.restarts == 0;  // otherwise there was less or more to do
  if (fresh && result.predicted->prefill.known && result.timings.ttft_ms > 0)
    rows.push_back({"prefill", result.predicted->prefill.ms(), result.timings.ttft_ms});
  for (const StepMode mode : {StepMode::kFull, StepMode::kPartial, StepMode::kRefresh}) {
    const Speculation::Kind& kind = s.of(mode);
    if (!result.predicted->of(mode).known) continue;
    if (mode == StepMode::kFull && !s.happened()) {
      const double ms = median_step_ms(result.timings.step_ms);
      const auto steps = static_cast<int64_t>(result.timings.step_ms.size());
      if (ms > 0) rows.push_back({step_mode_name(mode), result.predicted->full.ms(), ms, steps});
    } else if (kind.steps > 0 && (mode == StepMode::kFull || result.predicted->has_partial)) {
      const double ms = (kind.draft_ms + kind.verify_ms) / static_cast<double>(kind.steps);
      rows.push_back(
          {step_mode_name(mode), result.predicted->of(mode).ms() + result.predicted->draft_ms, ms, kind.steps});
    }
  }
  return rows;
}

std::optional<Compared> contradiction(const GenerateResult& result) {
  const auto off = [](const Compared& row) { return std::abs(std::log(row.measured_ms / row.predicted_ms)); };
  std::optional<Compared> worst;
  for (const Compared& row : compare(result)) {
    const double longer_ms = std::max(row.predicted_ms, row.measured_ms) * static_cast<double>(row.count);
    const bool within = std::abs(row.measured_ms - row.predicted_ms) <= kContradicts * row.predicted_ms;
    if (within || longer_ms < kMinMs) continue;
    if (!worst || off(row) > off(*worst)) worst = row;
  }
  return worst;
}

std::optional<LinkShare> link_share(const GenerateResult& result) {
  const std::vector<float>& steps = result.timings.step_ms;
  const double ms = std::accumulate(steps.begin(), steps.end(), 0.0);
  if (!result.plan.streams() || result.link_peak_gb_per_s <= 0 || ms <= 0) return std::nullopt;
  return LinkShare{.gb_per_s = static_cast<double>(result.transfers.decode_h2d_bytes) / ms * 1e-6,
                   .peak_gb_per_s = result.link_peak_gb_per_s};
}

std::string weights_text(const std::vector<WeightTypeUse>& types) {
  std::string text;
  for (const WeightTypeUse& use : types) {
    if (!use.quantised() && !use.quantised_by_load()) continue;
    text += str(text.empty() ? "" : ", ", use.stored, use.stored != use.loaded ? " as " + use.loaded : std::string(),
                " ", format_bytes(use.bytes));
  }
  return text;
}

std::string result_json(const GenerateResult& result, const LineLabel& label) {
  const Timings& t = result.timings;
  const MemoryUse& m = result.memory;
  const Transfers& x = result.transfers;
  ordered_json line = labelled(label);
  line["text"] = result.text;
  line["token_ids"] = result.token_ids;
  line["prompt_tokens"] = result.prompt_tokens;
  if (result.kept_tokens > 0) line["kept_tokens"] = result.kept_tokens;
  for (const PartAnswer& part : result.parts) {
    line["parts"].push_back({{"level", part.level},
                             {"first_byte", part.first_byte},
                             {"bytes", part.bytes},
                             {"prompt_tokens", part.prompt_tokens},
                             {"tokens", part.tokens},
                             {"cut", part.cut},
                             {"ttft_ms", rounded(part.ttft_ms)},
                             {"decode_ms", rounded(part.decode_ms)},
                             {"text", part.text}});
  }
  if (!result.chat_template.empty()) line["chat_template"] = result.chat_template;
  if (const LeftOut& left = result.left_out; left.tokens > 0) {
    line["truncated"] = {{"whole_tokens", left.whole_tokens}, {"left_out_tokens", left.tokens}};
  }
  line["finish_reason"] = finish_reason_name(result.finish_reason);
  if (result.incomplete) line["incomplete_json"] = true;
  if (*result.verify_note != '\0') line["verify_note"] = result.verify_note;
  if (result.thinking.tokens > 0) line["reasoning_tokens"] = result.thinking.tokens;
  line["timings"] = {{"load_ms", rounded(t.load_ms)},
                     {"host_memory_ms", rounded(t.host_memory_ms)},
                     {"host_wait_ms", rounded(t.host_wait_ms)},
                     {"ttft_ms", rounded(t.ttft_ms)},
                     {"prefill_tokens_per_s", rounded(t.prefill_tokens_per_s)},
                     {"decode_tokens_per_s", rounded(t.decode_tokens_per_s)},
                     {"decode_steps", t.decode_steps},
                     {"decode_tokens", t.decode_tokens}};
  line["memory"] = {{"vram_peak_bytes", m.vram_peak_bytes}, {"host_peak_bytes", m.host_peak_bytes},
                    {"disk_peak_bytes", m.disk_peak_bytes}, {"rss_peak_bytes", m.rss_peak_bytes},
                    {"weights_bytes", m.weights_bytes},     {"kv_bytes", m.kv_bytes}};
  if (result.plan.streams_weights()) line["memory"]["host_weights_bytes"] = result.plan.host_weights_bytes;
  if (result.plan.substitutes()) line["memory"]["substitute_bytes"] = result.plan.substitute_bytes;
  line["weights"] = weights_json(result.weight_types);
  line["prefill_type"] = result.prefill_type;
  line["transfers"] = {{"prefill_h2d_bytes", x.prefill_h2d_bytes},
                       {"prefill_d2h_bytes", x.prefill_d2h_bytes},
                       {"decode_h2d_bytes", x.decode_h2d_bytes},
                       {"decode_d2h_bytes", x.decode_d2h_bytes}};
  if (const std::optional<LinkShare> link = link_share(result)) {
    line["transfers"]["decode_link_gb_per_s"] = rounded(link->gb_per_s);
    line["transfers"]["link_peak_gb_per_s"] = rounded(link->peak_gb_per_s);
    line["transfers"]["link_share_of_peak"] = rounded(link->share());
  }
  if (result.plan.host_experts_alone) {
    line["experts"] = {{"slots", result.plan.expert_slots},
                       {"used", result.experts.used},
                       {"fetched", result.experts.fetched},
                       {"fetched_bytes", result.experts.fetched_bytes}};
  }
  if (result.prefix.asked) line["prefix"] = prefix_json(result.prefix);
  if (result.spill.file.file_bytes > 0) line["spill"] = spill_json(result.spill);
  if (result.speculation.happened()) line["speculation"] = speculation_json(result);
  if (!result.damage.empty()) line["damaged_weights"] = result.damage;
  if (!result.plain_products.empty()) line["plain_products"] = result.plain_products;
  if (ordered_json predicted = predicted_json(result); !predicted.empty()) line["predicted"] = std::move(predicted);
  return line_text(line);
}

std::string error_json(const Error& error, const LineLabel& label) {
  ordered_json line = labelled(label);
  line["error"] = error.what();
  line["exit_code"] = static_cast<int>(error.code());
  return line_text(line);
}

}  // namespace headrace
