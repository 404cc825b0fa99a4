// A bench's report as JSON, the format of bench/results.
#include <nlohmann/json.hpp>

#include "runtime/base/rounding.h"
#include "runtime/commands/bench.h"
#include "runtime/commands/report_json.h"

namespace headrace {
namespace {

using nlohmann::ordered_json;

// Six digits: a timing has no more precision.
double six_digits(double value) { return to_digits(value, 6); }

ordered_json rounded_list(const auto& values) { return list_json(values, six_digits); }

ordered_json shape_json(const ModelConfig& c) {
  const AttentionSpec& a = c.attention();
  ordered_json shape = {{"family", c.family},
                        {"layers", c.layer_count()},
                        {"hidden", c.hidden},
                        {"heads", a.heads},
                        {"kv_heads", a.kv_heads},
                        {"head_dim", a.head_dim},
                        {"ffn", c.layers.front().ffn.width},
                        {"vocab", c.vocab}};
  if (const std::optional<ExpertsSpec>& experts = c.layers.front().ffn.experts) {
    shape["experts"] = {{"count", experts->count}, {"used", experts->used}, {"ffn", experts->width}};
    if (experts->shared) shape["experts"]["shared_ffn"] = c.layers.front().ffn.width;
  }
  return shape;
}

ordered_json link_json(const BenchReport& report) {
  ordered_json link = ordered_json::object();
  for (const LinkPeak& peak : report.link) {
    link["copy_bytes"] = peak.copy_bytes;
    link[std::string(link_use_name(peak.use)) + "_gb_per_s"] = six_digits(peak.gb_per_s);
  }
  return link;
}

ordered_json decode_json(const BenchRow& row, double peak) {
  ordered_json out = {{"steps", row.step_ms.size()},
                      {"ms_median", six_digits(row.step_ms_at(0.5))},
                      {"ms_p10", six_digits(row.step_ms_at(0.1))},
                      {"ms_p90", six_digits(row.step_ms_at(0.9))},
                      {"tokens_per_s", six_digits(row.decode_tokens_per_s())},
                      {"h2d_bytes_per_step", six_digits(row.h2d_bytes_per_step)},
                      {"d2h_bytes_per_step", six_digits(row.d2h_bytes_per_step)},
                      {"link_gb_per_s", six_digits(row.link_gb_per_s())}};
  if (row.spill.file.file_bytes > 0) {
    out["disk_bytes_per_step"] = six_digits(row.disk_bytes_per_step);
    out["disk_gb_per_s"] = six_digits(row.disk_gb_per_s());
    out["checksum_share_of_a_core"] = six_digits(row.checksum_share());
  }
  if (peak > 0) out["link_share_of_peak"] = six_digits(row.link_gb_per_s() / peak);
  out["step_ms"] = rounded_list(row.step_ms);
  return out;
}

ordered_json row_json(const BenchRow& row, double peak) {
  ordered_json out = {{"prompt_tokens", row.prompt_tokens}, {"kv", kv_mode_name(row.kv)}};
  if (!row.error.empty()) {
    out["error"] = row.error;
    return out;
  }
  if (row.predicted) {
    const PassCost &prefill = row.predicted->prefill, &step = row.predicted->full;
    ordered_json& predicted = out["predicted"] = ordered_json::object();
    if (prefill.known) predicted["prefill_ms"] = six_digits(prefill.ms());
    if (step.known) predicted["step_ms"] = six_digits(step.ms());
    predicted["h2d_bytes_per_step"] = step.link_bytes;
  }
  const MemoryUse& m = row.memory;
  out["prefill"] = {{"ms", six_digits(row.median_prefill_ms())},
                    {"tokens_per_s", six_digits(row.prefill_tokens_per_s())},
                    {"runs_ms", rounded_list(row.prefill_ms)},
                    {"host_memory_ms", six_digits(row.host_memory_ms)},
                    {"host_wait_ms", six_digits(row.host_wait_ms)}};
  out["decode"] = decode_json(row, peak);
  out["memory"] = {{"vram_peak_bytes", m.vram_peak_bytes},         {"host_peak_bytes", m.host_peak_bytes},
                   {"rss_peak_bytes", m.rss_peak_bytes},           {"weights_bytes", m.weights_bytes},
                   {"kv_resident_bytes", row.plan.resident_bytes}, {"kv_host_bytes", row.plan.host_bytes}};
  if (row.spill.file.file_bytes > 0) {
    out["memory"]["kv_disk_bytes"] = row.plan.disk_bytes;
    out["disk"] = {{"how", row.spill.file.how},
                   {"prefill_written_bytes", row.spill.prefill_written_bytes},
                   {"read_depth", row.spill.file.reads_at_once}};
  }
  return out;
}

}  // namespace

std::string bench_json(const BenchReport& report) {
  const double peak = report.link_peak_gb_per_s(LinkUse::kToDevice);
  ordered_json out = {{"program", "headrace bench"},
                      {"machine", machine_json(report.machine, report.device)},
                      {"model", report.model},
                      {"shape", shape_json(report.config)},
                      {"dtype", dtype_name(report.dtype)},
                      {"weights", weights_json(report.weight_types)},
                      {"prefill_type", report.prefill_type},
                      {"cache_type_k", dtype_name(report.cache_type_k)},
                      {"cache_type_v", dtype_name(report.cache_type_v)},
                      {"vram_limit_bytes", report.vram_limit_bytes},
                      {"host_limit_bytes", report.host_limit_bytes},
                      {"seed", report.seed},
                      {"repeat", report.repeat},
                      {"decode_tokens", report.decode_tokens},
                      {"load_ms", six_digits(report.load_ms)},
                      {"link", link_json(report)}};
  out["rows"] = list_json(report.rows, [&](const BenchRow& row) { return row_json(row, peak); });
  out["interrupted"] = report.interrupted;
  return report_text(out);
}

}  // namespace headrace
