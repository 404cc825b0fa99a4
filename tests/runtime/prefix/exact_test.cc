// A run behind a saved prefix has the bits of a fresh one: logits, not texts, are compared. Whatever the mode of the KV
// cache, wherever two prompts part, and whatever became of the files in between.
#include <gtest/gtest.h>

#include <filesystem>
#include <string>
#include <tuple>
#include <vector>

#include "runtime/prefix/run.h"
#include "tests/support/session_fixture.h"
#include "tests/support/temporary_folder.h"

namespace headrace {
namespace {

using testing::LoadedModel;
using testing::Session;

constexpr int64_t kPrefillGroup = 512;  // of prefill, so that a GPU's rows are kept in this unit
constexpr int64_t kTokens = 12;

struct Answer {
  std::vector<int32_t> tokens;
  std::vector<std::vector<float>> logits;
  PrefixUse use;
};

class PrefixExact : public ::testing::TestWithParam<testing::DeviceAndType> {
 protected:
  const LoadedModel model{testing::tiny_model("llama31"), std::get<1>(GetParam()), std::get<0>(GetParam())};
  const int32_t vocab = static_cast<int32_t>(model.checkpoint->config().vocab);
  const TemporaryFolder folder;
  int64_t group = kPrefillGroup;
  bool both_int8 = false;  // or V is f16, beside which K's type comes out

  bool cpu() const { return model.device->backend() == Backend::kCpu; }
  int64_t unit() const { return cpu() || model.cache_type.prefill_int8 ? 1 : group; }
  int64_t kept(int64_t rows) const { return rows / unit() * unit(); }

  // Without a store: a fresh run.
  Answer answer(const std::vector<int32_t>& prompt, PrefixStore* store, KvMode kv = KvMode::kAuto) {
    const DType v_type = both_int8 ? DType::kInt8 : DType::kF16;
    SessionOptions options = model.options(static_cast<int64_t>(prompt.size()), 2 * kTokens);
    options.kv = kv;
    options.v_type = v_type;
    options.prefill_group = group;
    std::unique_ptr<PrefixRun> run;
    if (store != nullptr) {
      run = std::make_unique<PrefixRun>(
          *store,
          PrefixRunSetup{.shape = row_shape(model.checkpoint->config(), options.k_type, v_type, model.weights.dtype()),
                         .identity = {},
                         .model = "tiny",
                         .unit = unit(),
                         .draft = {},
                         .prompt = prompt});
      options.prefix = run.get();
    }
    Answer answer;
    const std::unique_ptr<Session> session = model.session(options);
    answer.tokens = testing::decode_plainly(*session, prompt, kTokens, &answer.logits);
    if (run) run->finish(nullptr, nullptr, &answer.use);
    return answer;
  }
  void expect_same(const Answer& a, const Answer& b) {
    EXPECT_EQ(a.tokens, b.tokens);
    EXPECT_EQ(a.logits, b.logits);
  }
};

TEST_P(PrefixExact, TheSameBitsWhereverPromptsPart) {
  PrefixStore store({.folder = folder.path()});
  const std::vector<int32_t> first = testing::made_up_ids(1700, vocab);
  const Answer fresh = answer(first, nullptr), saving = answer(first, &store);
  expect_same(fresh, saving);
  EXPECT_EQ(saving.use.rows, 0);
  EXPECT_EQ(saving.use.saved_rows, kept(1700));
  EXPECT_GT(saving.use.saved_bytes, 0u);
  const Answer again = answer(first, &store);
  expect_same(fresh, again);
  EXPECT_EQ(again.use.rows, kept(1699));
  EXPECT_EQ(again.use.saved_bytes, 0u);
  for (const int64_t common : {70, 511, 512, 513, 1000, 1536, 1700}) {
    std::vector<int32_t> other(first.begin(), first.begin() + common);
    const std::vector<int32_t> more = testing::made_up_ids(common == 1700 ? 300 : 37, vocab, 77);
    other.insert(other.end(), more.begin(), more.end());
    const Answer hit = answer(other, &store);
    expect_same(answer(other, nullptr), hit);
    EXPECT_EQ(hit.use.rows, kept(common)) << common;
    EXPECT_TRUE(hit.use.notes.empty());
  }
}

TEST_P(PrefixExact, WhereverTheCacheLies) {
  both_int8 = model.cache_type == DType::kInt8;
  const std::vector<int32_t> prompt = testing::made_up_ids(1400, vocab);
  const Answer fresh = answer(prompt, nullptr, KvMode::kDevice);
  for (const KvMode saved : {KvMode::kDevice, KvMode::kHost}) {
    for (const KvMode read : {KvMode::kDevice, KvMode::kHost}) {
      const TemporaryFolder own;
      PrefixStore store({.folder = own.path()});
      expect_same(fresh, answer(prompt, &store, saved));
      const Answer hit = answer(prompt, &store, read);
      expect_same(fresh, hit);
      EXPECT_EQ(hit.use.rows, kept(1399));
    }
  }
}

TEST_P(PrefixExact, AnInterruptedRunSavesNothing) {
  PrefixStore store({.folder = folder.path()});
  const std::vector<int32_t> prompt = testing::made_up_ids(1400, vocab);
  SessionOptions options = model.options(1400, 10);
  PrefixRun run(store,
                {.shape = row_shape(model.checkpoint->config(), options.k_type, options.v_type, model.weights.dtype()),
                 .identity = {},
                 .model = "tiny",
                 .unit = cpu() ? 1 : 2048,
                 .draft = {},
                 .prompt = prompt});
  options.prefix = &run;
  const std::atomic<bool> interrupt{true};
  {
    const std::unique_ptr<Session> session = model.session(options);
    EXPECT_FALSE(session->prefill(prompt, nullptr, &interrupt));
    EXPECT_FALSE(run.damaged());
    PrefixUse use;
    run.finish(nullptr, nullptr, &use);
    EXPECT_EQ(use.saved_rows, 0);
  }
  EXPECT_EQ(PrefixStore({.folder = folder.path()}, PrefixStore::Use::kLook).index().entries().size(), 0u);
  for (const auto& file : std::filesystem::directory_iterator(folder.path())) {
    EXPECT_EQ(file.path().filename(), "headrace-prefix-cache.lock");
  }
}

// Beyond row 16,384 segments are larger; in the groups that a GPU has. A CPU takes some seconds for each such prompt.
class PrefixLargeSegments : public PrefixExact {
 protected:
  PrefixLargeSegments() { group = kCudaPrefillGroup; }
};
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(PrefixLargeSegments);
INSTANTIATE_TEST_SUITE_P(Devices, PrefixLargeSegments,
                         ::testing::Combine(::testing::ValuesIn(testing::session_gpus()),
                                            ::testing::Values(testing::RowsType(DType::kBF16),
                                                              testing::RowsType(DType::kInt8), testing::kReadInInt8)),
                         [](const auto& instance) { return testing::name_of_device_and_type(instance); });

TEST_P(PrefixLargeSegments, GiveTheBitsOfAFreshRun) {
  PrefixStore store({.folder = folder.path()});
  const std::vector<int32_t> first = testing::made_up_ids(18440, vocab);  // 18,432 ends the first large segment
  const Answer fresh = answer(first, nullptr);
  expect_same(fresh, answer(first, &store));
  const Answer again = answer(first, &store);
  expect_same(fresh, again);
  EXPECT_EQ(again.use.rows, 18432);  // the eight tokens behind are too few for a block
  for (const int64_t common : {16384, 17000, 18432}) {
    std::vector<int32_t> other(first.begin(), first.begin() + common);
    const std::vector<int32_t> more = testing::made_up_ids(37, vocab, 77);
    other.insert(other.end(), more.begin(), more.end());
    const Answer hit = answer(other, &store, KvMode::kHost);
    expect_same(answer(other, nullptr), hit);
    EXPECT_EQ(hit.use.rows, kept(common)) << common;
  }
}

INSTANTIATE_TEST_SUITE_P(, PrefixExact, testing::devices_and_types(), testing::name_of_device_and_type);

}  // namespace
}  // namespace headrace
