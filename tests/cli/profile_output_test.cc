// What a profile looks like in each of its forms: the same figures, and documents that their readers take.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <vector>

#include "cli/profile_html.h"
#include "cli/profile_table.h"
#include "runtime/profile.h"

namespace headrace {
namespace {

using nlohmann::json;

ProfileReport report() {
  ProfileReport r;
  r.machine = {.cpu = "Some <CPU> & more", .cores = 16, .memory_bytes = 64 * kGiB};
  r.device = "NVIDIA GeForce RTX 4090";
  r.driver = "570.1";
  r.measured = "2026-11-21T20:15:00Z";
  r.gpu = true;
  r.pcie = PcieLink{.now = {3, 8}, .card = {4, 16}, .slot = {5, 16}, .numa_node = 1};
  r.numa_nodes = {0};
  r.notes = {"the link runs as \"PCIe 3.0 x8\", | <look> & see"};
  const auto row = [&](ProfileGroup group, const char* test, uint64_t bytes, double value, const char* unit = "GB/s") {
    r.rows.push_back({.group = group, .test = test, .bytes = bytes, .value = value, .unit = unit});
  };
  for (const uint64_t bytes : {64 * kKiB, kMiB, 16 * kMiB, kGiB}) {
    row(ProfileGroup::kPinned, "to device", bytes, 6.5 + 0.001 * static_cast<double>(bytes / kMiB));
    row(ProfileGroup::kPinned, "to host", bytes, 6.6);
  }
  r.rows[0].low = 6.1, r.rows[0].high = 6.6, r.rows[0].same_as = "nvbandwidth x, \"y\"";
  row(ProfileGroup::kScattered, "a gather kernel", 4 * kKiB, 6.0);
  row(ProfileGroup::kLatency, "to device", 8, 7.25, "us");
  row(ProfileGroup::kDeviceMemory, "copy", 512 * kMiB, 450);
  row(ProfileGroup::kCompute, "weights", 0, 900);
  row(ProfileGroup::kCompute, "rows", 0, 880);
  row(ProfileGroup::kCompute, "product", 0, 140, "TFLOP/s");
  row(ProfileGroup::kCompute, "prefill attention", 0, 80, "TFLOP/s");
  row(ProfileGroup::kCompute, "attention of 64 queries", 0, 70, "TFLOP/s");
  row(ProfileGroup::kHostMemory, "copy", 512 * kMiB, 30);
  row(ProfileGroup::kDisk, "sequential read", kMiB, 7.0);
  r.rows.back().depth = 8;
  row(ProfileGroup::kDisk, "sequential write", kMiB, 0);
  r.rows.back().depth = 8;
  r.rows.back().error = "DIR: No space left on device";
  r.disk = "/data";
  r.disk_how = "io_uring";
  r.seconds = 41.5;
  return r;
}

// Elements, attributes and entities as XML has them; the names of all elements, in order, or why not.
std::vector<std::string> elements_of(const std::string& text, std::string* wrong) {
  std::vector<std::string> names, open;
  for (size_t at = 0; at < text.size();) {
    if (text[at] == '&') {
      const size_t end = text.find(';', at);
      const std::string name = end == std::string::npos ? "" : text.substr(at + 1, end - at - 1);
      if (name != "lt" && name != "gt" && name != "amp" && name != "quot") *wrong = "an entity: " + text.substr(at, 20);
    }
    if (text[at] == '>') *wrong = "a bare >: " + text.substr(at > 20 ? at - 20 : 0, 40);
    if (text[at] != '<') {
      ++at;
      continue;
    }
    size_t end = at;
    bool quoted = false;
    while (++end < text.size() && (quoted || text[end] != '>')) {
      if (text[end] == '"') quoted = !quoted;
      if (text[end] == '<') *wrong = "a < inside " + text.substr(at, 40);
    }
    std::string tag = text.substr(at + 1, end - at - 1);
    at = end + 1;
    if (tag.starts_with("!DOCTYPE")) continue;
    const std::string name = tag.substr(0, tag.find_first_of(" /\n", 1));
    if (tag.starts_with("/")) {
      if (open.empty() || "/" + open.back() != tag)
        *wrong = "<" + tag + "> closes " + (open.empty() ? "" : open.back());
      if (!open.empty()) open.pop_back();
    } else {
      names.push_back(name);
      if (!tag.ends_with("/")) open.push_back(name);
    }
    if (name == "style") at = text.find("</style>", at);  // CSS, which has none of ours
  }
  if (!open.empty()) *wrong = "<" + open.back() + "> stays open";
  return names;
}

TEST(ProfileOutput, TheTableHasAFigureAndABarARow) {
  const std::string ascii = profile_table(report(), ProfileGroup::kPinned, BarStyle::kAscii);
  EXPECT_NE(ascii.find("pinned memory, by the size of a copy\n"), std::string::npos) << ascii;
  EXPECT_NE(ascii.find("  to device                   1 GiB      7.52 GB/s     ##############################\n"),
            std::string::npos)
      << ascii;
  const std::string blocks = profile_table(report(), ProfileGroup::kPinned, BarStyle::kBlocks);
  EXPECT_NE(blocks.find("7.52 GB/s     ██████████████████████████████\n"), std::string::npos) << blocks;
  EXPECT_EQ(profile_table(report(), ProfileGroup::kPageable, BarStyle::kAscii), "");
  const std::string disk = profile_table(report(), ProfileGroup::kDisk, BarStyle::kAscii);
  EXPECT_NE(disk.find("   x 8  DIR: No space left on device\n"), std::string::npos) << disk;
  const std::string latency = profile_table(report(), ProfileGroup::kLatency, BarStyle::kAscii);
  EXPECT_NE(latency.find("7.25 us\n"), std::string::npos) << latency;  // no bar: less is more
}

TEST(ProfileOutput, SaysHowItIsConnected) {
  const std::string text = profile_footing(report());
  EXPECT_NE(text.find("link: PCIe 3.0 x8; card and slot can do PCIe 4.0 x16; the GPU is at NUMA node 1\n"),
            std::string::npos)
      << text;
  EXPECT_NE(text.find("note: the link runs"), std::string::npos);
  const std::string warning = pcie_warning(*report().pcie);
  EXPECT_EQ(
      warning,
      "the link runs as PCIe 3.0 x8 (8 GB/s at best), card and slot can do PCIe 4.0 x16 (32 GB/s at best): look at "
      "the slot, a riser or the BIOS");
  EXPECT_EQ(pcie_warning({.now = {4, 16}, .card = {4, 16}, .slot = {5, 16}, .numa_node = 0}), "");
}

TEST(ProfileOutput, JsonHasEveryRowAndTheRates) {
  const json out = json::parse(profile_json(report()));
  EXPECT_EQ(out["rows"].size(), report().rows.size());
  EXPECT_EQ(out["rates"]["to_device_gb_per_s"], 7.524);
  EXPECT_EQ(out["rates"]["attention_tflop_per_s"], 80);
  EXPECT_EQ(out["rates"]["disk_read_gb_per_s"], 7);
  EXPECT_EQ(out["rates"]["disk_write_gb_per_s"], 0);
  EXPECT_EQ(out["pcie"]["now"]["lanes"], 8);
  EXPECT_EQ(out["rows"][0]["same_as"], "nvbandwidth x, \"y\"");
  EXPECT_TRUE(report().rates().known());
}

TEST(ProfileOutput, CsvHasAsManyFieldsInEachLine) {
  std::istringstream lines(profile_csv(report()));
  int count = 0;
  for (std::string line; std::getline(lines, line); ++count) {
    int fields = 1;
    bool quoted = false;
    for (const char c : line) {
      if (c == '"') quoted = !quoted;
      if (c == ',' && !quoted) ++fields;
    }
    EXPECT_EQ(fields, 10) << line;
  }
  EXPECT_EQ(count, static_cast<int>(report().rows.size()) + 1);
  EXPECT_NE(profile_csv(report()).find("pinned,to device,65536,,6.5,GB/s,6.1,6.6,\"nvbandwidth x, \"\"y\"\"\",\n"),
            std::string::npos)
      << profile_csv(report());
}

TEST(ProfileOutput, MarkdownHasATableAGroup) {
  const std::string text = profile_markdown(report());
  EXPECT_NE(text.find("# NVIDIA GeForce RTX 4090\n"), std::string::npos);
  EXPECT_NE(text.find("\\| <look>"), std::string::npos) << text;
  int tables = 0;
  for (size_t at = 0; (at = text.find("|---|---:", at)) != std::string::npos; ++at) ++tables;
  EXPECT_EQ(tables, 7);
}

TEST(ProfileOutput, ThePageIsWellFormedAndNeedsNothingElse) {
  for (const bool empty : {false, true}) {
    ProfileReport r = report();
    if (empty) r.rows.clear(), r.pcie.reset();
    const std::string page = profile_html(r);
    std::string wrong;
    const std::vector<std::string> elements = elements_of(page, &wrong);
    EXPECT_EQ(wrong, "") << page;
    EXPECT_EQ(std::count(elements.begin(), elements.end(), "tr"), static_cast<int64_t>(r.rows.size()) + 1);
    EXPECT_EQ(std::count(elements.begin(), elements.end(), "svg"), empty ? 0 : 7);
    EXPECT_EQ(std::count(elements.begin(), elements.end(), "circle"), empty ? 0 : 9);
    EXPECT_EQ(std::count(elements.begin(), elements.end(), "script"), 0);
    for (const char* part : {"http", "url(", "@import", "src=", "nan", "inf\""}) {
      EXPECT_EQ(page.find(part), std::string::npos) << part;
    }
    EXPECT_NE(page.find("Some &lt;CPU&gt; &amp; more"), std::string::npos);
  }
}

TEST(ProfileOutput, TheCheckFindsWhatIsNotWellFormed) {
  for (const char* page : {"<p>", "<p></q>", "<p>a & b</p>", "<p>1 > 0</p>", "<a b=\"<\"></a>"}) {
    std::string wrong;
    elements_of(page, &wrong);
    EXPECT_NE(wrong, "") << page;
  }
}

}  // namespace
}  // namespace headrace
