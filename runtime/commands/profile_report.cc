// A profile as JSON, CSV and Markdown.
#include <cmath>
#include <nlohmann/json.hpp>

#include "runtime/base/rounding.h"
#include "runtime/commands/profile.h"
#include "runtime/commands/report_json.h"

namespace headrace {
namespace {

using nlohmann::ordered_json;

// Four digits: a rate has no more precision.
double four_digits(double value) { return to_digits(value, 4); }

std::string number(double value) {
  char text[32];
  std::snprintf(text, sizeof text, "%.4g", four_digits(value));
  return std::string(text).find('e') == std::string::npos ? text : std::to_string(std::llround(value));
}

ordered_json mode_json(const PcieMode& mode) { return {{"generation", mode.generation}, {"lanes", mode.lanes}}; }

ordered_json row_json(const ProfileRow& row) {
  ordered_json out = {{"group", profile_group_name(row.group)}, {"test", row.test}};
  if (row.bytes > 0) out["bytes"] = row.bytes;
  if (row.depth > 0) out["depth"] = row.depth;
  out["value"] = four_digits(row.value);
  out["unit"] = row.unit;
  if (row.high > 0) out["low"] = four_digits(row.low), out["high"] = four_digits(row.high);
  if (!row.same_as.empty()) out["same_as"] = row.same_as;
  if (!row.error.empty()) out["error"] = row.error;
  return out;
}

ordered_json connection_json(const ProfileReport& report) {
  ordered_json out = {{"numa_node", report.pcie->numa_node}, {"process_numa_nodes", report.numa_nodes}};
  if (report.pcie->now.known()) out["now"] = mode_json(report.pcie->now);
  if (report.pcie->card.known()) out["card"] = mode_json(report.pcie->card);
  if (report.pcie->slot.known()) out["slot"] = mode_json(report.pcie->slot);
  return out;
}

// Escapes a field of a CSV line.
std::string field(const std::string& text) {
  if (text.find_first_of(",\"\r\n") == std::string::npos) return text;
  std::string quoted = "\"";
  for (const char c : text) quoted += c == '"' ? std::string("\"\"") : std::string(1, c);
  return quoted + "\"";
}

// Escapes a cell of a Markdown table.
std::string cell(const std::string& text) {
  std::string out;
  for (const char c : text) {
    if (c == '|') out += '\\';
    out += c == '\n' ? ' ' : c;
  }
  return out;
}

}  // namespace

std::string profile_json(const ProfileReport& report) {
  ordered_json out = {
      {"program", "headrace profile"},
      {"version", 1},
      {"device", report.device},
      {"driver", report.driver},
      {"measured", report.measured},
      {"machine",
       {{"cpu", report.machine.cpu}, {"cores", report.machine.cores}, {"memory_bytes", report.machine.memory_bytes}}},
      {"quick", report.quick},
      {"seconds", four_digits(report.seconds)},
      {"rates", rates_json(report.rates())},
      {"spread", spread_json(report.spread())}};
  if (report.pcie) out["pcie"] = connection_json(report);
  if (!report.disk.empty()) {
    out["disk"] = {{"folder", report.disk},
                   {"file_system", report.disk_file_system},
                   {"how", report.disk_how},
                   {"file_bytes", report.disk_file_bytes},
                   {"seconds_a_test", report.disk_seconds}};
  }
  out["notes"] = report.notes;
  out["rows"] = list_json(report.rows, [](const auto& row) { return row_json(row); });
  out["interrupted"] = report.interrupted;
  return report_text(out);
}

std::string profile_csv(const ProfileReport& report) {
  std::string text = kProfileCsvHeading;
  for (const ProfileRow& row : report.rows) {
    text += str(profile_group_name(row.group), ",", field(row.test), ",",
                row.bytes > 0 ? std::to_string(row.bytes) : std::string(), ",",
                row.depth > 0 ? std::to_string(row.depth) : std::string(), ",", number(row.value), ",", row.unit, ",",
                row.high > 0 ? number(row.low) : std::string(), ",", row.high > 0 ? number(row.high) : std::string(),
                ",", field(row.same_as), ",", field(row.error), "\n");
  }
  return text;
}

std::string profile_markdown(const ProfileReport& report) {
  std::string text =
      str(kProfileMarkdownBeginning, cell(report.device), "\n\n", cell(report.machine.cpu), ", ", report.machine.cores,
          " cores; ", report.gpu ? "driver " + cell(report.driver) + "; " : "", report.measured, "\n");
  if (report.pcie && report.pcie->now.known()) text += str("\n", pcie_text(report.pcie->now), "\n");
  for (const std::string& note : report.notes) text += str("\n> ", cell(note), "\n");
  ProfileGroup group{};
  bool first = true;
  for (const ProfileRow& row : report.rows) {
    if (first || row.group != group) {
      text +=
          str("\n## ", profile_group_title(row.group, report.gpu),
              "\n\n| test | size | depth | median | of the rounds | same as |\n", "|---|---:|---:|---:|---:|---|\n");
    }
    group = row.group;
    first = false;
    text += str("| ", cell(shown_test(row, report.gpu)), " | ", row.bytes > 0 ? format_bytes(row.bytes) : std::string(),
                " | ", row.depth > 0 ? std::to_string(row.depth) : std::string(), " | ",
                row.error.empty() ? number(row.value) + " " + row.unit : cell(row.error), " | ",
                row.high > 0 ? number(row.low) + " to " + number(row.high) : std::string(), " | ", cell(row.same_as),
                " |\n");
  }
  return text;
}

}  // namespace headrace
