#include <algorithm>
#include <cmath>

#include "cli/print/format.h"
#include "cli/print/tables.h"

namespace headrace {
namespace {

constexpr double kBarCells = 30;

// Bytes and times are separate: a bar is a share of the greatest figure with its unit.
double greatest(const ProfileReport& report, ProfileGroup group, const std::string& unit) {
  double most = 0;
  for (const ProfileRow& row : report.rows) {
    if (row.group == group && row.unit == unit) most = std::max(most, row.value);
  }
  return most;
}

std::string bar(double share, BarStyle style) {
  const auto eighths = static_cast<int>(std::lround(std::clamp(share, 0.0, 1.0) * kBarCells * 8));
  std::string text;
  if (style == BarStyle::kAscii) return std::string(static_cast<size_t>((eighths + 4) / 8), '#');
  constexpr const char* kParts[] = {"", "▏", "▎", "▍", "▌", "▋", "▊", "▉"};
  for (int i = 0; i < eighths / 8; ++i) text += "█";
  return text + kParts[eighths % 8];
}

std::string size_text(uint64_t bytes) {
  if (bytes == 0) return "";
  if (bytes % kGiB == 0) return str(bytes / kGiB, " GiB");
  if (bytes % kMiB == 0) return str(bytes / kMiB, " MiB");
  return bytes % kKiB == 0 ? str(bytes / kKiB, " KiB") : str(bytes, " B");
}

std::string row_line(const ProfileReport& report, const ProfileRow& row, BarStyle style) {
  const ShownRate shown = shown_rate(row);
  const std::string test = shown_test(row, report.gpu);
  std::string text = "  " + (row.bytes == 0 ? filled(test, 33) : filled(test, 24) + padded(size_text(row.bytes), 9));
  if (row.group == ProfileGroup::kDisk) text += padded(str("x ", row.depth), 6);
  if (!row.error.empty()) return text + "  " + row.error + "\n";
  text += padded(format_rate(row.value * shown.factor), 10) + " " + filled(shown.unit, 8) + " ";
  const double most = greatest(report, row.group, row.unit);
  text += row.unit == "us" || most <= 0 ? std::string() : bar(row.value / most, style);
  while (text.ends_with(' ')) text.pop_back();
  return text + "\n";
}

}  // namespace

std::string profile_heading(const ProfileReport& report) {
  return str(report.device, report.gpu ? ", driver " + report.driver : "", "\n", machine_text(report.machine), "\n");
}

std::string profile_table(const ProfileReport& report, ProfileGroup group, BarStyle bars) {
  std::string text;
  for (const ProfileRow& row : report.rows) {
    if (row.group != group) continue;
    if (text.empty()) text = str("\n", profile_group_title(group, report.gpu), "\n");
    text += row_line(report, row, bars);
  }
  return text;
}

std::string profile_footing(const ProfileReport& report) {
  std::string text = "\n";
  if (report.pcie) {
    const PcieLink& link = *report.pcie;
    const std::string now = pcie_text(link.now), best = pcie_text(link.possible());
    text += str("link: ", now.empty() ? "unknown" : now, best.empty() ? "" : "; card and slot support " + best);
    if (link.numa_node >= 0) text += str("; the GPU is at NUMA node ", link.numa_node);
    text += "\n";
  } else if (report.gpu) {
    text += "link: its generation and width are unknown (no sysfs entry of the card)\n";
  }
  if (!report.numa_nodes.empty()) {
    text += "this process may run on NUMA node";
    for (size_t i = 0; i < report.numa_nodes.size(); ++i) text += str(i == 0 ? " " : ", ", report.numa_nodes[i]);
    text += "\n";
  }
  if (!report.disk_how.empty()) {
    text += str("disk: a file of ", format_bytes(report.disk_file_bytes), " in ", report.disk, ", by ", report.disk_how,
                ", ", report.disk_seconds, " s a test\n");
  }
  if (const std::optional<RateSpread> worst = widest(report.spread())) {
    text +=
        str("the rounds differ by at most ", format_percent(worst->share), " (", rate_title(*worst->rate, report.gpu),
            ")", worst->share > kSteady ? ": the machine is busy. Measure again while it is idle" : "", "\n");
  }
  for (const std::string& note : report.notes) text += "note: " + note + "\n";
  return text + (report.interrupted ? "interrupted: the figures are incomplete\n" : "") + "measured in " +
         format_duration(report.seconds) + "\n";
}

}  // namespace headrace
