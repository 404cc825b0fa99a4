// What --spec-type, -md, --tree, --spec-draft-n-max, --draft-window and --draft-rope-* say together: what a draft would
// leave unread is refused by name. What a head that was trained short attends to. And whose tokens a head reads, where
// its folder says so.
#include <gtest/gtest.h>

#include "offload/device/dry_run_device.h"
#include "runtime/draft/cache.h"
#include "runtime/draft/draft_model.h"
#include "runtime/draft/open/open_draft.h"
#include "tests/support/draft_files.h"
#include "tests/support/refusal.h"
#include "tests/support/session_fixture.h"
#include "tests/support/temporary_folder.h"

namespace headrace {
namespace {

using testing_support::eagle3_target;
using testing_support::Eagle3Files;
using testing_support::expect_error;
using testing_support::longspec_target;
using testing_support::LongSpecFiles;

class DraftOptionsTest : public ::testing::Test {
 protected:
  std::unique_ptr<DraftModel> open(const DraftOptions& options, const ModelConfig& target,
                                   const Tokenizer* tokenizer = nullptr) const {
    return open_draft(options, *model_.device, target, model_.weights, tokenizer);
  }
  void expect_refused(const DraftOptions& options, const std::string& flag,
                      const std::vector<std::string>& parts) const {
    expect_error(ExitCode::kUsage, flag, parts, [&] { open(options, longspec_target()); });
  }

  const testing::LoadedModel model_{testing::tiny_model("llama31"), DType::kF32};
  const testing::LoadedModel with_block_{testing::tiny_model("qwen35"), DType::kF32};
};

struct Setting {
  const char* flag;
  void (*set)(DraftOptions* options);
  std::string shown;
  std::vector<SpecType> used_by;
};

TEST_F(DraftOptionsTest, WhatATypeLeavesUnreadIsRefused) {
  constexpr SpecType kEagle3 = SpecType::kEagle3, kLongSpec = SpecType::kLongSpec, kSimple = SpecType::kSimple,
                     kNgram = SpecType::kNgram, kMtp = SpecType::kMtp;
  const std::vector<Setting> settings = {
      {"--model-draft", [](DraftOptions* o) { o->model = "some/draft"; }, "some/draft", {kEagle3, kLongSpec, kSimple}},
      {"--tree", [](DraftOptions* o) { o->tree = chain_shape(3); }, "", {kEagle3, kLongSpec, kSimple, kMtp}},
      {"--spec-draft-n-max",
       [](DraftOptions* o) { o->most_tokens = 5; },
       "5",
       {kEagle3, kLongSpec, kSimple, kNgram, kMtp}},
      {"--draft-window", [](DraftOptions* o) { o->window = 1024; }, "1024", {kEagle3, kLongSpec, kSimple, kMtp}},
      {"--draft-window", [](DraftOptions* o) { o->window = 0; }, "0", {kEagle3, kLongSpec, kSimple, kMtp}},
      {"--draft-cache", [](DraftOptions* o) { o->retrieval = RetrievalShape{}; }, "retrieval", {kEagle3, kSimple}},
      {"--draft-rope-theta", [](DraftOptions* o) { o->rope.theta = 1e6; }, "1e+06", {kEagle3, kSimple}},
      {"--draft-rope-scaling",
       [](DraftOptions* o) { o->rope.scaling = RopeScaling::kNone; },
       "none",
       {kEagle3, kSimple}},
      {"--draft-rope-scaling",
       [](DraftOptions* o) { o->rope.scaling = RopeScaling::kYarn; },
       "yarn",
       {kEagle3, kSimple}},
      {"--draft-rope-scale", [](DraftOptions* o) { o->rope.factor = 4; }, "4", {kEagle3, kSimple}},
      {"--draft-yarn-orig-ctx", [](DraftOptions* o) { o->rope.original_positions = 2048; }, "2048", {kEagle3, kSimple}},
  };
  for (const SpecType type : kSpecTypes) {
    for (const Setting& setting : settings) {
      DraftOptions options;
      options.type = type;
      setting.set(&options);
      const bool used = std::find(setting.used_by.begin(), setting.used_by.end(), type) != setting.used_by.end();
      SCOPED_TRACE(std::string(spec_type_name(type)) + " " + setting.flag);
      if (!used) {
        const std::string of = type == SpecType::kNone ? "without --spec-type" : spec_type_name(type);
        expect_refused(options, setting.flag, {setting.shown, "has no effect", of});
      } else if (type == SpecType::kNgram) {
        EXPECT_NO_THROW(open(options, longspec_target()));
      } else if (type == kMtp) {
        EXPECT_NO_THROW(
            open_draft(options, *with_block_.device, with_block_.checkpoint->config(), with_block_.weights));
      } else if (options.model.empty()) {  // then it is the draft that is missing
        expect_refused(options, "--spec-type", {spec_type_name(type), "-md"});
      }
    }
  }
}

TEST_F(DraftOptionsTest, ValuesOutOfRange) {
  DraftOptions window, tree;
  window.type = tree.type = SpecType::kLongSpec;
  window.model = tree.model = "x";
  window.tree = parse_tree("chain:3");
  window.window = 100;
  tree.tree = parse_tree("eagle2:40,3,21");  // of 20 tokens
  expect_refused(window, "--draft-window", {"100"});
  DraftOptions all;
  all.type = SpecType::kSimple;
  all.model = "x";
  all.retrieval = RetrievalShape{};
  all.window = 0;
  expect_refused(all, "--draft-cache", {"retrieval", "--draft-window 0"});
  expect_refused(tree, "--tree", {"21", "20"});
}

// A tree that was named is proposed as it is, on a GPU too, where another number of rows would be cheaper.
TEST_F(DraftOptionsTest, ANamedTreeIsNeverCut) {
  const TemporaryFolder folder;
  LongSpecFiles().write(folder.path());
  for (const Backend backend : {Backend::kCpu, Backend::kCuda}) {
    const auto device =
        open_dry_run_device({.name = "a card", .backend = backend, .vram_bytes = kGiB, .host_bytes = kGiB});
    const auto tree = [&](const char* text) {
      DraftOptions options = {.type = SpecType::kLongSpec, .model = folder.path(), .tree = parse_tree(text)};
      return open_draft(options, *device, longspec_target(), model_.weights)->tree();
    };
    EXPECT_EQ(tree("beams:4,16,16,16,16"), (TreeLimits{.nodes = 69, .levels = 5}));
    EXPECT_EQ(tree("eagle2:80,5,8"), (TreeLimits{.nodes = 80, .levels = 6}));
    EXPECT_EQ(tree("chain:70"), (TreeLimits{.nodes = 71, .levels = 70}));
    EXPECT_EQ(tree("auto").nodes, backend == Backend::kCuda ? kMaxTreeNodes : 64);
  }
}

// By the drafts that have a RoPE of their own, in the words of the target's --rope-*.
TEST_F(DraftOptionsTest, RopeFlagsThatContradictEachOther) {
  const TemporaryFolder folder;
  Eagle3Files().write(folder.path());
  const auto expect = [&](const RopeOverrides& rope, const std::string& flag, const std::vector<std::string>& parts) {
    const DraftOptions head = {.type = SpecType::kEagle3, .model = folder.path(), .rope = rope, .tree = chain_shape(2)};
    expect_error(ExitCode::kUsage, flag, parts, [&] { open(head, eagle3_target()); });
    const DraftOptions simple = {
        .type = SpecType::kSimple, .model = testing::tiny_model("llama31"), .rope = rope, .tree = chain_shape(2)};
    expect_error(ExitCode::kUsage, flag, parts,
                 [&] { open(simple, open_checkpoint(testing::tiny_model("llama31"))->config()); });
  };
  const auto none = RopeScaling::kNone, linear = RopeScaling::kLinear, yarn = RopeScaling::kYarn;
  expect({.scaling = none, .factor = 2}, "--draft-rope-scale", {"2 needs a scaling", "--draft-rope-scaling linear"});
  expect({.scaling = linear, .factor = 1e9}, "--draft-rope-scale", {"1e+09 times", "too many"});
  expect({.scaling = yarn, .theta = 1}, "--draft-rope-theta", {"1 must be above 1 for yarn"});
  expect({.scaling = linear, .factor = 2, .original_positions = 256}, "--draft-yarn-orig-ctx",
         {"256", "--draft-rope-scaling yarn only"});
}

// Eagle3Files names no positions, so it has the target's 512.
TEST_F(DraftOptionsTest, AHeadThatWasTrainedShortGetsAWindow) {
  struct Case {
    nlohmann::json config;
    DraftOptions options;
    int64_t context, rows, trained;
  };
  const auto yarn = RopeScaling::kYarn, linear = RopeScaling::kLinear;
  const nlohmann::json trained = {{"max_position_embeddings", 2048}};
  const int64_t window = 2048 - 2 - kPrefixTile - kDraftSinkRows;
  const nlohmann::json scaled = {{"max_position_embeddings", 2048},
                                 {"rope_scaling", {{"type", "yarn"}, {"factor", 4.0}}}};
  const std::vector<Case> cases = {
      {trained, {}, 2048, 0, 0},
      {trained, {}, 2049, window, 2048},
      {trained, {}, 100'000, window, 2048},
      {nlohmann::json::object(), {}, 512, 0, 0},
      {nlohmann::json::object(), {}, 600, 512 - 2 - kPrefixTile - kDraftSinkRows, 512},
      {{{"max_position_embeddings", 256}}, {}, 300, kMinDraftWindow, 256},
      {trained, {.window = 0}, 100'000, 0, 0},  // all rows, as asked for
      {trained, {.window = 512}, 100'000, 512, 0},
      {{{"max_position_embeddings", 2048}, {"sliding_window", 600}}, {}, 100'000, 600, 0},
      {{{"max_position_embeddings", 2048}, {"sliding_window", 600}, {"use_sliding_window", false}},
       {},
       100'000,
       window,
       2048},
      {scaled, {}, 100'000, 0, 0},
      {scaled, {.rope = {.scaling = RopeScaling::kNone}}, 100'000, window, 2048},
      {trained, {.rope = {.scaling = yarn, .factor = 8}}, 100'000, 0, 0},
      {trained, {.rope = {.scaling = linear}}, 100'000, window, 2048},  // by a factor of 1
      {trained, {.rope = {.theta = 1e6}}, 100'000, window, 2048},
  };
  for (const Case& c : cases) {
    SCOPED_TRACE(str(c.config.dump(), ", ", c.context, " tokens, window ", c.options.window));
    const TemporaryFolder folder;
    Eagle3Files files;
    files.config.update(c.config);
    files.write(folder.path());
    DraftOptions options = c.options;
    options.type = SpecType::kEagle3;
    options.model = folder.path();
    options.tree = chain_shape(2);
    const auto model = open(options, eagle3_target());
    const DraftRun run = {.prompt_tokens = c.context - 10, .context_tokens = c.context};
    EXPECT_EQ(model->window(run).rows, c.rows);
    EXPECT_EQ(model->window(run).trained_positions, c.trained);
    // What a saved prefix has to have follows from it, and so does the memory.
    DraftCacheShape shape;
    shape.context_rows = c.context;
    shape.window = c.rows;
    const DraftNeeds needs = model->needs(run, [](const TensorSource&) { return Digest{}; });
    EXPECT_EQ(needs.first_row, shape.first_kept(c.context - 11));
    if (c.trained == 0 || c.context < 10'000) continue;
    DraftRun twice = run;
    twice.context_tokens *= 2;
    const uint64_t rope = static_cast<uint64_t>(c.context) * 6 * sizeof(float);  // the table alone grows
    EXPECT_NEAR(static_cast<double>(model->start(twice)->memory().lasting_bytes),
                static_cast<double>(model->start(run)->memory().lasting_bytes + rope), 2 * kPageBytes);
  }
}

// A head has no tokens of its own: where its folder holds a tokenizer, it is the one that it was trained with.
TEST_F(DraftOptionsTest, AHeadWithTheTokenizerOfAnotherTarget) {
  const auto read = [](const std::string& name) {
    std::ifstream file(std::string(HEADRACE_TEST_DATA "/tokenizers/") + name + ".tokenizer.json");
    return std::string{std::istreambuf_iterator<char>(file), {}};
  };
  const Tokenizer target = Tokenizer::from_json(read("gpt2"), "gpt2");
  const auto check = [&](SpecType type, const testing_support::DraftFiles& files, const ModelConfig& config) {
    const TemporaryFolder folder;
    files.write(folder.path());
    const DraftOptions options = {.type = type, .model = folder.path(), .tree = chain_shape(2)};
    EXPECT_NO_THROW(open(options, config, &target));  // nothing to compare
    folder.write("tokenizer.json", read("gpt2"));
    EXPECT_NO_THROW(open(options, config, &target));
    folder.write("tokenizer.json", read("qwen2"));
    expect_error(ExitCode::kBadInput, folder / "tokenizer.json", {"another tokenizer than the target", "its token"},
                 [&] { open(options, config, &target); });
    EXPECT_NO_THROW(open(options, config));
    folder.write("tokenizer.json", "{");
    expect_error(ExitCode::kBadInput, folder / "tokenizer.json", {}, [&] { open(options, config, &target); });
  };
  check(SpecType::kEagle3, Eagle3Files(), eagle3_target());
  check(SpecType::kLongSpec, LongSpecFiles(), longspec_target());
}

}  // namespace
}  // namespace headrace
