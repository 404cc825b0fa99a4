// A draft behind a saved prefix accepts what it accepts after a fresh prefill, wherever the hit ends; and where what it
// needs is not saved, the prompt is computed from there on.
#include <gtest/gtest.h>

#include <chrono>
#include <nlohmann/json.hpp>
#include <string>
#include <thread>
#include <vector>

#include "runtime/engine/engine.h"
#include "tests/support/session_fixture.h"
#include "tests/support/temporary_folder.h"
#include "tests/support/tiny_drafts.h"

namespace headrace {
namespace {

constexpr int64_t kPrompt = 1300;
constexpr int64_t kGroup = 512;  // of prefill, so that a GPU's rows are kept in this unit

class PrefixDraft : public ::testing::TestWithParam<DeviceChoice> {
 protected:
  PrefixDraft() {
    testing_support::tiny_eagle3_head().write(eagle3_.path());
    testing_support::tiny_longspec_layer().write(longspec_.path());
    testing_support::tiny_mtp_model().write(mtp_.path());
  }

  // `cache`: empty for a fresh run.
  EngineOptions options(const std::string& cache, SpecType type, int64_t window = -1) const {
    EngineOptions options;
    options.model = type == SpecType::kMtp ? mtp_.path() : testing::tiny_model("llama31");
    options.device = {.choice = GetParam(), .threads = 2};
    options.prefill_group = kGroup;
    options.want_tokenizer = false;
    options.dtype = DType::kF32;
    options.prefix_cache.folder = cache;
    options.draft.type = type;
    options.draft.window = window;
    if (type == SpecType::kEagle3) options.draft.model = eagle3_.path();
    if (type == SpecType::kLongSpec) options.draft.model = longspec_.path();
    if (type == SpecType::kSimple) options.draft.model = testing::tiny_model("llama31");
    if (type == SpecType::kNgram) options.draft.window = -1;
    if (type != SpecType::kNgram && type != SpecType::kNone) options.draft.tree = parse_tree("beams:4,8,8");
    return options;
  }
  static std::vector<int32_t> prompt(int64_t common, uint32_t question) {
    std::vector<int32_t> ids = testing::made_up_ids(kPrompt, 512);
    ids.resize(static_cast<size_t>(common));
    for (const int32_t id : testing::made_up_ids(40, 512, question)) ids.push_back(id);
    return ids;
  }
  static GenerateResult ask(Engine& engine, const std::vector<int32_t>& ids) {
    GenerateOptions run{
        .max_tokens = 40, .sampling = {.temperature = 1.2f, .top_p = 0.9f, .seed = 4}, .ignore_eos = true};
    run.step_costs = {.partial_ms = 1, .refresh_ms = 4};  // a busy machine changes no step
    return engine.generate(ids, run, nullptr);
  }
  // Of so many rows that are saved, those that are found.
  static int64_t kept(int64_t rows) { return GetParam() == DeviceChoice::kCpu ? rows : rows / kGroup * kGroup; }
  static void expect_same(const GenerateResult& a, const GenerateResult& b) {
    EXPECT_EQ(a.token_ids, b.token_ids);
    EXPECT_EQ(a.speculation.steps, b.speculation.steps);
    EXPECT_EQ(a.speculation.accepted_by_depth, b.speculation.accepted_by_depth);
  }

  const TemporaryFolder eagle3_, longspec_, mtp_;
};
INSTANTIATE_TEST_SUITE_P(Devices, PrefixDraft, ::testing::ValuesIn(testing::session_devices()),
                         [](const auto& given) { return testing::device_name(given.param); });

TEST_P(PrefixDraft, AcceptsWhatItDoesAfterAFreshPrefill) {
  struct Kind {
    SpecType type;
    int64_t window;
    bool retrieval = false;
  };
  const std::vector<Kind> drafts = {
      {SpecType::kEagle3, 0},   {SpecType::kEagle3, 320},       {SpecType::kLongSpec, 320},
      {SpecType::kSimple, 320}, {SpecType::kNgram, -1},         {SpecType::kMtp, 0},
      {SpecType::kMtp, 320},    {SpecType::kEagle3, 320, true}, {SpecType::kSimple, 320, true}};
  for (const auto& [type, window, retrieval] : drafts) {
    const TemporaryFolder folder;
    EngineOptions without = options("", type, window), with = options(folder.path(), type, window);
    if (retrieval) without.draft.retrieval = with.draft.retrieval = RetrievalShape{.chunks = 6};
    Engine fresh(without), cached(with);
    const GenerateResult saving = ask(cached, prompt(kPrompt, 50));
    expect_same(saving, ask(fresh, prompt(kPrompt, 50)));
    if (type != SpecType::kNgram) {  // made-up ids do not repeat
      EXPECT_GT(saving.speculation.accepted, 0) << spec_type_name(type);
    }
    EXPECT_EQ(saving.prefix.saved_rows, kept(kPrompt + 40));
    for (const int64_t common : {100, 1024, 1300}) {
      const GenerateResult hit = ask(cached, prompt(common, 51));
      EXPECT_EQ(hit.prefix.rows, kept(common)) << spec_type_name(type) << ", window " << window;
      expect_same(hit, ask(fresh, prompt(common, 51)));
    }
  }
}

// What is saved with a window that follows from the head's positions serves any other window, as far as it goes: RoPE
// and the window say which features are read, not what they are.
TEST_P(PrefixDraft, AHeadTrainedShortAndItsRopeFlags) {
  testing_support::DraftFiles head = testing_support::tiny_eagle3_head();
  head.config["max_position_embeddings"] = 512;
  head.write(eagle3_.path());
  const TemporaryFolder folder;
  std::vector<int64_t> accepted;
  for (const bool scaled : {false, true, false}) {
    EngineOptions with = options(folder.path(), SpecType::kEagle3), without = options("", SpecType::kEagle3);
    if (scaled) with.draft.rope = without.draft.rope = {.scaling = RopeScaling::kYarn, .factor = 4};
    Engine fresh(without), cached(with);
    ask(cached, prompt(kPrompt, 50));
    const GenerateResult hit = ask(cached, prompt(kPrompt, 51));
    EXPECT_EQ(hit.prefix.rows, kept(kPrompt));
    EXPECT_EQ(hit.draft_window.rows > 0, !scaled);
    expect_same(hit, ask(fresh, prompt(kPrompt, 51)));
    accepted.push_back(hit.speculation.accepted);
  }
  EXPECT_EQ(accepted[0], accepted[2]);
}

// Without a window it needs a feature of every row, with one those of the last and the first.
TEST_P(PrefixDraft, RowsSavedWithoutItAreComputedAgainWhereItNeedsThem) {
  for (const int64_t window : {0, 320}) {
    const TemporaryFolder folder;
    {
      Engine plain(options(folder.path(), SpecType::kNone));
      EXPECT_EQ(ask(plain, prompt(kPrompt, 50)).prefix.saved_rows, kept(kPrompt + 40));
    }
    Engine fresh(options("", SpecType::kEagle3, window)), cached(options(folder.path(), SpecType::kEagle3, window));
    const GenerateResult first = ask(cached, prompt(kPrompt, 50));
    EXPECT_EQ(first.prefix.rows, 0);
    EXPECT_GT(first.prefix.saved_bytes, 0u);  // the draft's alone
    EXPECT_TRUE(first.prefix.notes.empty());
    const GenerateResult hit = ask(cached, prompt(kPrompt, 51));
    EXPECT_EQ(hit.prefix.rows, kept(kPrompt));
    expect_same(hit, ask(fresh, prompt(kPrompt, 51)));
    // Rows of a draft are of no harm to a run without one.
    Engine plain(options(folder.path(), SpecType::kNone));
    EXPECT_EQ(ask(plain, prompt(kPrompt, 52)).prefix.rows, kept(kPrompt));
  }
}

TEST_P(PrefixDraft, AnotherHeadHasBlocksOfItsOwn) {
  const TemporaryFolder folder, other;
  testing_support::DraftFiles files = testing_support::tiny_eagle3_head();
  files.tensors["fc.weight"].bytes[4] ^= 1;
  files.write(other.path());
  EngineOptions with = options(folder.path(), SpecType::kEagle3, 0);
  {
    Engine first(with);
    ask(first, prompt(kPrompt, 50));
  }
  with.draft.model = other.path();
  Engine second(with);
  EXPECT_EQ(ask(second, prompt(kPrompt, 50)).prefix.rows, 0);
  EXPECT_EQ(ask(second, prompt(kPrompt, 50)).prefix.rows, kept(kPrompt + 39));
}

// A start after the first knows the head by its files: what it was written down as is what counts, right or wrong.
TEST_P(PrefixDraft, AHeadIsReadForItsNameOnce) {
  const TemporaryFolder folder;
  const EngineOptions with = options(folder.path(), SpecType::kEagle3, 0);
  const auto found = [&] {
    Engine engine(with);
    return ask(engine, prompt(kPrompt, 50)).prefix.rows;
  };
  std::this_thread::sleep_for(std::chrono::milliseconds(2100));  // what has just been written may be written once more
  EXPECT_EQ(found(), 0);
  EXPECT_EQ(found(), kept(kPrompt + 39));
  nlohmann::json known = nlohmann::json::parse(folder.read("headrace-weights.json"));
  int heads = 0;
  for (nlohmann::json& entry : known["weights"]) {
    if (entry["files"].dump().find(eagle3_.path()) == std::string::npos) continue;
    std::string text = entry["fingerprint"];
    text[0] = text[0] == '0' ? '1' : '0';
    entry["fingerprint"] = text;
    ++heads;
  }
  EXPECT_EQ(heads, 1);
  const std::string other = known.dump();
  folder.write("headrace-weights.json", other);
  EXPECT_EQ(found(), 0);  // another head's blocks, for all it knows
  EXPECT_EQ(folder.read("headrace-weights.json"), other);
}

}  // namespace
}  // namespace headrace
