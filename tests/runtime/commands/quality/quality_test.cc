// headrace bench quality: ROUGE-L on known values, hidden sentences, sums over documents, and the JSON. The runs
// themselves are tested with the program (tests/cli).
#include "runtime/commands/quality/quality.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "runtime/commands/quality/needle.h"
#include "runtime/commands/quality/rouge.h"

namespace headrace {
namespace {

using Ids = std::vector<int32_t>;

Ids letters(const std::string& text) { return {text.begin(), text.end()}; }

// What the Python package `rouge` 1.0.1 says of the same texts, words for letters (rouge-l, f).
TEST(RougeL, IsThatOfThePackage) {
  EXPECT_NEAR(rouge_l(letters("abcdef"), letters("axcdyfz")), 0.6153846104, 1e-6);
  EXPECT_NEAR(rouge_l(letters("tqbfj"), letters("qfotj")), 0.599999995, 1e-6);
  EXPECT_NEAR(rouge_l(letters("gabhcd"), letters("cdab")), 0.3999999952, 1e-6);
  EXPECT_EQ(rouge_l(letters("abc"), letters("def")), 0);
  EXPECT_EQ(rouge_l(letters("abcd"), letters("abcd")), 1);
}

TEST(RougeL, OfTextsThatRepeatAndOfNone) {
  EXPECT_EQ(longest_common_subsequence(letters("aaaa"), letters("aa")), 2);
  EXPECT_EQ(longest_common_subsequence(letters("abcbdab"), letters("bdcaba")), 4);  // Cormen et al., 15.4
  EXPECT_EQ(longest_common_subsequence(letters("bdcaba"), letters("abcbdab")), 4);
  EXPECT_EQ(longest_common_subsequence({}, letters("a")), 0);
  EXPECT_EQ(rouge_l({}, letters("a")), 0);
  EXPECT_EQ(rouge_l({}, {}), 1);
}

TEST(Needle, StandsBehindASentence) {
  const std::string text = "One two. Three four. Five six.";
  EXPECT_EQ(with_needle(text, 0.0, "N."), "One two. N. Three four. Five six.");
  EXPECT_EQ(with_needle(text, 0.5, "N."), "One two. Three four. N. Five six.");
  EXPECT_EQ(with_needle(text, 0.9, "N."), "One two. Three four. Five six. N.");
  EXPECT_EQ(with_needle("no full stop here", 0.5, "N."), "no full stop N. here");
  EXPECT_EQ(with_needle("äöü€", 0.5, "N."), "äöü€ N.");  // no place that is not inside a character
  EXPECT_EQ(with_needle("", 0.5, "N."), " N.");
}

TEST(Needle, IsFoundHoweverItsDigitsAreGrouped) {
  EXPECT_TRUE(has_number("It is 4827163.", "4827163"));
  EXPECT_TRUE(has_number("It is 4,827,163, I think", "4827163"));
  EXPECT_TRUE(has_number("4 827 163", "4827163"));
  EXPECT_FALSE(has_number("It is 482716", "4827163"));
  EXPECT_FALSE(has_number("4827. 163", "4827163"));
  EXPECT_FALSE(has_number("", "4827163"));
}

QualityRow row(const std::string& document, float temperature, int64_t budget, int64_t rejected, double rouge) {
  QualityRow row;
  row.document = document;
  row.temperature = temperature;
  row.reading = {PartialKind::kBlocks, budget};
  row.interval = 20;
  row.runs = row.lossless_same = 1;
  row.decode_tokens = 50;
  row.lossless.verify_outcome = {.judged = 40, .rejected = rejected, .discarded = 7};
  constexpr int32_t kDepths[] = {1, 2};
  row.lossless.record(StepMode::kPartial, {.levels = 3, .accepted_depths = kDepths, .draft_ms = 1, .verify_ms = 5});
  row.lossless.record(StepMode::kRefresh, {.committed = 3, .draft_ms = 1, .verify_ms = 50});
  row.rouge_l_sum = rouge;
  return row;
}

TEST(QualityReport, SumsUpDocuments) {
  QualityReport report;
  report.rows = {row("a", 0, 512, 2, 0.5), row("a", 0, 1024, 1, 0.6), row("b", 0, 512, 6, 0.9),
                 row("b", 0, 1024, 0, 1)};
  const std::vector<QualityRow> means = report.means();
  ASSERT_EQ(means.size(), 2u);
  EXPECT_EQ(means[0].reading.budget, 512);
  EXPECT_EQ(means[0].document, "");
  EXPECT_EQ(means[0].runs, 2);
  EXPECT_EQ(means[0].decode_tokens, 100);
  EXPECT_DOUBLE_EQ(means[0].lossless.verify_outcome.overturn_rate(), 0.1);
  EXPECT_DOUBLE_EQ(means[0].rouge_l(), 0.7);
  EXPECT_EQ(means[0].lossless.of(StepMode::kPartial).steps, 2);
  EXPECT_DOUBLE_EQ(means[0].lossless.of(StepMode::kPartial).tau(), 2);
  EXPECT_DOUBLE_EQ(means[0].lossless.draft_ms, 4);
  EXPECT_DOUBLE_EQ(means[0].lossless.verify_ms, 110);
  EXPECT_DOUBLE_EQ(means[0].lossless.of(StepMode::kPartial).verify_ms, 10);
  EXPECT_EQ(means[0].lossless.offered_by_depth, (std::vector<int64_t>{2, 2, 2}));
  EXPECT_EQ(means[0].lossless.accepted_by_depth, (std::vector<int64_t>{2, 2}));
  EXPECT_TRUE(report.lossless());
  report.rows[3].lossless_same = 0;
  EXPECT_FALSE(report.lossless());
}

TEST(QualityReport, JsonSaysWhatWasMeasured) {
  QualityReport report;
  report.machine = {.cpu = "a CPU", .cores = 2, .memory_bytes = 5};
  report.draft = "none";
  report.rows = {row("a", 0.8f, 512, 2, 0.5)};
  NeedleRow needle;
  needle.document = "a";
  needle.depth = 0.5;
  needle.number = "123";
  needle.answer = "no idea \xff";  // cut inside a character
  report.needles = {needle};
  const auto json = nlohmann::json::parse(quality_json(report));
  EXPECT_EQ(json["machine"]["cpu"], "a CPU");
  const auto& first = json["rows"][0];
  EXPECT_EQ(first["temperature"], 0.8);
  EXPECT_EQ(first["lossless"]["overturn_rate"], 0.05);
  EXPECT_EQ(first["lossless"]["steps"]["partial"]["tau"], 2.0);
  EXPECT_EQ(first["lossless"]["steps"]["partial"]["draft_ms_per_step"], 1.0);
  EXPECT_EQ(first["lossless"]["steps"]["refresh"]["verify_ms_per_step"], 50.0);
  EXPECT_GT(first["lossless"]["steps"]["refresh"]["confirmed"], 0);
  EXPECT_EQ(first["approximate"]["rouge_l"], 0.5);
  EXPECT_EQ(first["partial_holds_all"], false);
  EXPECT_EQ(json["all_documents"].size(), 1u);
  EXPECT_FALSE(json["all_documents"][0].contains("document"));
  EXPECT_EQ(json["needles"][0]["found"], false);
  EXPECT_EQ(json["needles"][0]["verify"], "full");
  EXPECT_FALSE(json["needles"][0].contains("budget"));
}

}  // namespace
}  // namespace headrace
