// The numbers of the pages: defaults in the manual's tables are those of the flag table, and limits and sizes in its
// prose, in design.md and in architecture.md those of the code.
#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <iterator>
#include <regex>
#include <sstream>
#include <string>
#include <string_view>
#include <vector>

#include "cache/partial.h"
#include "cli/flags/parser.h"
#include "cli/flags/presets.h"

namespace headrace {
namespace {

using Words = std::vector<std::string>;

std::string contents(const std::string& path) {
  std::ifstream file(HEADRACE_SOURCE_DIR "/" + path);
  EXPECT_TRUE(file.good()) << path;
  return {std::istreambuf_iterator<char>(file), {}};
}

// Line breaks of prose are spaces.
std::string one_line(const std::string& text) { return std::regex_replace(text, std::regex("\\s+"), " "); }

Words all_matches(const std::string& text, const std::regex& pattern, int group = 1) {
  Words words;
  for (std::sregex_iterator match(text.begin(), text.end(), pattern), end; match != end; ++match) {
    words.push_back((*match)[static_cast<size_t>(group)]);
  }
  return words;
}

// ---- defaults: "| `-n, --predict, --max-tokens N` | the most tokens to generate [256] |"
// -----------------------------

struct Row {
  std::string section, line;
  Words flags, defaults;  // names; what is in brackets, without quotes
};

// The last brackets of a text that ends with some, and those within its first cell.
Words bracketed(const std::string& cells) {
  Words all = all_matches(cells.substr(0, cells.find(" | ")), std::regex("` \\[([^\\]]*)\\]"));
  std::smatch last;
  if (std::regex_search(cells, last, std::regex("\\[([^\\[\\]]*)\\]\\.? \\|$"))) all.push_back(last[1]);
  for (std::string& text : all) text.erase(std::remove(text.begin(), text.end(), '`'), text.end());
  return all;
}

std::vector<Row> rows_of_the_manual() {
  std::vector<Row> rows;
  std::istringstream in(contents("docs/manual.md"));
  std::string section;
  for (std::string line; std::getline(in, line);) {
    if (line.starts_with("#")) section = line.substr(line.find(' ') + 1);
    if (!line.starts_with("| `-") || section == "Presets") continue;  // those are no defaults
    const std::string cell = line.substr(0, line.find(" | ", 2));
    rows.push_back({section, line, all_matches(cell, std::regex("[` ](--?[a-z][-a-z0-9]*)")), bracketed(line)});
  }
  return rows;
}

// The command that a section is about, or one that has the flag.
const CLI::Option* find_option(Parser& parser, const std::string& section, const std::string& flag) {
  std::vector<CLI::App*> apps;
  if (section == "bench quality") apps.push_back(parser.quality_app);
  for (CLI::App* const app : parser.app.get_subcommands({})) {
    if (app->get_name() == section) apps.push_back(app);
  }
  if (apps.empty()) apps = {parser.generate_app, parser.summarize_app, parser.batch_app};
  for (CLI::App* const app : apps) {
    if (const CLI::Option* const option = app->get_option_no_throw(flag)) return option;
  }
  return nullptr;
}

// "[0.75; 0.4 with --quick]" -> 0.75, 0.4; sizes keep their unit.
Words numbers_in(const std::string& text) {
  return all_matches(std::regex_replace(text, std::regex("[ ,]+(?=[KMGT]i?B)"), ""),
                     std::regex("(^|[^-A-Za-z0-9.])([0-9][0-9.]*[0-9]([KMGT]i?B?|%)?|[0-9]([KMGT]i?B?|%)?)"), 2);
}

TEST(ManualNumbers, DefaultsAreThoseOfTheFlagTable) {
  Parser parser;
  int compared = 0;
  for (const Row& row : rows_of_the_manual()) {
    Words ours, theirs;
    std::string helps;
    for (const std::string& flag : row.flags) {
      const CLI::Option* const option = find_option(parser, row.section, flag);
      if (option == nullptr) continue;  // a flag of another command in the same row: --list-devices
      const Words help = all_matches(option->get_description() + " |", std::regex("\\[([^\\[\\]]*)\\] \\|$"));
      if (std::find(theirs.begin(), theirs.end(), option->get_description()) == theirs.end()) {
        theirs.push_back(option->get_description());
        for (const std::string& text : help) helps += (helps.empty() ? "" : ", ") + text;
      }
    }
    ASSERT_FALSE(theirs.empty()) << "no command of '" << row.section << "' has " << row.line;
    std::string manual;
    for (const std::string& text : row.defaults) manual += (manual.empty() ? "" : ", ") + text;
    if (!manual.empty() && manual.find(' ') == manual.npos) {  // a word or a number: the help begins with it
      EXPECT_EQ(helps.substr(0, manual.size()), manual) << row.line;
      ++compared;
    } else if (!numbers_in(manual).empty() || !numbers_in(helps).empty()) {
      EXPECT_EQ(numbers_in(manual), numbers_in(helps)) << row.line << "\n  the help has [" << helps << "]";
      ++compared;
    }
  }
  EXPECT_GT(compared, 18);
}

// ---- prose: a number of a page, and the constant behind it
// -----------------------------------------------------------

struct Claim {
  const char *page, *said;     // groups of this expression are the numbers
  const char *file, *defined;  // and of this one the values, in the same order
};

double value_of(const std::string& text) {
  std::string plain = std::regex_replace(text, std::regex("['`,]|u?int64_t|size_t|[{}]"), "");
  const std::pair<const char*, int> units[] = {{"Ki", 10}, {"Mi", 20}, {"Gi", 30}};
  double value = 1;
  std::smatch unit;
  if (std::regex_search(plain, unit, std::regex("k?([KMG]i)B"))) {
    for (const auto& [name, bits] : units) value *= unit[1] == name ? static_cast<double>(int64_t{1} << bits) : 1.0;
    plain = unit.prefix();
  }
  if (plain.find("million") != plain.npos) value *= 1e6;
  std::smatch shifted;
  if (std::regex_search(plain, shifted, std::regex("([0-9]+) << ([0-9]+)"))) {
    return value * std::stod(shifted[1]) * static_cast<double>(int64_t{1} << std::stoi(shifted[2]));
  }
  return value * std::stod(plain);
}

constexpr char kManual[] = "docs/manual.md", kDesign[] = "docs/design.md", kTour[] = "docs/architecture.md",
               kFormats[] = "docs/formats.md";
constexpr Claim kClaims[] = {
    // partial verification
    {kManual, "may be pending, 1 to (\\d+);", "cache/partial.h", "kMaxPending = (\\d+)"},
    {kDesign, "not in the full KV\\. At most (\\d+)", "cache/partial.h", "kMaxPending = (\\d+)"},
    {kDesign, "at most (\\d+) pending tokens, and (\\d+) levels", "cache/partial.h",
     "kMaxPending = (\\d+)[\\s\\S]*?kDeepestJudged = (\\d+)"},
    {kManual, "in approximate runs it is (\\d+)", "runtime/speculation/verify_options.h",
     "kPublishedInterval = (\\d+)"},
    {kDesign, "`auto` is the published (\\d+)", "runtime/speculation/verify_options.h", "kPublishedInterval = (\\d+)"},
    {kDesign,
     "partial step computes up to (\\d+) nodes, second and third choices included, and a refresh verifies up to (\\d+)",
     "runtime/engine/run_candidates.cc", "limits\\{\\.width = (\\d+), \\.grown = (\\d+)"},
    {kDesign, "With a copy a step computes up to (\\d+) nodes, with a draft (\\d+)", "runtime/engine/run_candidates.cc",
     "\\.width = model != nullptr \\? (\\d+) : (\\d+)"},
    {kManual, "the first (\\d+) tokens, the last ones, and blocks of (\\d+) tokens", "cache/partial.h",
     "kSelectRows = (\\d+)[\\s\\S]*?kSinkRows = (\\d+)"},
    {kDesign, "per layer: (\\d+) sink rows", "cache/partial.h", "kSinkRows = (\\d+)"},
    {kDesign, "a window of (\\d+) rows that", "cache/partial.h", "kWindowRows = (\\d+)"},
    {kDesign, "the prompt's last (\\d+) rows, and gathered", "runtime/session/options.h", "kScoringRows = (\\d+)"},
    {kDesign, "Runs of ([\\d,]+) values", "cache/base.h", "kRemainderRun = (\\d+)"},
    {kDesign, "`W = (\\d+)`", "cache/base.h", "kTailWindow = (\\d+)"},
    {kDesign, "largest multiple of (\\d+) that is at most `t - (\\d+)`", "cache/base.h",
     "kTailWindow = (\\d+)[\\s\\S]*?kPrefixTile = (\\d+)"},
    {kDesign, "walked in groups of (\\d+) rows", "cache/base.h", "kTailGroup = (\\d+)"},
    // drafts
    {kManual, "at most (\\d+) nodes, the root included", "runtime/speculation/tree.h", "kMaxTreeNodes = (\\d+)"},
    {kManual, "Plain `eagle2` is (\\d+),", "runtime/speculation/policy/tree_policy.cc",
     "parse_eagle2[\\s\\S]*?\"nodes\", 2, kMaxTreeNodes, (\\d+)"},
    {kManual, "`opt` is (\\d+),", "runtime/speculation/policy/tree_policy.cc",
     "eagle2_shape[\\s\\S]*?\"nodes\", 2, kMaxTreeNodes, (\\d+)"},
    {kManual, "`opt` is \\d+,\\d+,([\\d.]+);", "runtime/speculation/policy/tree_policy.cc", "threshold = ([\\d.]+)f"},
    {kManual, "`auto` takes up to (\\d+) nodes on a GPU", "runtime/speculation/tree.h", "kMaxTreeNodes = (\\d+)"},
    {kManual, "nodes on a GPU and (\\d+) on a CPU", "runtime/draft/open/open_draft.cc", "kMaxTreeNodes : (\\d+)"},
    {kManual, "\\d+ nodes on a GPU and (\\d+) on the CPU", "runtime/engine/drafting.cc",
     "rows_cost\\) return \\{\\.nodes = (\\d+)"},
    {kManual, "(\\d+) nodes on a GPU and \\d+ on the CPU", "kernels/product/op.h", "kProductRowPadding = (\\d+)"},
    {kManual, "attends to the first (\\d+) tokens and", "runtime/draft/cache.h", "kDraftSinkRows = (\\d+)"},
    {kManual, "LongSpec layers have a window of (\\d+)", "runtime/draft/longspec/checkpoint.h", "window = (\\d+)"},
    {kManual, "small models one of at most ([\\d,]+)", "runtime/draft/window.cc", "kUsualWindow = (\\d+)"},
    {kManual, "recent (\\d+) tokens \\(`--draft-window`\\)", "runtime/draft/window.cc", "kWindowBesideChunks = (\\d+)"},
    {kManual, "The defaults are (\\d+) chunks", "runtime/draft/eagle3/model.cc", "kUsualChunks = (\\d+)"},
    {kManual, "for a head and (\\d+) for a small model", "runtime/draft/small_lm/model.cc", "kUsualChunks = (\\d+)"},
    {kManual, "The defaults are \\d+ chunks of (\\d+) tokens", "runtime/draft/window.h", "rows = (\\d+)"},
    {kManual, "`CHUNKS` \\(1 to ([\\d,]+)\\)", "kernels/blocks/op.h", "kMaxKeptBlocks = (\\d+)"},
    {kManual, "`ROWS` \\((\\d+) to (\\d+)\\)[^|]*`EVERY` \\(1 to ([\\d,]+)\\)", "cli/flags/flag_groups.cc",
     "shape\\.rows, (\\d+), (\\d+)\\),\\s+int_value\\(&shape\\.every, 1, (\\d+)"},
    // memory
    {kDesign, "(\\d+) slots of (\\d+ MiB) \\(of (\\d+) with", "cache/memory_plan.cc",
     "kDefaultRingSlots = (\\d+)[\\s\\S]*?kDefaultSlotBytes = (\\d+ \\* kMiB)[\\s\\S]*?kRemainderSlotBytes = (\\d+)"},
    {kDesign, "(\\d+) slots of (\\d+ MiB), (\\d+) with", "cache/memory_plan.cc",
     "kDefaultRingSlots = (\\d+)[\\s\\S]*?kDefaultSlotBytes = (\\d+ \\* kMiB)[\\s\\S]*?kRemainderSlotBytes = (\\d+)"},
    {kDesign, "ring of (\\d+) slots of up to", "cache/memory_plan.cc", "kDefaultDiskSlots = (\\d+)"},
    {kDesign, "a pinned ring of (\\d+) slots", "cache/memory_plan.cc", "kDefaultDiskSlots = (\\d+)"},
    {kDesign, "(\\d+) rows and at most one segment", "cache/memory_plan.h", "kTailRingRows = (\\d+)"},
    {kDesign, "a ring of (\\d+) rows a layer", "cache/memory_plan.h", "kTailRingRows = (\\d+)"},
    {kDesign, "at most one segment of ([\\d,]+) rows", "cache/layout.h", "kLargeSegmentRows = (\\d+)"},
    {kDesign, "(\\d+) rows each up to row [\\d,]+, ([\\d,]+) rows each beyond", "cache/layout.h",
     "kSmallSegmentRows = (\\d+)[\\s\\S]*?kLargeSegmentRows = (\\d+)"},
    {kDesign, "rows each up to row ([\\d,]+)", "cache/layout.h", "kLargeSegmentsFrom = (\\d+)"},
    {kDesign, "slots of up to \\d+ MiB; up to (\\d+ MiB)", "runtime/prefix/loader.cc", "kRingBytes = (\\d+ \\* kMiB)"},
    {kManual, "by (\\d+) threads where the system", "offload/disk/file_queue_threads.cc", "kMaxThreads = (\\d+)"},
    {kManual, "A prompt of fewer than (\\d+) tokens is not saved", "runtime/prefix/run.h", "kMinSavedRows = (\\d+)"},
    {kTour, "loader threads \\(up to (\\d+)\\)", "runtime/prefix/loader.cc", "kThreads = (\\d+)"},
    {kDesign, "they run in groups of ([\\d,]+) rows at absolute", "runtime/session/options.h",
     "kCudaPrefillGroup = (\\d+)"},
    {kDesign, "their prefill groups of (\\d+) rows", "runtime/session/options.h", "kCpuPrefillGroup = (\\d+)"},
    {kDesign, "groups of exactly (\\d+) rows", "kernels/product/op.h", "kProductRowPadding = (\\d+)"},
    {kDesign, "`--vram` is the free device memory less (\\d+ MiB)", "offload/device/cuda/device.cc",
     "kLeftToOthers = (\\d+ \\* kMiB)"},
    // text, requests, trace
    {kManual, "A document may have (\\d+ MiB)", "runtime/base/input_file.h",
     "kMaxStreamBytes = (uint64_t\\{256\\} << \\d+)"},
    {kManual, "takes more than (\\d+ million) steps", "runtime/text/jinja/runtime.h", "steps = ([\\d']+)"},
    {kManual, "steps or prints more than (\\d+ MiB)", "runtime/text/jinja/runtime.h",
     "output_bytes = (uint64_t\\{1\\} << \\d+)"},
    {kManual, "a quarter of its text and (\\d+ KiB)", "runtime/commands/shared_rows.cc", "kMinSharedBytes = (\\d+)"},
    {kFormats, "`top_logprobs` \\(0 to (\\d+)\\)", "runtime/session/log_probs.h", "kMaxTopTokens = (\\d+)"},
    {kFormats, "a completion `logprobs` \\(0 to (\\d+)\\)", "runtime/requests/request.cc",
     "kMaxCompletionLogProbs = (\\d+)"},
    {kManual, "if that had ([\\d,]+) tokens or more", "runtime/server/worker.cc", "kLongPrompt = (\\d+)"},
    {kManual, "\\((\\d+) on a CPU\\): a request", "runtime/server/worker.cc", "kMinKept = (\\d+)"},
    {kFormats, "the first (\\d+) decode steps", "offload/device/trace.h", "kTracedSteps = (\\d+)"},
    {kFormats, "([\\d,]+) slices in all", "offload/device/trace.h", "kMaxSlices = (\\d+)"},
};

Words groups_of(const std::string& text, const char* pattern) {
  std::smatch match;
  if (!std::regex_search(text, match, std::regex(pattern))) return {};
  return {std::next(match.begin()), match.end()};
}

TEST(ManualNumbers, ProseHasTheLimitsOfTheCode) {
  for (const Claim& claim : kClaims) {
    const Words said = groups_of(one_line(contents(claim.page)), claim.said);
    const Words defined = groups_of(contents(claim.file), claim.defined);
    ASSERT_FALSE(said.empty()) << claim.page << " no longer says: " << claim.said;
    ASSERT_FALSE(defined.empty()) << claim.file << " no longer has: " << claim.defined;
    ASSERT_EQ(said.size(), defined.size()) << claim.said;
    std::vector<double> page, code;
    for (const std::string& number : said) page.push_back(value_of(number));
    for (const std::string& number : defined) code.push_back(value_of(number));
    std::sort(page.begin(), page.end());  // a page may name them in another order
    std::sort(code.begin(), code.end());
    EXPECT_EQ(page, code) << claim.page << ": " << claim.said << "\n  " << claim.file << ": " << claim.defined;
  }
}

// The manual has a row for each preset, with each of its settings.
TEST(ManualNumbers, PresetsAreThoseOfTheTable) {
  const std::string manual = contents(kManual);
  for (const Preset& preset : presets()) {
    const size_t begin = manual.find(str("| `", preset.name, "`"));
    ASSERT_NE(begin, manual.npos) << preset.name;
    const std::string row = manual.substr(begin, manual.find('\n', begin) - begin);
    for (const PresetSetting& setting : preset.settings) {
      const std::string said = str(setting.flags.substr(0, setting.flags.find(',')), " ", setting.value);
      EXPECT_TRUE(row.find(said + " ") != row.npos || row.find(said + "`") != row.npos) << preset.name << ": " << said;
    }
  }
}

// Sums of constants, which no expression finds.
TEST(ManualNumbers, ProseHasWhatFollowsFromThem) {
  const std::string manual = one_line(contents(kManual)), design = one_line(contents(kDesign));
  const PartialShape shape{.blocks = 256};
  const auto says = [](const std::string& page, const std::string& text) {
    EXPECT_NE(page.find(text), page.npos) << text;
  };
  says(design, str("K and V of the budget and ", shape.rows() - shape.retrieved_rows(), " rows"));
  says(manual, str("the last ", kTailWindow, " to ", kTailWindow + kPrefixTile - 1, " tokens, which are always exact"));
  says(manual, str("The last ", kTailWindow, " to ", kTailWindow + kPrefixTile - 1, " rows before a token"));
  says(manual, str("another window has at least ", kTailWindow + kPrefixTile, " tokens"));
  says(design, str("`--partial-budget`, a multiple of ", kPrefixTile, " rows up to "));
}

}  // namespace
}  // namespace headrace
