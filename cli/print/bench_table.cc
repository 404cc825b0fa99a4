#include <cmath>
#include <cstdio>

#include "cache/base.h"
#include "cli/print/format.h"
#include "cli/print/tables.h"
#include "runtime/commands/report.h"

namespace headrace {
namespace {

// Four significant digits.
std::string digits(double value) {
  char text[32];
  if (value >= 999.95) return format_count(std::llround(value));
  std::snprintf(text, sizeof text, value >= 99.995 ? "%.1f" : value >= 9.9995 ? "%.2f" : "%.3f", value);
  return text;
}

constexpr int kWidths[] = {8, 7, 11, 10, 9, 9, 9, 10, 12, 8, 8, 12, 12};
constexpr const char* kNames[] = {"prompt",   "kv",        "prefill ms", "tokens/s", "step ms", "p10", "p90",
                                  "tokens/s", "link/step", "GB/s",       "of peak",  "device",  "host"};

std::string link_text(const BenchReport& report) {
  if (report.link.empty()) return "no room to measure the link";
  return str("link at best ", digits(report.link_peak_gb_per_s(LinkUse::kToDevice)), " GB/s to the device, ",
             digits(report.link_peak_gb_per_s(LinkUse::kToHost)), " to the host, ",
             digits(report.link_peak_gb_per_s(LinkUse::kBoth)), " both at once");
}

}  // namespace

std::string bench_heading(const BenchReport& report) {
  const std::vector<std::string> names(std::begin(kNames), std::end(kNames));
  const std::string weights = weights_text(report.weight_types);
  return str(report.model, ", ", dtype_name(report.dtype), ", on ", report.device, "\n", machine_text(report.machine),
             "; ", link_text(report), weights.empty() ? "" : "\nweights: ", weights, "\nprompts are read in ",
             report.prefill_type, "\n", columns(names, kWidths), "\n");
}

std::string bench_line(const BenchReport& report, const BenchRow& row) {
  std::vector<std::string> cells = {format_count(row.prompt_tokens), kv_mode_name(row.kv)};
  if (!row.error.empty()) {
    return columns(cells, kWidths) + "  does not fit: " + first_line(row.error) + "\n";
  }
  const double peak = report.link_peak_gb_per_s(LinkUse::kToDevice);
  // A step's few ids are no measurement of the link.
  const bool streams = row.plan.streams();
  char share[16] = "-";
  if (streams && peak > 0) std::snprintf(share, sizeof share, "%.1f%%", 100 * row.link_gb_per_s() / peak);
  cells.insert(cells.end(),
               {digits(row.median_prefill_ms()), digits(row.prefill_tokens_per_s()), digits(row.step_ms_at(0.5)),
                digits(row.step_ms_at(0.1)), digits(row.step_ms_at(0.9)), digits(row.decode_tokens_per_s()),
                format_bytes(static_cast<uint64_t>(std::llround(row.h2d_bytes_per_step))),
                streams ? digits(row.link_gb_per_s()) : "-", share, format_bytes(row.memory.vram_peak_bytes),
                format_bytes(row.memory.host_peak_bytes)});
  std::string line = columns(cells, kWidths) + "\n";
  if (row.spill.file.file_bytes > 0) {
    line += str("         on disk ", format_bytes(row.plan.disk_bytes), " (", row.spill.file.how,
                "): ", format_bytes(static_cast<uint64_t>(std::llround(row.disk_bytes_per_step))), " a step, ",
                digits(row.disk_gb_per_s()), " GB/s\n");
  }
  return line;
}

std::string shape_line(const Shape& shape) {
  const ModelConfig& c = shape.config;
  const auto parameters = static_cast<double>(parameter_count(c));
  char head[64];
  std::snprintf(head, sizeof head, "%-16s %7s", shape.name.c_str(),
                (parameters >= 1e9 ? digits(parameters * 1e-9) + " B" : digits(parameters * 1e-6) + " M").c_str());
  return str(head, "  ", layers_text(c), ", vocabulary ", format_count(c.vocab), "; KV cache ",
             format_bytes(static_cast<uint64_t>(c.kv_values()) * dtype_bytes(DType::kBF16)), " a token in bf16\n");
}

}  // namespace headrace
