#include <algorithm>
#include <cmath>
#include <cstdio>
#include <vector>

#include "cli/print/format.h"
#include "cli/print/tables.h"

namespace headrace {
namespace {

constexpr double kWidth = 640, kHeight = 300, kLeft = 56, kRight = 130, kTop = 24, kBottom = 40;
constexpr const char* kColours[] = {"#3b6fd4", "#d9822b", "#2f9e6e", "#b14fa8", "#8a6d3b", "#5c6b7a"};
constexpr size_t kColourCount = 6;

constexpr const char* kStyle = R"(
:root { color-scheme: light dark; --ink: #1c2430; --soft: #667; --line: #d5dae1; --paper: #fff; }
@media (prefers-color-scheme: dark) { :root { --ink: #e6e9ee; --soft: #9aa4b2; --line: #39424e; --paper: #14181e; } }
body { font: 15px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--paper); max-width: 76rem;
  margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.5rem; margin: 0; } h2 { font-size: 1.1rem; margin: 0 0 .4rem; }
.soft { color: var(--soft); } .note { border-left: 3px solid #d9822b; padding-left: .7rem; }
.charts { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(34rem, 100%), 1fr)); gap: 2rem; margin: 2rem 0; }
svg { width: 100%; height: auto; } svg text { font: 12px system-ui, sans-serif; fill: var(--soft); }
svg .label { fill: var(--ink); } .grid { stroke: var(--line); } .axis { stroke: var(--soft); }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; }
th, td { text-align: left; white-space: nowrap; padding: .2rem .6rem; border-bottom: 1px solid var(--line); }
td.n, th.n { text-align: right; } .wide { overflow-x: auto; }
)";

std::string escaped(const std::string& text) {
  std::string out;
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (c == '<')
      out += "&lt;";
    else if (c == '>')
      out += "&gt;";
    else if (c == '&')
      out += "&amp;";
    else if (c == '"')
      out += "&quot;";
    else if (byte >= 0x20 || c == '\n' || c == '\t')
      out += c;
  }
  return out;
}

std::string number(double value) {
  char text[32];
  std::snprintf(text, sizeof text, "%.1f", value);
  return text;
}

std::string exact_size(uint64_t bytes) {
  const char* const units[] = {"B", "KiB", "MiB", "GiB"};
  int unit = 0;
  while (unit < 3 && bytes >= kKiB && bytes % kKiB == 0) bytes /= kKiB, ++unit;
  return str(bytes, " ", units[unit]);
}

struct Point {
  std::string x;  // at equal distances
  double y;
};
struct Series {
  std::string name;
  std::vector<Point> points;
};

// 1, 2 or 5 times a power of ten, which gives a chart four to eight lines.
double grid_step(double most) {
  const double power = std::pow(10.0, std::floor(std::log10(most / 4)));
  for (const double factor : {1.0, 2.0, 5.0}) {
    if (most / (factor * power) <= 8) return factor * power;
  }
  return 10 * power;
}

std::string y_axis(double most, const std::string& unit) {
  const double step = grid_step(most), height = kHeight - kTop - kBottom;
  std::string svg;
  for (double value = 0; value <= most * 1.0001; value += step) {
    const double y = kTop + height * (1 - value / most);
    svg += str("<line class=\"grid\" x1=\"", kLeft, "\" x2=\"", kWidth - kRight, "\" y1=\"", number(y), "\" y2=\"",
               number(y), "\"/><text x=\"", kLeft - 8, "\" y=\"", number(y + 4), "\" text-anchor=\"end\">",
               format_rate(value) == "0.00" ? "0" : format_rate(value), "</text>\n");
  }
  return svg + str("<text x=\"0\" y=\"10\">", escaped(unit), "</text>\n");
}

// Labels at the ends of the lines, moved apart where they would overlap.
std::vector<double> label_places(const std::vector<double>& ends) {
  std::vector<size_t> order(ends.size());
  for (size_t i = 0; i < order.size(); ++i) order[i] = i;
  std::sort(order.begin(), order.end(), [&](size_t a, size_t b) { return ends[a] < ends[b]; });
  std::vector<double> places = ends;
  for (size_t i = 1; i < order.size(); ++i) places[order[i]] = std::max(places[order[i]], places[order[i - 1]] + 15);
  return places;
}

std::string line_chart(const std::vector<Series>& all, const std::string& unit) {
  double most = 0;
  std::vector<std::string> names;  // on the x axis, from the longest series
  for (const Series& series : all) {
    if (series.points.size() <= names.size()) continue;
    names.clear();
    for (const Point& point : series.points) names.push_back(point.x);
  }
  for (const Series& series : all) {
    for (const Point& point : series.points) most = std::max(most, point.y);
  }
  if (most <= 0 || names.empty()) return "";
  most *= 1.05;
  const double width = kWidth - kLeft - kRight, height = kHeight - kTop - kBottom;
  const auto x_of = [&](const std::string& name) {
    const auto at = std::find(names.begin(), names.end(), name) - names.begin();
    return kLeft + width * (names.size() > 1 ? static_cast<double>(at) / static_cast<double>(names.size() - 1) : 0.5);
  };
  const auto y_of = [&](double value) { return kTop + height * (1 - value / most); };
  std::string svg = str("<svg viewBox=\"0 0 ", kWidth, " ", kHeight, "\" role=\"img\">\n") + y_axis(most, unit);
  for (const std::string& name : names) {
    svg += str("<text x=\"", number(x_of(name)), "\" y=\"", kHeight - kBottom + 20, "\" text-anchor=\"middle\">", name,
               "</text>\n");
  }
  std::vector<double> ends;
  for (const Series& series : all) ends.push_back(y_of(series.points.back().y) + 4);
  const std::vector<double> labels = label_places(ends);
  for (size_t i = 0; i < all.size(); ++i) {
    const char* const colour = kColours[i % kColourCount];
    std::string path, dots;
    for (const Point& point : all[i].points) {
      path += str(path.empty() ? "M" : "L", number(x_of(point.x)), " ", number(y_of(point.y)));
      dots += str("<circle cx=\"", number(x_of(point.x)), "\" cy=\"", number(y_of(point.y)), "\" r=\"3.5\" fill=\"",
                  colour, "\"><title>", escaped(all[i].name), ", ", point.x, ": ", format_rate(point.y), " ",
                  escaped(unit), "</title></circle>\n");
    }
    svg += str("<path d=\"", path, "\" fill=\"none\" stroke=\"", colour, "\" stroke-width=\"2\"/>\n", dots,
               "<text class=\"label\" x=\"", number(x_of(all[i].points.back().x) + 10), "\" y=\"", number(labels[i]),
               "\">", escaped(all[i].name), "</text>\n");
  }
  return svg + "</svg>\n";
}

std::string bar_chart(const std::vector<Point>& bars, const std::string& unit) {
  double most = 0;
  for (const Point& bar : bars) most = std::max(most, bar.y);
  if (most <= 0) return "";
  constexpr double kRow = 26, kNames = 230, kValues = 110;
  const double height = kRow * static_cast<double>(bars.size()) + 4;
  std::string svg = str("<svg viewBox=\"0 0 ", kWidth, " ", height, "\" role=\"img\">\n");
  for (size_t i = 0; i < bars.size(); ++i) {
    const double y = kRow * static_cast<double>(i), length = (kWidth - kNames - kValues) * bars[i].y / most;
    svg += str("<text class=\"label\" x=\"", kNames - 8, "\" y=\"", number(y + 17), "\" text-anchor=\"end\">",
               escaped(bars[i].x), "</text><rect x=\"", kNames, "\" y=\"", number(y + 4), "\" width=\"",
               number(std::max(length, 1.0)), "\" height=\"18\" rx=\"2\" fill=\"", kColours[0], "\"/><text x=\"",
               number(kNames + length + 8), "\" y=\"", number(y + 17), "\">", format_rate(bars[i].y), " ",
               escaped(unit), "</text>\n");
  }
  return svg + "</svg>\n";
}

std::vector<Series> by_size(const ProfileReport& report, ProfileGroup group) {
  std::vector<Series> all;
  for (const ProfileRow& row : report.rows) {
    if (row.group != group || !row.error.empty()) continue;
    const std::string name = shown_test(row, report.gpu) + (row.depth > 0 ? str(", ", row.depth, " deep") : "");
    auto at = std::find_if(all.begin(), all.end(), [&](const Series& s) { return s.name == name; });
    if (at == all.end()) at = all.insert(all.end(), {name, {}});
    at->points.push_back({exact_size(row.bytes), row.value});
  }
  return all;
}

// In the unit that suits the longest bar.
std::string bars_of(const ProfileReport& report, const std::vector<ProfileGroup>& groups, const std::string& unit) {
  std::vector<Point> bars;
  ShownRate scale{.factor = 0, .unit = unit};
  for (const ProfileRow& row : report.rows) {
    const bool shown = std::find(groups.begin(), groups.end(), row.group) != groups.end();
    if (!shown || row.unit != unit || !row.error.empty()) continue;
    const std::string at = row.depth > 0 ? str(", ", exact_size(row.bytes), " x ", row.depth) : "";
    bars.push_back({row.test + at, row.value});
    if (scale.factor == 0 || shown_rate(row).factor < scale.factor) scale = shown_rate(row);
  }
  for (Point& bar : bars) bar.y *= scale.factor;
  return bar_chart(bars, scale.unit);
}

std::string chart(const std::string& title, const std::string& svg) {
  return svg.empty() ? "" : str("<section><h2>", escaped(title), "</h2>\n", svg, "</section>\n");
}

std::string charts(const ProfileReport& report) {
  std::string html = "<div class=\"charts\">\n";
  for (const ProfileGroup group : {ProfileGroup::kPinned, ProfileGroup::kPageable, ProfileGroup::kScattered}) {
    html += chart(profile_group_title(group, report.gpu), line_chart(by_size(report, group), "GB/s"));
  }
  const auto title = [&](ProfileGroup group) { return profile_group_title(group, report.gpu); };
  html += chart(title(ProfileGroup::kLatency), bars_of(report, {ProfileGroup::kLatency}, "us"));
  html += chart(report.gpu ? "device memory, by copies and kernels" : "memory, by kernels",
                bars_of(report, {ProfileGroup::kDeviceMemory, ProfileGroup::kCompute}, "GB/s"));
  html += chart("kernels", bars_of(report, {ProfileGroup::kCompute}, "TFLOP/s"));
  html += chart(title(ProfileGroup::kHostMemory), bars_of(report, {ProfileGroup::kHostMemory}, "GB/s"));
  return html + chart("disk: " + report.disk, bars_of(report, {ProfileGroup::kDisk}, "GB/s")) + "</div>\n";
}

std::string table(const ProfileReport& report) {
  std::string html =
      "<div class=\"wide\"><table><thead><tr><th></th><th>test</th><th class=\"n\">size</th><th class=\"n\">depth</th>"
      "<th class=\"n\">median</th><th class=\"n\">of the rounds</th><th>the same test</th></tr></thead><tbody>\n";
  for (const ProfileRow& row : report.rows) {
    const ShownRate shown = shown_rate(row);
    const auto rate = [&](double value) { return format_rate(value * shown.factor); };
    html += str("<tr><td>", profile_group_name(row.group), "</td><td>", escaped(shown_test(row, report.gpu)),
                "</td><td class=\"n\">", row.bytes > 0 ? exact_size(row.bytes) : std::string(), "</td><td class=\"n\">",
                row.depth > 0 ? std::to_string(row.depth) : std::string(), "</td><td class=\"n\">",
                row.error.empty() ? rate(row.value) + " " + escaped(shown.unit) : escaped(row.error),
                "</td><td class=\"n\">", row.high > 0 ? rate(row.low) + " to " + rate(row.high) : std::string(),
                "</td><td>", escaped(row.same_as), "</td></tr>\n");
  }
  return html + "</tbody></table></div>\n";
}

}  // namespace

std::string profile_html(const ProfileReport& report) {
  std::string html = str(
      kProfileHtmlBeginning, "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\"/><title>",
      escaped(report.device), ": headrace profile</title><style>", kStyle, "</style></head><body>\n", "<h1>",
      escaped(report.device), "</h1>\n<p class=\"soft\">", report.gpu ? "driver " + escaped(report.driver) + "; " : "",
      escaped(machine_text(report.machine)), "; ", report.measured, report.quick ? "; quick" : "", "</p>\n");
  if (report.pcie && report.pcie->now.known()) {
    html += str("<p>", pcie_text(report.pcie->now), "; card and slot support ", pcie_text(report.pcie->possible()),
                "</p>\n");
  }
  for (const std::string& note : report.notes) html += str("<p class=\"note\">", escaped(note), "</p>\n");
  return html + charts(report) + table(report) + "</body></html>\n";
}

}  // namespace headrace
