// A plan as JSON. Unknown values are omitted.
#include <nlohmann/json.hpp>

#include "runtime/base/rounding.h"
#include "runtime/commands/plan.h"
#include "runtime/commands/report_json.h"

namespace headrace {
namespace {

using nlohmann::ordered_json;

double three_decimals(double value) { return to_decimals(value, 3); }

ordered_json memory_json(const PlanReport& report) {
  const RunPlan& run = *report.run;
  ordered_json lines = ordered_json::array();
  const auto add = [&](const std::string& what, const char* tier, uint64_t bytes) {
    if (bytes > 0) lines.push_back({{"what", what}, {"tier", tier}, {"bytes", bytes}});
  };
  add("the system that drives the device", tier_name(Tier::kVram), report.taken_bytes);
  add("weights", tier_name(Tier::kVram), run.weights_bytes);
  add("weights of the draft", tier_name(Tier::kVram), run.draft_weights_bytes);
  add(kTokenTable, tier_name(Tier::kHost), run.table_bytes);
  for (const PlanLine& line : run.memory.lines) add(line.what, tier_name(line.tier), line.bytes);
  return {{"lines", lines},
          {"vram_bytes", report.device_bytes()},
          {"host_bytes", report.host_bytes()},
          {"segments", run.memory.segments},
          {"resident_segments", run.memory.resident_segments},
          {"ring_bytes", static_cast<uint64_t>(run.memory.ring_slots) * run.memory.ring_slot_bytes},
          {"host_weights_layers", run.memory.host_weights_layers},
          {"host_experts_alone", run.memory.host_experts_alone},
          {"expert_slots", run.memory.expert_slots},
          {"substitute_bytes", run.memory.substitute_bytes},
          {"late_partial", run.memory.late_partial},
          {"lean_prefill", run.memory.lean_prefill}};
}

ordered_json pass_json(const PassCost& cost) {
  ordered_json out = ordered_json::object();
  if (cost.known) out["ms"] = three_decimals(cost.ms());
  out["link_ms"] = three_decimals(cost.link_ms);
  out["device_ms"] = three_decimals(cost.device_ms);
  if (cost.known) {
    out["disk_ms"] = three_decimals(cost.disk_ms);
    out["bound_by"] = cost.bound();
  }
  if (cost.fill_ms > 0) out["fill_ms"] = three_decimals(cost.fill_ms);
  out["link_bytes"] = cost.link_bytes;
  out["disk_bytes"] = cost.disk_bytes;
  out["weight_bytes"] = cost.weight_bytes;
  out["kv_bytes"] = cost.kv_bytes;
  if (cost.streamed_weight_bytes > 0) out["streamed_weight_bytes"] = cost.streamed_weight_bytes;
  if (cost.state_bytes > 0) out["state_bytes"] = cost.state_bytes;
  return out;
}

ordered_json predicted_json(const PlanReport& report) {
  const Prediction& p = *report.predicted;
  ordered_json out = {{"prefill", pass_json(p.prefill)}, {"full", pass_json(p.full)}};
  if (p.prefill.known) {
    out["prefill"]["tokens_per_s"] =
        three_decimals(static_cast<double>(report.run->prompt_tokens) / p.prefill.ms() * 1e3);
  }
  if (p.has_partial) {
    out["partial"] = pass_json(p.partial);
    out["refresh"] = pass_json(p.refresh);
  }
  if (p.estimate) {
    out["estimate"] = {{"overturned", p.estimate->rejected_share},
                       {"pending", p.estimate->pending},
                       {"tokens_per_refresh", three_decimals(p.estimate->tokens)},
                       {"tokens_per_s", three_decimals(p.estimate->tokens_per_s)}};
    if (p.estimate->tau > 0) out["estimate"]["tau"] = p.estimate->tau;
  }
  if (p.draft_ms > 0) out["draft_ms"] = three_decimals(p.draft_ms);
  if (p.tokens_per_s) out["tokens_per_s"] = three_decimals(*p.tokens_per_s);
  if (p.tokens_per_s && p.at_least) out["tokens_per_s_at_least"] = true;
  return out;
}

ordered_json settings_json(const PlanReport& report) {
  ordered_json out = ordered_json::array();
  for (const PlanSetting& setting : report.settings) {
    ordered_json row = {
        {"flags", setting.flags}, {"weights", setting.weights}, {"cache", setting.cache}, {"fits", setting.fits}};
    if (!setting.verify.empty()) row["verify"] = setting.verify;
    if (setting.first_token_ms) row["first_token_ms"] = three_decimals(*setting.first_token_ms);
    if (setting.tokens_per_s) row["tokens_per_s"] = three_decimals(*setting.tokens_per_s);
    out.push_back(std::move(row));
  }
  return out;
}

ordered_json advice_json(const PlanAdvice& a) {
  ordered_json out = {{"context_tokens", a.context_tokens}};
  if (a.kv_auto) out["kv_auto"] = true;
  if (a.partial_kv) out["partial_kv"] = partial_kind_name(*a.partial_kv);
  if (a.vram_bytes > 0) out["vram_bytes"] = a.vram_bytes;
  if (a.host_bytes > 0) out["host_bytes"] = a.host_bytes;
  if (a.spill_bytes > 0) out["spill_bytes"] = a.spill_bytes;
  if (a.device_vram_bytes > 0) {
    out["kv_device"] = {{"vram_bytes", a.device_vram_bytes}, {"host_bytes", a.device_host_bytes}};
  }
  if (a.host_vram_bytes > 0) out["kv_host"] = {{"vram_bytes", a.host_vram_bytes}, {"host_bytes", a.host_host_bytes}};
  if (a.card_vram_bytes > 0) out["card_vram_bytes"] = a.card_vram_bytes;
  return out;
}

}  // namespace

std::string plan_json(const PlanReport& report) {
  ordered_json out = {{"program", "headrace plan"},
                      {"model", report.model},
                      {"dtype", dtype_name(report.dtype)},
                      {"device", report.device},
                      {"vram_limit_bytes", report.vram_limit_bytes},
                      {"host_limit_bytes", report.host_limit_bytes},
                      {"context_tokens", report.context_tokens},
                      {"output_tokens", report.output_tokens},
                      {"fits", report.run.has_value()}};
  if (report.run) {
    out["verify"] = verify_mode_name(report.run->verify);
    if (*report.run->verify_note != '\0') out["verify_note"] = report.run->verify_note;
    if (report.run->partial.on()) out["partial_kv"] = report.run->partial.name();
    if (report.run->substitute) out["weights_substitute"] = weight_type_info(*report.run->substitute).name;
    if (!report.run->draft.empty()) {
      out["draft"] = report.run->draft;
      add_draft_window(report.run->draft_window, &out);
    }
    if (!report.run->memory_note.empty()) out["memory_note"] = report.run->memory_note;
    out["prefill_type"] = report.run->prefill_type;
    out["cache_type_k"] = dtype_name(report.run->sizes.rows.k_type);
    out["cache_type_v"] = dtype_name(report.run->sizes.rows.v_type);
    out["memory"] = memory_json(report);
    out["weights"] = weights_json(report.run->weight_types);
  } else {
    out["refusal"] = report.refusal;
    out["would_fit"] = advice_json(report.advice);
  }
  if (report.rates) {
    out["rates_from"] = report.rates_from;
    if (!report.assumed.empty()) out["assumed"] = report.assumed;
    out["rates"] = rates_json(*report.rates);
  }
  if (!report.measured.empty()) {
    out["profile"] = {{"measured", report.measured}, {"spread", spread_json(report.spread)}};
    if (report.age_s) out["profile"]["age_s"] = *report.age_s;
  }
  if (report.predicted) out["predicted"] = predicted_json(report);
  out["own_context_tokens"] = report.own_context_tokens;
  if (!report.card_rope.empty()) out["card_rope"] = report.card_rope;
  out["settings"] = settings_json(report);
  return report_text(out);
}

}  // namespace headrace
