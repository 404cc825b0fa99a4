// What a profile looks like in each of its forms: the same figures, and documents that their readers take.
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <vector>

#include "cli/print/tables.h"
#include "runtime/commands/profile.h"
#include "tests/support/temporary_folder.h"

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
  EXPECT_NE(text.find("link: PCIe 3.0 x8; card and slot support PCIe 4.0 x16; the GPU is at NUMA node 1\n"),
            std::string::npos)
      << text;
  EXPECT_NE(text.find("note: the link runs"), std::string::npos);
  const std::string warning = pcie_warning(*report().pcie);
  EXPECT_EQ(
      warning,
      "the link runs as PCIe 3.0 x8 (8 GB/s at best), card and slot support PCIe 4.0 x16 (32 GB/s at best): look at "
      "the slot, a riser or the BIOS");
  EXPECT_EQ(pcie_warning({.now = {4, 16}, .card = {4, 16}, .slot = {5, 16}, .numa_node = 0}), "");
}

// Of each rate the rounds that it was read from, and no others; a rate of one figure has none.
TEST(ProfileOutput, SaysHowSteadyItWas) {
  ProfileReport r = report();
  EXPECT_TRUE(r.spread().empty());  // a copy of 64 KiB is not what the link's rate is read from
  EXPECT_EQ(json::parse(profile_json(r))["spread"], json::object());
  EXPECT_EQ(profile_footing(r).find("rounds differ"), std::string::npos);
  for (ProfileRow& row : r.rows) {
    if (row.group != ProfileGroup::kCompute) continue;
    row.low = 0.98 * row.value;
    row.high = (row.test == "product" ? 1.08 : 1.0) * row.value;
  }
  const json spread = json::parse(profile_json(r))["spread"];
  EXPECT_EQ(spread, json({{"weights_gb_per_s", 0.02},
                          {"kv_gb_per_s", 0.02},
                          {"product_tflop_per_s", 0.1},
                          {"attention_tflop_per_s", 0.02},
                          {"queries_tflop_per_s", 0.02}}));
  EXPECT_NE(profile_footing(r).find("\nthe rounds differ by at most 10.0% (products)\n"), std::string::npos)
      << profile_footing(r);
  for (ProfileRow& row : r.rows) {
    if (row.group == ProfileGroup::kPinned && row.test == "to device" && row.bytes == kGiB)
      row.low = 0.8 * row.value, row.high = 1.1 * row.value;
  }
  EXPECT_NE(
      profile_footing(r).find(
          "the rounds differ by at most 30.0% (copies to the device): the machine is busy. Measure again while it "),
      std::string::npos)
      << profile_footing(r);
}

TEST(ProfileOutput, OfABusyMachineNothingIsKept) {
  ProfileReport r = report();
  EXPECT_EQ(r.why_not_kept(), "");
  for (ProfileRow& row : r.rows) {
    if (row.test == "weights") row.low = 0.8 * row.value, row.high = 1.1 * row.value;
  }
  EXPECT_EQ(r.why_not_kept(), "the machine was busy, so it would mislead predictions");
  r.interrupted = true;
  EXPECT_EQ(r.why_not_kept(), "it is incomplete");
  r = report();
  std::erase_if(r.rows, [](const ProfileRow& row) { return row.test == "product"; });
  EXPECT_EQ(r.why_not_kept(), "it lacks rates that predictions need");
}

// Of a CPU no device and no host, and no rate without a digit.
TEST(ProfileOutput, ACpuHasItsOwnWordsAndUnits) {
  ProfileReport r = report();
  r.gpu = false;
  for (ProfileRow& row : r.rows) {
    if (row.unit == "TFLOP/s") row.value = 0.0034, row.low = 0.0025, row.high = 0.0036;
    if (row.test == "sequential read") row.value = 0.0042;
  }
  const std::string copies = profile_table(r, ProfileGroup::kPinned, BarStyle::kAscii);
  EXPECT_NE(copies.find("copies in memory, by their size\n  in "), std::string::npos) << copies;
  EXPECT_EQ(copies.find("device"), std::string::npos) << copies;
  const std::string kernels = profile_table(r, ProfileGroup::kCompute, BarStyle::kAscii);
  EXPECT_NE(kernels.find("  product                                3.40 GFLOP/s"), std::string::npos) << kernels;
  EXPECT_NE(profile_table(r, ProfileGroup::kDisk, BarStyle::kAscii).find("4.20 MB/s"), std::string::npos);
  const std::string page = profile_html(r);
  EXPECT_NE(page.find("3.40 GFLOP/s</td><td class=\"n\">2.50 to 3.60</td>"), std::string::npos) << page;
  EXPECT_NE(page.find(">3.40 GFLOP/s</text>"), std::string::npos) << page;
  EXPECT_EQ(page.find(" 0.00 "), std::string::npos) << page;
  EXPECT_NE(profile_markdown(r).find("\n## copies in memory, by their size\n"), std::string::npos);
  for (ProfileRow& row : r.rows) {
    if (row.group == ProfileGroup::kPinned && row.bytes == kGiB) row.low = 0.1 * row.value, row.high = row.value;
  }
  EXPECT_NE(profile_footing(r).find(" (copies in)"), std::string::npos) << profile_footing(r);
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
  EXPECT_NE(text.find("# headrace profile: NVIDIA GeForce RTX 4090\n"), std::string::npos);
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

// Added to a page: what a browser made of its charts, in an attribute of its body.
constexpr const char* kInspect = R"(<script>
var wrong = [];
addEventListener('error', function (event) { wrong.push(event.message); });
addEventListener('load', function () {
  var shapes = 0, charts = document.querySelectorAll('svg');
  charts.forEach(function (chart) {
    var all = chart.getBoundingClientRect();
    if (all.width < 200 || all.height < 20) wrong.push('a chart of ' + all.width + ' x ' + all.height);
    chart.querySelectorAll('path, circle, rect, line, text').forEach(function (shape) {
      var box = shape.getBoundingClientRect(), seen = shape.outerHTML.substring(0, 120);
      ++shapes;
      var dot = shape.tagName == 'path' && shape.getAttribute('d').indexOf('L') < 0;  // its circle is what is seen
      if (!dot && box.width + box.height <= 0) wrong.push('nothing is seen of ' + seen);
      if (box.left < all.left - 2 || box.right > all.right + 2 || box.top < all.top - 2 || box.bottom > all.bottom + 2) {
        wrong.push('sticks out: ' + seen);
      }
    });
  });
  if (document.documentElement.scrollWidth > innerWidth) wrong.push('the page is wider than its window');
  document.body.setAttribute('data-seen', charts.length + ' charts, ' + shapes + ' shapes; ' + wrong.join('; '));
});
</script>)";

// A browser that runs without a screen and prints what it has made of a page; empty: none is installed.
std::string find_browser() {
  if (const char* const named = std::getenv("HEADRACE_BROWSER")) return named;
  const char* const path = std::getenv("PATH");
  std::istringstream folders(path != nullptr ? path : "");
  for (std::string folder; std::getline(folders, folder, ':');) {
    for (const char* name : {"chromium", "chromium-browser", "google-chrome", "chrome-headless-shell"}) {
      if (::access((folder + "/" + name).c_str(), X_OK) == 0) return folder + "/" + name;
    }
  }
  return "";
}

// The page as it is, in a small window, and one that is broken on purpose.
TEST(ProfilePage, IsDrawnByABrowser) {
  const std::string browser = find_browser();
  if (browser.empty()) GTEST_SKIP() << "no chromium in PATH to load the page with (HEADRACE_BROWSER names one)";
  const TemporaryFolder folder;
  const auto seen_in = [&](std::string page, const char* size) {
    const size_t at = page.find("</body>");
    page.insert(at, kInspect);
    folder.write("page.html", page);
    // A machine's first start of a browser may take long; one that cannot start here is no fault of the page.
    const std::string command = "timeout 60 '" + browser + "' --headless --no-sandbox --disable-gpu --no-first-run" +
                                " --disable-dev-shm-usage --user-data-dir='" + (folder / "browser") +
                                "' --window-size=" + size + " --dump-dom 'file://" + (folder / "page.html") +
                                "' 2> /dev/null";
    std::string dom;
    FILE* const pipe = ::popen(command.c_str(), "r");
    if (pipe == nullptr) return dom;
    char block[4096];
    for (size_t n = 0; (n = std::fread(block, 1, sizeof block, pipe)) > 0;) dom.append(block, n);
    ::pclose(pipe);
    if (dom.find("</body>") == std::string::npos) return std::string();
    const std::string name = "data-seen=\"";
    const size_t begin = dom.find(name);
    if (begin == std::string::npos) return std::string("a page whose script did not come to its end");
    return dom.substr(begin + name.size(), dom.find('"', begin + name.size()) - begin - name.size());
  };
  const std::string seen = seen_in(profile_html(report()), "600,900");
  if (seen.empty()) GTEST_SKIP() << browser << " did not load a page here";
  EXPECT_TRUE(seen.starts_with("7 charts, ") && seen.ends_with(" shapes; ")) << seen;
  std::string broken = profile_html(report());
  broken.replace(broken.find("<circle cx=\""), 12, "<circle cx=\"9");
  EXPECT_NE(seen_in(broken, "1280,900").find("sticks out: &lt;circle"), std::string::npos);
}

}  // namespace
}  // namespace headrace
