// --preset: what it sets on each command that generates, and what wins over it.
#include "cli/flags/presets.h"

#include <gtest/gtest.h>
#include <stdlib.h>

#include <string>
#include <vector>

#include "tests/cli/flags/args_fixture.h"

namespace headrace {
namespace {

std::string levels_of(const TreeShape& tree) {
  std::string text = str(tree.nodes, " nodes");
  for (const TreeLevel& level : tree.levels) text += str("; ", level.rows, " ", level.branch, " ", level.keep);
  return text;
}

// SpecPV's published settings: 4,096 retrieved tokens, a window of 128, its own score over the queries of its tree, a
// refresh after 20 tokens, EAGLE-2's tree of 60 nodes, and a draft that attends to the whole context.
void expect_specpv(const EngineOptions& engine, const std::string& command) {
  EXPECT_EQ(engine.verify, (VerifyOptions{.mode = VerifyMode::kApproximate,
                                          .partial = PartialKind::kBlocks,
                                          .budget = 4096,
                                          .interval = 20,
                                          .score = BlockScore::kSpecPv,
                                          .reduce = BlockReduce::kMean,
                                          .queries = BlockQueries::kTree,
                                          .window = 128}))
      << command;
  EXPECT_EQ(engine.draft.type, SpecType::kEagle3) << command;
  EXPECT_EQ(engine.draft.window, 0) << command;
  ASSERT_TRUE(engine.draft.tree.has_value()) << command;
  EXPECT_EQ(levels_of(*engine.draft.tree), levels_of(eagle2_shape(60, 7, 10))) << command;
}

TEST(Presets, SpecPvAsPublishedOnEveryCommand) {
  const std::vector<std::string> flags = {"-m", "model", "-md", "head", "--preset", "specpv"};
  const auto parsed = [&](std::vector<std::string> command) {
    command.insert(command.end(), flags.begin(), flags.end());
    return parse_args(command);
  };
  expect_specpv(std::get<GenerateArgs>(parsed({"generate", "-p", "x"})).engine, "generate");
  expect_specpv(std::get<SummarizeArgs>(parsed({"summarize", "a.txt"})).engine, "summarize");
  expect_specpv(std::get<ChatArgs>(parsed({"chat"})).engine, "chat");
  expect_specpv(std::get<BatchArgs>(parsed({"batch", "-i", "a", "-o", "b"})).engine, "batch");
  expect_specpv(std::get<ServeArgs>(parsed({"serve"})).engine, "serve");
  expect_specpv(std::get<PlanArgs>(parsed({"plan"})).plan.engine, "plan");
  const auto quality = std::get<QualityArgs>(parsed({"bench", "quality", "--documents", "a"})).quality;
  EXPECT_EQ(quality.budgets, std::vector<int64_t>{4096});
  EXPECT_EQ(quality.intervals, std::vector<int64_t>{20});
  EXPECT_EQ(quality.partial, std::vector<PartialKind>{PartialKind::kBlocks});
  EXPECT_EQ(quality.engine.verify.score, BlockScore::kSpecPv);
  EXPECT_EQ(quality.engine.verify.window, 128);
  EXPECT_EQ(quality.engine.draft.type, SpecType::kEagle3);
}

EngineOptions with(std::vector<std::string> more) {
  more.insert(more.begin(), {"-p", "x", "-md", "head", "--preset", "specpv"});
  return generate(more).engine;
}

TEST(Presets, FlagsBesideItWin) {
  EXPECT_EQ(with({"--partial-budget", "2K"}).verify.budget, 2048);
  EXPECT_EQ(with({"--partial-budget", "2K"}).verify.interval, 20);
  EXPECT_EQ(with({"--block-window", "256"}).verify.window, 256);
  EXPECT_EQ(with({"--refresh-interval", "auto"}).verify.interval, kAutoInterval);
  EXPECT_EQ(with({"--verify", "lossless"}).verify.mode, VerifyMode::kLossless);
  EXPECT_EQ(with({"--verify", "lossless"}).verify.score, BlockScore::kSpecPv);
  EXPECT_EQ(with({"--draft-window", "512"}).draft.window, 512);
  EXPECT_EQ(levels_of(*with({"--tree", "chain:4"}).draft.tree), levels_of(chain_shape(4)));
}

// What a flag beside the preset leaves no effect is not set, so nothing contradicts that flag.
EngineOptions of(const std::string& preset, std::vector<std::string> more = {}) {
  more.insert(more.begin(), {"-p", "x", "-md", "draft", "--preset", preset});
  return generate(more).engine;
}

TEST(Presets, TheOtherPapersAsPublished) {
  const EngineOptions extend = of("specextend");
  EXPECT_EQ(extend.draft.type, SpecType::kEagle3);
  ASSERT_TRUE(extend.draft.retrieval.has_value());
  EXPECT_EQ(extend.draft.retrieval->chunks, 0);  // as many as the draft has by default
  EXPECT_EQ(extend.draft.retrieval->rows, 32);
  EXPECT_EQ(extend.draft.retrieval->every, 4);
  EXPECT_EQ(levels_of(*extend.draft.tree), levels_of(*parse_tree("opt:50,10,0.7")));
  EXPECT_EQ(extend.verify, VerifyOptions{.mode = VerifyMode::kFull});
  EXPECT_EQ(of("specextend", {"--spec-type", "draft-simple"}).draft.type, SpecType::kSimple);
  EXPECT_FALSE(of("specextend", {"--draft-window", "0"}).draft.retrieval.has_value());

  const EngineOptions longspec = of("longspec");
  EXPECT_EQ(longspec.draft.type, SpecType::kLongSpec);
  EXPECT_EQ(levels_of(*longspec.draft.tree), levels_of(*parse_tree("beams:4,16,16,16,16")));
  EXPECT_EQ(longspec.verify, VerifyOptions{.mode = VerifyMode::kFull});

  const EngineOptions triforce = of("triforce");
  EXPECT_EQ(triforce.draft.type, SpecType::kSimple);
  EXPECT_EQ(triforce.draft.window, 320);
  EXPECT_EQ(levels_of(*triforce.draft.tree), levels_of(chain_shape(6)));
  EXPECT_EQ(
      triforce.verify,
      (VerifyOptions{.mode = VerifyMode::kLossless, .partial = PartialKind::kBlocks, .budget = 4096, .interval = 6}));
  EXPECT_EQ(of("triforce", {"--verify", "full"}).verify, VerifyOptions{.mode = VerifyMode::kFull});

  const EngineOptions magicdec = generate({"-p", "x", "--preset", "magicdec"}).engine;
  EXPECT_EQ(magicdec.draft.type, SpecType::kNone);
  EXPECT_EQ(magicdec.verify, (VerifyOptions{.mode = VerifyMode::kLossless,
                                            .partial = PartialKind::kBlocks,
                                            .budget = 256,
                                            .interval = 7,
                                            .score = BlockScore::kRecent}));
  for (const Preset& preset : presets()) EXPECT_NE(preset_note(preset.name).find(preset.source), std::string::npos);
}

TEST(Presets, FlagsBesideItMayMakeSettingsIdle) {
  const VerifyOptions copy = with({"--partial-kv", "int8"}).verify;
  EXPECT_EQ(copy, (VerifyOptions{.mode = VerifyMode::kApproximate, .partial = PartialKind::kInt8, .interval = 20}));
  EXPECT_EQ(with({"--verify", "full"}).verify, VerifyOptions{.mode = VerifyMode::kFull});
  const DraftOptions none = with({"--spec-type", "none"}).draft;
  EXPECT_FALSE(none.tree.has_value());
  EXPECT_EQ(none.window, -1);
  EXPECT_EQ(with({"--draft-cache", "retrieval"}).draft.window, -1);
}

TEST(Presets, VariablesBesideItWinAndItMayBeOne) {
  ::setenv("HEADRACE_PARTIAL_BUDGET", "1K", 1);
  const VerifyOptions flag = with({}).verify;
  ::setenv("HEADRACE_PRESET", "specpv", 1);
  const VerifyOptions variable = generate({"-p", "x"}).engine.verify;
  ::unsetenv("HEADRACE_PARTIAL_BUDGET");
  ::unsetenv("HEADRACE_PRESET");
  EXPECT_EQ(flag.budget, 1024);
  EXPECT_EQ(flag.score, BlockScore::kSpecPv);
  EXPECT_EQ(variable, flag);
  EXPECT_EQ(generate({"-p", "x"}).engine.verify, VerifyOptions{.mode = VerifyMode::kAuto});
}

TEST(Presets, AnotherNameIsRefused) {
  EXPECT_NE(refusal({"generate", "-m", "m", "-p", "x", "--preset", "SpecPV"}).find("'SpecPV' is not one of specpv"),
            std::string::npos);
  EXPECT_NE(refusal({"bench", "quality", "-m", "m", "--documents", "a", "--perplexity", "--preset", "specpv"})
                .find("excludes"),
            std::string::npos);
}

TEST(Presets, TheReportSaysWhatDiffersFromThePaper) {
  EXPECT_EQ(preset_note(""), "");
  EXPECT_EQ(with({}).verify.window, 128);
  const std::string note = preset_note("specpv");
  for (const char* text : {"arXiv 2512.02337", "128 to 191 tokens", "4,288 tokens", "60 nodes", "f32", "RoPE"}) {
    EXPECT_NE(note.find(text), std::string::npos) << text;
  }
  EXPECT_NE(note.find(std::to_string(PartialShape{.blocks = 256, .window = 128}.least_context() % 1000)), note.npos);
}

// Each row names flags that some command has, and values that they take.
TEST(Presets, EveryRowIsOfTheFlagTable) {
  for (const Preset& preset : presets()) {
    for (const PresetSetting& setting : preset.settings) {
      const std::string flag = setting.flags.substr(0, setting.flags.find(','));
      EXPECT_NO_THROW(generate(
          {"-p", "x", "-md", "head", "--spec-type", "draft-eagle3", "--verify", "lossless", flag, setting.value}))
          << preset.name << " " << flag;
    }
  }
}

}  // namespace
}  // namespace headrace
