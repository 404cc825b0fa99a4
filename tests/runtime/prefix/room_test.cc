// Saved prefixes and room: what goes where a folder has a limit, and runs whose host memory has little or no room for
// reading and writing prefixes.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "tests/runtime/prefix/tiny_engine.h"
#include "tests/support/temporary_folder.h"

namespace headrace {
namespace {

using testing::kRun;
using testing::tiny;

// SIZE holds two documents: the third takes the place of the one that nobody has asked about for the longest time.
TEST(PrefixEngine, TheDocumentAskedAboutLeastRecentlyGoesFirst) {
  const TemporaryFolder folder, measure;
  const auto document = [](uint32_t seed) { return testing::made_up_ids(600, 512, seed); };
  const auto asked = [&](Engine& engine, uint32_t seed) {
    const std::vector<int32_t> prompt = document(seed);
    const GenerateResult said = engine.generate(prompt, kRun, nullptr);
    EXPECT_EQ(said.token_ids, Engine(tiny("")).generate(prompt, kRun, nullptr).token_ids);
    EXPECT_TRUE(said.prefix.notes.empty());
    return said.prefix.rows;
  };
  Engine(tiny(measure.path())).generate(document(1), kRun, nullptr);
  const uint64_t one = PrefixStore({.folder = measure.path()}, PrefixStore::Use::kLook).index().bytes();
  EngineOptions options = tiny(folder.path());
  options.prefix_cache.limit_bytes = 5 * one / 2;
  const auto bytes = [&] { return PrefixStore({.folder = folder.path()}, PrefixStore::Use::kLook).index().bytes(); };
  {
    Engine engine(options);
    EXPECT_EQ(asked(engine, 1), 0);
    EXPECT_EQ(asked(engine, 2), 0);
    EXPECT_EQ(bytes(), 2 * one);
    EXPECT_EQ(asked(engine, 1), 599);  // now 2 is the oldest
    EXPECT_EQ(asked(engine, 3), 0);
    EXPECT_EQ(bytes(), 2 * one);
    EXPECT_EQ(asked(engine, 1), 599);
  }
  Engine later(options);  // the order is that of all programs
  EXPECT_EQ(asked(later, 3), 599);
  EXPECT_EQ(asked(later, 2), 0);  // in the place of 1
  EXPECT_EQ(asked(later, 3), 599);
  EXPECT_EQ(asked(later, 1), 0);
  EXPECT_EQ(bytes(), 2 * one);
}

// A later run may ask for less, and may have nothing to save.
TEST(PrefixEngine, KeepsToALimitThatIsLower) {
  const TemporaryFolder folder;
  const auto bytes = [&] { return PrefixStore({.folder = folder.path()}, PrefixStore::Use::kLook).index().bytes(); };
  EngineOptions options = tiny(folder.path());
  const std::vector<int32_t> first = testing::made_up_ids(600, 512, 1), second = testing::made_up_ids(600, 512, 2);
  Engine(options).generate(first, kRun, nullptr);
  const uint64_t one = bytes();
  Engine(options).generate(second, kRun, nullptr);
  EXPECT_EQ(bytes(), 2 * one);
  options.prefix_cache.limit_bytes = 3 * one / 2;
  const GenerateResult said = Engine(options).generate(first, kRun, nullptr);
  EXPECT_EQ(said.prefix.rows, 599);
  EXPECT_EQ(bytes(), one);
  ASSERT_EQ(said.prefix.notes.size(), 1u);
  EXPECT_NE(said.prefix.notes[0].find(folder.path() + " is limited to "), std::string::npos) << said.prefix.notes[0];
  EXPECT_EQ(Engine(options).generate(first, kRun, nullptr).prefix.rows, 599);  // the other has gone
}

// What a hit takes of host memory while it reads counts in its plan: where all of a fresh run stays on the device, the
// hit may have to stream. On the border it does not, a page below it does, and neither changes the text.
TEST(PrefixEngine, AHitStreamsWhereItsReadingTakesTheRoom) {
  const std::vector<int32_t> prompt = testing::made_up_ids(1530, 512);
  for (const VerifyMode verify : {VerifyMode::kFull, VerifyMode::kLossless}) {  // whose passes grow when they stream
    const TemporaryFolder folder, spill;
    EngineOptions options = tiny("");
    options.verify = {.mode = verify, .budget = 64};
    options.spill = {.folder = spill.path(), .slots = 2};
    options.ring.slots = 2;
    options.ring.slot_bytes = 128 * kKiB;
    const auto said = [&](uint64_t host_mem_bytes, const std::string& cache) {
      EngineOptions some = options;
      some.device.host_mem_bytes = host_mem_bytes;
      some.prefix_cache.folder = cache;
      return Engine(some).generate(prompt, kRun, nullptr);
    };
    const auto least = [](const GenerateResult& resident) {  // with which all of it stays on the device
      EXPECT_EQ(resident.plan.ring_slots, 0);
      return whole_pages(resident.memory.weights_bytes) + resident.plan.vram_bytes + resident.plan.host_total_bytes;
    };
    const GenerateResult fresh = said(kGiB, ""), saving = said(kGiB, folder.path()), hit = said(kGiB, folder.path());
    const int64_t saved = 1530 - (verify == VerifyMode::kFull ? 1 : kScoringRows);  // the others are computed anyway
    ASSERT_EQ(hit.prefix.rows, saved);
    const uint64_t fresh_bytes = least(fresh), hit_bytes = least(hit);
    ASSERT_LT(fresh_bytes, hit_bytes);
    const auto expect = [&](uint64_t host_mem_bytes, const std::string& cache, bool streams) {
      const GenerateResult run = said(host_mem_bytes, cache);
      EXPECT_EQ(run.plan.ring_slots > 0, streams) << run.plan.to_string();
      EXPECT_EQ(run.plan.disk_bytes > 0, streams) << run.plan.to_string();
      EXPECT_EQ(run.plan.pass_bytes > fresh.plan.pass_bytes, streams && verify == VerifyMode::kLossless);
      EXPECT_EQ(run.prefix.rows, cache.empty() ? 0 : saved);
      EXPECT_EQ(run.token_ids, fresh.token_ids);
    };
    expect(hit_bytes, folder.path(), false);
    expect(hit_bytes - kPageBytes, folder.path(), true);
    expect(hit_bytes - kPageBytes, "", false);
    expect(fresh_bytes, "", false);
    EXPECT_EQ(saving.token_ids, fresh.token_ids);
    EXPECT_EQ(hit.token_ids, fresh.token_ids);
  }
}

// What fits without saved prefixes fits with them: where only their memory has no room the run does without, and says
// so.
TEST(PrefixEngine, WhatFitsWithoutItIsNotRefusedForIt) {
  const TemporaryFolder folder;
  const std::vector<int32_t> prompt = testing::made_up_ids(1530, 512);
  const auto said = [&](uint64_t host_mem_bytes, const std::string& cache) {
    EngineOptions some = tiny(cache);
    some.kv = KvMode::kDevice;  // nothing gives way
    some.device.host_mem_bytes = host_mem_bytes;
    return Engine(some).generate(prompt, kRun, nullptr);
  };
  const GenerateResult fresh = said(kGiB, "");
  const uint64_t least = whole_pages(fresh.memory.weights_bytes) + fresh.plan.vram_bytes + fresh.plan.host_total_bytes;
  EXPECT_THROW(said(least - kPageBytes, ""), Error);
  EXPECT_THROW(said(least - kPageBytes, folder / "first"), Error);
  EXPECT_EQ(said(least, "").token_ids, fresh.token_ids);
  EXPECT_GT(said(kGiB, folder / "cache").prefix.saved_rows, 0);
  ASSERT_GT(said(kGiB, folder / "cache").prefix.rows, 0);
  for (const std::string& cache : {folder / "first", folder / "cache"}) {  // that would be written, and read
    const GenerateResult run = said(least, cache);
    EXPECT_EQ(run.token_ids, fresh.token_ids);
    EXPECT_TRUE(run.prefix.asked);
    EXPECT_EQ(run.prefix.rows + run.prefix.saved_rows, 0);
    ASSERT_EQ(run.prefix.notes.size(), 1u);
    EXPECT_NE(run.prefix.notes[0].find("does not use it"), std::string::npos) << run.prefix.notes[0];
  }
}

// What goes to make room for a prompt goes for one that runs.
TEST(PrefixEngine, ARefusedRunLeavesWhatIsSaved) {
  const TemporaryFolder folder;
  EngineOptions options = tiny(folder.path());
  const std::vector<int32_t> ids = testing::made_up_ids(2600, 512);
  const std::vector<int32_t> first(ids.begin(), ids.begin() + 1300), second(ids.begin() + 1300, ids.end());
  const auto held = [&] { return PrefixStore({.folder = folder.path()}, PrefixStore::Use::kLook).index().bytes(); };
  Engine(options).generate(first, kRun, nullptr);
  const uint64_t one = held();
  options.prefix_cache.limit_bytes = one + one / 2;
  EngineOptions tight = options;
  tight.kv = KvMode::kDevice;
  tight.device.host_mem_bytes = Engine(options).plan(1300, kRun).weights_bytes + 64 * kKiB;
  EXPECT_THROW(Engine(tight).generate(second, kRun, nullptr), Error);
  EXPECT_EQ(held(), one);
  EXPECT_EQ(Engine(options).generate(first, kRun, nullptr).prefix.rows, 1299);
  EXPECT_GT(Engine(options).generate(second, kRun, nullptr).prefix.saved_rows, 0);  // one that runs takes its place
  EXPECT_LT(Engine(options).generate(first, kRun, nullptr).prefix.rows, 1299);
}

}  // namespace
}  // namespace headrace
