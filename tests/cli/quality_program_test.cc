// headrace bench quality with a tiny model and made-up documents: a table, the JSON, what is refused.
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "tests/cli/process.h"
#include "tests/cli/tiny_model.h"
#include "tests/support/temporary_folder.h"

namespace headrace {
namespace {

using nlohmann::json;

class QualityProgram : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    folder_ = new TemporaryFolder;
    write_tiny_model(*folder_ / "model");
    for (const char* name : {"one.txt", "two.txt"}) {
      std::ofstream out(*folder_ / name);
      for (int i = 0; i < 60; ++i) out << name << " says for the " << i << "th time that nothing happened.\n";
    }
    std::ofstream(*folder_ / "empty.txt") << " \n";
  }
  static void TearDownTestSuite() { delete folder_; }

  static Finished run(const std::vector<std::string>& more) {
    std::vector<std::string> args = {"bench", "quality", "-m", *folder_ / "model", "-t", "1"};
    args.insert(args.end(), more.begin(), more.end());
    return run_program(args);
  }
  static std::string file(const std::string& name) { return *folder_ / name; }

  static TemporaryFolder* folder_;
};
TemporaryFolder* QualityProgram::folder_ = nullptr;

TEST_F(QualityProgram, MeasuresEveryDocumentBudgetIntervalAndTemperature) {
  const Finished done =
      run({"--documents", file("one.txt"), file("two.txt"), "-p", "900", "-n", "40", "--budgets", "64,4K",
           "--intervals", "8,auto", "--temps", "0,0.8", "--ignore-eos", "-o", file("q.json")});
  ASSERT_EQ(done.exit_code, 0) << done.err;
  EXPECT_NE(done.out.find("overturned"), std::string::npos) << done.out;
  EXPECT_NE(done.out.find("the partial KV holds all of two.txt"), std::string::npos) << done.out;
  EXPECT_NE(done.out.find("sentences found"), std::string::npos) << done.out;
  std::ifstream in(file("q.json"));
  const json report = json::parse(in);
  EXPECT_EQ(report["program"], "headrace bench quality");
  EXPECT_EQ(report["prefill_type"], report["dtype"]);
  EXPECT_FALSE(report["machine"]["cpu"].get<std::string>().empty());
  ASSERT_EQ(report["rows"].size(), 16u);  // 2 documents, 2 temperatures, 2 budgets, 2 intervals
  int64_t judged = 0, approximate = 0;
  for (const json& row : report["rows"]) {
    EXPECT_EQ(row["lossless"]["same_text"], 1) << row;
    EXPECT_EQ(row["decode_tokens"], 40);
    EXPECT_LE(row["prompt_tokens"], 900);
    EXPECT_GT(row["prompt_tokens"], 880);
    EXPECT_EQ(row["partial_holds_all"], row["budget"] == 4096);
    if (row["budget"] == 4096) {
      EXPECT_EQ(row["approximate"]["rouge_l"], 1.0) << row;
    }
    judged += row["lossless"]["judged"].get<int64_t>();
    approximate += row["approximate"]["judged"].get<int64_t>();
  }
  EXPECT_GT(judged, 100);  // at the interval of 8; auto may find that partial steps do not pay
  EXPECT_GT(approximate, 60);
  EXPECT_EQ(report["all_documents"].size(), 8u);
  EXPECT_EQ(report["all_documents"][0]["runs"], 2);
  // Random weights find nothing, and say so.
  ASSERT_EQ(report["needles"].size(), 18u);  // 2 documents, 3 depths, the full KV and 2 budgets
  for (const json& needle : report["needles"]) {
    EXPECT_EQ(needle["found"], false);
    EXPECT_EQ(needle["number"].get<std::string>().size(), 7u);
    EXPECT_LE(needle["prompt_tokens"], 908);
  }
}

TEST_F(QualityProgram, ComparesCopiesAndBlocks) {
  const Finished done =
      run({"--documents", file("one.txt"), "-p", "900", "-n", "40", "--partial-kv", "int8,blocks", "--budgets", "64",
           "--intervals", "8", "--temps", "0.8", "--ignore-eos", "-o", file("kinds.json")});
  ASSERT_EQ(done.exit_code, 0) << done.err;
  EXPECT_NE(done.out.find("sentences found, full KV: "), std::string::npos) << done.out;
  EXPECT_NE(done.out.find("; sentences found, int8: "), std::string::npos) << done.out;
  std::ifstream in(file("kinds.json"));
  const json report = json::parse(in);
  ASSERT_EQ(report["rows"].size(), 2u);
  const char* const kinds[] = {"int8", "blocks"};
  for (size_t i = 0; i < 2; ++i) {
    const json& row = report["rows"][i];
    EXPECT_EQ(row["partial_kv"], kinds[i]);
    EXPECT_EQ(row.contains("budget"), i == 1) << row;
    EXPECT_EQ(row["lossless"]["same_text"], 1) << row;
    EXPECT_GT(row["lossless"]["judged"], 10) << row;
    EXPECT_GT(row["approximate"]["judged"], 10) << row;
  }
  // Eight bits stand in for the rows better than a sixteenth of them, and the report tells them apart.
  EXPECT_LT(report["rows"][0]["lossless"]["overturned"], report["rows"][1]["lossless"]["overturned"]) << report["rows"];
  ASSERT_EQ(report["needles"].size(), 9u);  // 3 depths, the full KV and 2 kinds
  EXPECT_EQ(report["needles"][1]["partial_kv"], "int8");
  EXPECT_FALSE(report["needles"][0].contains("partial_kv"));
}

TEST_F(QualityProgram, GivesADraftsTau) {
  const Finished done = run({"--documents", file("one.txt"), "-p", "900", "-n", "24", "--budgets", "64", "--intervals",
                             "8", "--temps", "0", "--ignore-eos", "--spec-type", "ngram-simple", "--json"});
  ASSERT_EQ(done.exit_code, 0) << done.err;
  const json report = json::parse(done.out);
  EXPECT_EQ(report["draft"], "ngram-simple");
  EXPECT_TRUE(report["needles"][0].contains("tau"));
  EXPECT_GT(report["needles"][0]["steps"]["full"]["steps"], 0);
}

TEST_F(QualityProgram, PerplexityOfEachDocumentAndOfAll) {
  const Finished done = run({"--documents", file("one.txt"), file("two.txt"), "--perplexity", "-o", file("p.json")});
  ASSERT_EQ(done.exit_code, 0) << done.err;
  EXPECT_NE(done.out.find("perplexity"), std::string::npos) << done.out;
  EXPECT_NE(done.out.find("all documents"), std::string::npos) << done.out;
  std::ifstream in(file("p.json"));
  const json report = json::parse(in);
  EXPECT_EQ(report["measures"], "perplexity");
  EXPECT_EQ(report["cache_type_k"], report["dtype"]);
  ASSERT_EQ(report["rows"].size(), 2u);
  int64_t predicted = 0;
  for (const json& row : report["rows"]) {
    EXPECT_EQ(row["predicted"], row["tokens"].get<int64_t>() - 1);
    EXPECT_NEAR(row["perplexity"].get<double>(), std::exp(row["nats"].get<double>()), 1e-3) << row;
    EXPECT_GT(row["nats"], 3);  // random weights: about log 512
    predicted += row["predicted"].get<int64_t>();
  }
  EXPECT_EQ(report["all_documents"]["predicted"], predicted);
  const json cut = json::parse(run({"--documents", file("one.txt"), "--perplexity", "-p", "100", "--json"}).out);
  EXPECT_EQ(cut["rows"][0]["predicted"], 99);
  EXPECT_NE(cut["rows"][0]["nats"], report["rows"][0]["nats"]);
}

TEST_F(QualityProgram, PerplexityAgainstAnotherPrefill) {
  const std::vector<std::string> documents = {"--documents", file("one.txt"), file("two.txt"), "--perplexity"};
  const auto with = [&](const std::vector<std::string>& more) {
    std::vector<std::string> args = documents;
    args.insert(args.end(), more.begin(), more.end());
    return run(args);
  };
  const Finished done = with({"--prefill-type", "int8", "--against", "bf16", "-o", file("against.json")});
  ASSERT_EQ(done.exit_code, 0) << done.err;
  EXPECT_NE(done.out.find("prompts read in int8, against "), std::string::npos) << done.out;
  EXPECT_NE(done.out.find(" nats, the same first token at "), std::string::npos) << done.out;
  std::ifstream in(file("against.json"));
  const json report = json::parse(in), plain = json::parse(with({"--prefill-type", "bf16", "--json"}).out),
             int8 = json::parse(with({"--prefill-type", "int8", "--json"}).out);
  EXPECT_EQ(report["prefill_type"], "int8");
  EXPECT_EQ(report["against_prefill_type"], plain["prefill_type"]);
  EXPECT_FALSE(plain.contains("against_prefill_type"));
  EXPECT_FALSE(plain["rows"][0].contains("kl"));
  ASSERT_EQ(report["rows"].size(), 2u);
  for (size_t i = 0; i < 2; ++i) {
    const json& row = report["rows"][i];
    // Each is what it is alone.
    EXPECT_EQ(row["perplexity"], int8["rows"][i]["perplexity"]) << row;
    EXPECT_EQ(row["against"]["perplexity"], plain["rows"][i]["perplexity"]) << row;
    EXPECT_EQ(row["against"]["nats"], plain["rows"][i]["nats"]) << row;
    EXPECT_GE(row["kl"], 0) << row;
    EXPECT_LT(row["kl"], 0.1) << row;
    EXPECT_GT(row["top1"], 0.5) << row;
    EXPECT_LE(row["top1"], 1) << row;
  }
  EXPECT_TRUE(report["all_documents"].contains("kl")) << report;
  const json same = json::parse(with({"--prefill-type", "bf16", "--against", "bf16", "--json"}).out);
  EXPECT_EQ(same["all_documents"]["kl"], 0) << same;
  EXPECT_EQ(same["all_documents"]["top1"], 1) << same;
  EXPECT_EQ(same["all_documents"]["perplexity"], same["all_documents"]["against"]["perplexity"]) << same;
}

TEST_F(QualityProgram, PerplexityRefusesByName) {
  std::ofstream(file("x.txt")) << "x";
  const auto told = [](const std::vector<std::string>& more, int exit_code, const std::string& text) {
    std::vector<std::string> args = {"--perplexity", "--documents"};
    args.insert(args.end(), more.begin(), more.end());
    const Finished done = run(args);
    EXPECT_EQ(done.exit_code, exit_code) << text;
    EXPECT_NE(done.err.find(text), std::string::npos) << done.err;
  };
  told({file("empty.txt")}, 3, "empty.txt");
  told({file("one.txt"), file("x.txt")}, 3, "x.txt: has 1 token: perplexity needs at least 2");
  told({file("one.txt"), "-p", "1"}, 3, "Raise -p");
  told({file("one.txt"), "--budgets", "512"}, 2, "--budgets");
  told({file("one.txt"), "-n", "4"}, 2, "--decode-tokens");
  told({file("one.txt"), "--spec-type", "ngram-simple"}, 2, "--spec-type");
  told({file("one.txt"), "--no-chat-template"}, 2, "--no-chat-template");
  std::ofstream long_text(file("long.txt"));  // of one token more than the context
  for (int i = 0; i < 1'000'001; ++i) long_text << 'x';
  long_text.close();
  told({file("long.txt")}, 3, "has 1000001 tokens, the context of");
}

// The model as its own draft: it ranks first what it would have said.
TEST_F(QualityProgram, RanksAHiddenNumberByADraft) {
  const Finished done = run({"--documents", file("one.txt"), file("two.txt"), "-p", "900", "--draft-needle", "--dtype",
                             "f32", "--spec-type", "draft-simple", "-md", file("model"), "-o", file("d.json")});
  ASSERT_EQ(done.exit_code, 0) << done.err;
  EXPECT_NE(done.out.find("perplexity  target  document: number"), std::string::npos) << done.out;
  EXPECT_NE(done.out.find("   all      42"), std::string::npos) << done.out;
  std::ifstream in(file("d.json"));
  const json report = json::parse(in);
  EXPECT_EQ(report["measures"], "draft needle");
  EXPECT_EQ(report["draft"], "draft-simple");
  EXPECT_EQ(report["draft_window"], 0);  // the context has no more than its window
  ASSERT_EQ(report["rows"].size(), 6u);
  for (const json& row : report["rows"]) {
    EXPECT_EQ(row["tokens"], 7);
    EXPECT_GT(row["perplexity"], 30) << row;  // random weights: about 512
  }
  EXPECT_EQ(report["all_documents"]["tokens"], 42);
}

TEST_F(QualityProgram, DraftNeedleRefusesByName) {
  const auto told = [](const std::vector<std::string>& more, const std::string& text) {
    std::vector<std::string> args = {"--draft-needle", "--documents", file("one.txt")};
    args.insert(args.end(), more.begin(), more.end());
    const Finished done = run(args);
    EXPECT_EQ(done.exit_code, 2) << text;
    EXPECT_NE(done.err.find(text), std::string::npos) << done.err;
  };
  told({}, "needs a draft that ranks a vocabulary");
  told({"--spec-type", "ngram-simple"}, "needs a draft that ranks a vocabulary");
  told({"--spec-type", "draft-simple,ngram-simple", "-md", file("model")}, "needs a draft that ranks a vocabulary");
  const auto with_draft = [&](std::vector<std::string> more, const std::string& text) {
    more.insert(more.end(), {"--spec-type", "draft-simple", "-md", file("model")});
    told(more, text);
  };
  with_draft({"--perplexity"}, "--perplexity");
  with_draft({"--budgets", "512"}, "--budgets");
  with_draft({"--block-score", "specpv"}, "--block-score");
  with_draft({"-n", "4"}, "--decode-tokens");
  with_draft({"-p", "2M"}, "--prompt-tokens");
  with_draft({"-p", "64"}, "one.txt");
}

TEST_F(QualityProgram, RefusesByName) {
  const auto told = [](const std::vector<std::string>& more, int exit_code, const std::string& text) {
    const Finished done = run(more);
    EXPECT_EQ(done.exit_code, exit_code) << text;
    EXPECT_NE(done.err.find(text), std::string::npos) << done.err;
  };
  told({}, 2, "--documents");
  told({"--documents", file("absent.txt")}, 3, "absent.txt");
  told({"--documents", file("one.txt"), file("empty.txt")}, 3, "empty.txt");
  told({"--documents", file("one.txt"), "-p", "2M"}, 2, "--prompt-tokens");
  told({"--documents", file("one.txt"), "-p", "64"}, 2, "one.txt");
  told({"--documents", file("one.txt"), "--budgets", "100"}, 2, "'100'");
  told({"--documents", file("one.txt"), "--partial-kv", "int8,auto"}, 2, "'auto'");
  told({"--documents", file("one.txt"), "-p", "900", "--partial-kv", "int4"}, 2, "int4 needs heads");
  told({"--documents", file("one.txt"), "--intervals", "20,500"}, 2, "--intervals");
  told({"--documents", file("one.txt"), "--temps", "hot"}, 2, "--temps");
  told({"--documents", file("one.txt"), "-o", file("absent/q.json")}, 5, "absent/q.json");
  EXPECT_NE(run_program({"bench", "-n", "3", "quality", "--documents", file("one.txt"), "-m", "x"})
                .err.find("must follow bench directly"),
            std::string::npos);
  const Finished help = run_program({"bench", "quality", "--help-all"});
  EXPECT_EQ(help.exit_code, 0);
  EXPECT_NE(help.out.find("--budgets"), std::string::npos);
}

}  // namespace
}  // namespace headrace
