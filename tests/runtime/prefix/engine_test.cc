// Saved prefixes in the engine: what a second question computes, what another identity is, what is damaged, and that
// neither spilling nor a slow disk changes a saved byte.
#include "runtime/engine/engine.h"

#include <gtest/gtest.h>

#include <atomic>
#include <cerrno>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <map>
#include <string>
#include <thread>
#include <vector>

#include "offload/disk/file_faults.h"
#include "runtime/prefix/run.h"
#include "tests/support/file_faults.h"
#include "tests/support/session_fixture.h"
#include "tests/support/spill.h"
#include "tests/support/temporary_folder.h"

namespace headrace {
namespace {

EngineOptions tiny(const std::string& cache, const std::string& name = "llama31") {
  EngineOptions options;
  options.model = testing::tiny_model(name);
  options.device = {.choice = DeviceChoice::kCpu, .threads = 2};
  options.want_tokenizer = false;
  options.dtype = DType::kF32;
  options.prefix_cache.folder = cache;
  return options;
}

const GenerateOptions kRun{.max_tokens = 16, .sampling = {.temperature = 1, .seed = 5}, .ignore_eos = true};

TEST(PrefixEngine, TheSecondQuestionComputesWhatIsNew) {
  const TemporaryFolder folder;
  std::vector<int32_t> first = testing::made_up_ids(1300, 512), second = first;
  first.push_back(7);
  second.insert(second.end(), {8, 9, 10});
  Engine plain(tiny("")), keeps(tiny(folder / "cache"));
  EXPECT_FALSE(plain.generate(first, kRun, nullptr).prefix.asked);
  EXPECT_EQ(keeps.generate(first, kRun, nullptr).token_ids, plain.generate(first, kRun, nullptr).token_ids);
  const GenerateResult hit = keeps.generate(second, kRun, nullptr);
  EXPECT_EQ(hit.token_ids, plain.generate(second, kRun, nullptr).token_ids);
  EXPECT_EQ(hit.prefix.rows, 1300);
  EXPECT_EQ(hit.prefix.saved_rows, 1300);  // three rows more are not worth a file
  Engine later(tiny(folder / "cache"));    // the lock is the first one's
  const GenerateResult read = later.generate(second, kRun, nullptr);
  EXPECT_EQ(read.token_ids, hit.token_ids);
  EXPECT_EQ(read.prefix.rows, 1300);
  ASSERT_EQ(read.prefix.notes.size(), 1u);
  EXPECT_TRUE(later.generate(second, kRun, nullptr).prefix.notes.empty());  // said once
}

// Between the fingerprint and the loading the weights are written over in place: they are not saved under the old name.
TEST(PrefixEngine, WeightsThatChangeBeforeTheyAreLoadedAreRefused) {
  const TemporaryFolder folder;
  const std::string model = folder / "model", file = model + "/model.safetensors";
  std::filesystem::copy(testing::tiny_model("llama31"), model);
  std::filesystem::permissions(file, std::filesystem::perms::owner_write, std::filesystem::perm_options::add);
  std::filesystem::last_write_time(file, std::filesystem::file_time_type::clock::now() - std::chrono::hours(1));
  EngineOptions options = tiny(folder / "cache");
  options.model = model;
  const std::vector<int32_t> prompt = testing::made_up_ids(700, 512);
  Engine engine(options);
  std::fstream(file, std::ios::in | std::ios::out | std::ios::binary).seekp(-1, std::ios::end).put('\x11');
  for (int twice = 0; twice < 2; ++twice) {  // loaded or not
    try {
      engine.generate(prompt, kRun, nullptr);
      FAIL() << "taken";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ExitCode::kBadInput);
      EXPECT_NE(std::string(error.what()).find(file), std::string::npos) << error.what();
      EXPECT_NE(std::string(error.what()).find("changed while it was read"), std::string::npos) << error.what();
    }
  }
  EXPECT_EQ(PrefixStore({.folder = folder / "cache"}, PrefixStore::Use::kLook).index().bytes(), 0u);
}

TEST(PrefixEngine, AnotherIdentityIsAMiss) {
  const TemporaryFolder folder;
  const std::vector<int32_t> prompt = testing::made_up_ids(700, 512);
  const auto cached = [&](const EngineOptions& options) {
    return Engine(options).generate(prompt, kRun, nullptr).prefix.rows;
  };
  EngineOptions options = tiny(folder.path());
  EXPECT_EQ(cached(options), 0);
  EXPECT_EQ(cached(options), 699);
  options.device.threads = 1;
  options.kv = KvMode::kHost;
  EXPECT_EQ(cached(options), 699);  // neither changes a bit
  options.model = folder / "renamed";
  std::filesystem::copy(testing::tiny_model("llama31"), options.model);
  EXPECT_EQ(cached(options), 699);
  options.cache_type_k = DType::kF16;
  EXPECT_EQ(cached(options), 0);
  options.cache_type_k.reset();
  options.rope.theta = 20000;
  EXPECT_EQ(cached(options), 0);
  options.rope.theta = 0;
  options.dtype = DType::kBF16;
  EXPECT_EQ(cached(options), 0);
  options.dtype = DType::kF32;
  const std::string weights = options.model + "/model.safetensors";
  const std::string bytes = folder.read("renamed/model.safetensors");
  std::string changed = bytes;
  changed[changed.size() - 200] = static_cast<char>(changed[changed.size() - 200] ^ 1);
  folder.write("renamed/model.safetensors", changed);
  EXPECT_EQ(cached(options), 0);
  folder.write("renamed/model.safetensors", bytes);
  EXPECT_EQ(cached(options), 699);
  EXPECT_EQ(cached(tiny(folder.path(), "qwen3")), 0);
}

// Each block in turn, its manifest whole: the run computes again from there on, says so, and mends the cache.
TEST(PrefixEngine, ADamagedBlockIsComputedAgain) {
  const TemporaryFolder folder;
  const std::vector<int32_t> prompt = testing::made_up_ids(1300, 512);
  const std::vector<int32_t> fresh = Engine(tiny("")).generate(prompt, kRun, nullptr).token_ids;
  Engine engine(tiny(folder.path()));
  EXPECT_EQ(engine.generate(prompt, kRun, nullptr).token_ids, fresh);
  for (const int64_t first_row : {0, 512, 1024}) {
    const PrefixStore looks({.folder = folder.path()}, PrefixStore::Use::kLook);
    for (const auto& [key, entry] : looks.index().entries()) {
      if (entry.block.first_row != first_row) continue;
      const std::string name = key_text(key) + ".kv";
      std::string data = folder.read(name);
      data[data.size() - 5] = static_cast<char>(data[data.size() - 5] ^ 16);  // of its last layer
      folder.write(name, data);
    }
    const GenerateResult mended = engine.generate(prompt, kRun, nullptr);
    EXPECT_EQ(mended.token_ids, fresh);
    EXPECT_EQ(mended.prefix.rows, first_row);
    ASSERT_EQ(mended.prefix.notes.size(), 1u);
    EXPECT_NE(mended.prefix.notes[0].find("are not those that were written"), std::string::npos);
    const GenerateResult again = engine.generate(prompt, kRun, nullptr);
    EXPECT_EQ(again.prefix.rows, 1299);
    EXPECT_EQ(again.token_ids, fresh);
  }
}

// Makes a run's first prefill longer than any other.
class SlowFirstPrefill : public Progress {
 public:
  static constexpr int kDelayMs = 1500;
  void begin(std::string_view stage, std::string_view, int64_t) override {
    if (stage == "prefill" && prefills++ == 0) std::this_thread::sleep_for(std::chrono::milliseconds(kDelayMs));
  }
  void update(int64_t) override {}
  void end() override {}
  int prefills = 0;
};

// What an attempt took that met a damaged block is the run's: its time, what it moved and what it read.
TEST(PrefixEngine, ARunThatStartsAgainCountsBothAttempts) {
  const TemporaryFolder folder;
  const std::vector<int32_t> prompt = testing::made_up_ids(600, 512);
  Engine engine(tiny(folder.path()));
  const GenerateResult fresh = engine.generate(prompt, kRun, nullptr), hit = engine.generate(prompt, kRun, nullptr);
  const PrefixStore looks({.folder = folder.path()}, PrefixStore::Use::kLook);
  for (const auto& [key, entry] : looks.index().entries()) {
    const std::string name = key_text(key) + ".kv";
    std::string data = folder.read(name);
    data[data.size() - 5] = static_cast<char>(data[data.size() - 5] ^ 16);  // of its last layer
    folder.write(name, data);
  }
  SlowFirstPrefill progress;
  const GenerateResult mended = engine.generate(prompt, kRun, &progress);
  EXPECT_EQ(mended.token_ids, fresh.token_ids);
  EXPECT_EQ(progress.prefills, 2);
  EXPECT_EQ(mended.prefix.restarts, 1);
  EXPECT_EQ(mended.prefix.rows, 0);
  EXPECT_EQ(mended.prefix.read_bytes, hit.prefix.read_bytes);
  EXPECT_GE(mended.timings.ttft_ms, SlowFirstPrefill::kDelayMs);
  EXPECT_GT(mended.transfers.prefill_h2d_bytes, fresh.transfers.prefill_h2d_bytes);
  EXPECT_EQ(fresh.prefix.restarts + hit.prefix.restarts, 0);
}

TEST(PrefixEngine, WhatIsGoneIsComputedAgain) {
  const TemporaryFolder folder;
  const std::vector<int32_t> prompt = testing::made_up_ids(1100, 512);
  Engine engine(tiny(folder / "cache"));
  const std::vector<int32_t> fresh = engine.generate(prompt, kRun, nullptr).token_ids;
  std::filesystem::remove_all(folder / "cache");
  const GenerateResult gone = engine.generate(prompt, kRun, nullptr);
  EXPECT_EQ(gone.token_ids, fresh);
  EXPECT_EQ(gone.prefix.rows, 0);
  EXPECT_EQ(gone.prefix.saved_rows, 1100);
  EXPECT_EQ(engine.generate(prompt, kRun, nullptr).prefix.rows, 1099);
}

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

// What a run's own cache has on disk is saved from where prefill builds it.
TEST(PrefixEngine, GoesTogetherWithSpill) {
  const TemporaryFolder folder, spill;
  const std::vector<int32_t> prompt = testing::made_up_ids(1530, 512);
  EngineOptions options = tiny("");
  options.kv = KvMode::kHost;
  Engine fresh(options);
  const GenerateResult plain = fresh.generate(prompt, kRun, nullptr);
  const RunPlan plan = fresh.plan(1530, kRun);
  constexpr uint64_t kSegment = 512 * 256, kParts = 4 * 3;
  options.spill = {.folder = spill.path(), .slots = 2};
  options.device.host_mem_bytes =
      plan.weights_bytes + testing::host_bytes_for(plan.memory, Backend::kCpu, 0.7, 2 * kSegment);
  options.prefix_cache.folder = folder.path();
  const GenerateResult saving = Engine(options).generate(prompt, kRun, nullptr);
  options.device.host_mem_bytes += PrefixLoader::ring_bytes(kSegment, kParts);
  const GenerateResult hit = Engine(options).generate(prompt, kRun, nullptr);
  EXPECT_GT(saving.plan.disk_bytes, 0u);
  EXPECT_GT(hit.plan.disk_bytes, 0u);
  EXPECT_EQ(saving.prefix.saved_rows, 1530);
  EXPECT_EQ(hit.prefix.rows, 1529);
  EXPECT_TRUE(hit.prefix.notes.empty());
  EXPECT_EQ(saving.token_ids, plain.token_ids);
  EXPECT_EQ(hit.token_ids, plain.token_ids);
  EXPECT_TRUE(PrefixStore({.folder = folder.path()}, PrefixStore::Use::kLook).verify({}).empty());
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

// As of a read-only file system: tests may run as root, whom modes do not stop.
TEST(PrefixEngine, AFolderThatCannotBeWrittenIsReadAndKeptAsItIs) {
  const std::vector<int32_t> prompt = testing::made_up_ids(600, 512);
  std::vector<int32_t> longer = prompt;
  for (const int32_t id : testing::made_up_ids(100, 512, 2)) longer.push_back(id);
  const std::vector<int32_t> fresh = Engine(tiny("")).generate(longer, kRun, nullptr).token_ids;
  for (const bool saved : {false, true}) {
    const TemporaryFolder folder;
    if (saved) {
      EXPECT_EQ(Engine(tiny(folder.path())).generate(prompt, kRun, nullptr).prefix.saved_rows, 600);
    }
    const auto contents = [&] {
      std::map<std::string, std::string> files;
      for (const auto& file : std::filesystem::directory_iterator(folder.path())) {
        const std::string name = file.path().filename();
        files[name] = folder.read(name);
      }
      return files;
    };
    const auto before = contents();
    EXPECT_EQ(before.empty(), !saved);
    {
      std::atomic<int> others{0};  // that were tried after the lock could not be had
      const testing::ScriptedFaults faults([&](FileOp op, const std::string& path, uint64_t, uint64_t) -> FileFault {
        const bool reads =
            op == FileOp::kRead || (op == FileOp::kOpen && (path.ends_with(".kv") || path.ends_with(".seg")));
        if (reads || !path.starts_with(folder.path())) return {};
        if (!path.ends_with(".lock")) ++others;
        return {.error = EROFS};
      });
      Engine engine(tiny(folder.path()));
      for (const bool first : {true, false}) {
        const GenerateResult run = engine.generate(longer, kRun, nullptr);
        EXPECT_EQ(run.token_ids, fresh);
        EXPECT_EQ(run.prefix.rows, saved ? 600 : 0);
        EXPECT_EQ(run.prefix.saved_rows, run.prefix.rows);
        EXPECT_EQ(run.prefix.saved_bytes, 0u);
        ASSERT_EQ(run.prefix.notes.size(), first ? 1u : 0u);  // said once
        if (!first) continue;
        EXPECT_NE(run.prefix.notes[0].find("prefix cache: nothing is saved: " + folder.path()), std::string::npos)
            << run.prefix.notes[0];
        EXPECT_NE(run.prefix.notes[0].find("(EROFS)"), std::string::npos) << run.prefix.notes[0];
      }
      EXPECT_EQ(others, 0);
    }
    EXPECT_EQ(contents(), before);
    EXPECT_EQ(Engine(tiny(folder.path())).generate(longer, kRun, nullptr).prefix.saved_rows, 700);  // once it can be
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

class SlowWrites final : public FileFaults {
 public:
  SlowWrites() : before_(set_file_faults(this)) {}
  ~SlowWrites() override { set_file_faults(before_); }
  FileFault before(FileOp op, const std::string&, uint64_t, uint64_t) override {
    if (op == FileOp::kWrite) std::this_thread::sleep_for(std::chrono::milliseconds(80));
    return {};
  }

 private:
  FileFaults* before_;
};

// The answer grows over the place where the prompt's last rows were, while the disk is still behind.
TEST(PrefixEngine, AnAnswerOverwritesNothingThatIsYetToBeSaved) {
  const TemporaryFolder quick, slow;
  const std::vector<int32_t> prompt = testing::made_up_ids(1400, 512);
  GenerateOptions run = kRun;
  run.max_tokens = 300;
  const auto save = [&](const TemporaryFolder& folder) {
    EngineOptions options = tiny(folder.path());
    options.kv = KvMode::kHost;
    return Engine(options).generate(prompt, run, nullptr);
  };
  const GenerateResult wanted = save(quick);
  {
    const SlowWrites faults;
    const GenerateResult saving = save(slow);
    EXPECT_EQ(saving.token_ids, wanted.token_ids);
    EXPECT_EQ(saving.prefix.saved_rows, 1400);
  }
  for (const auto& file : std::filesystem::directory_iterator(quick.path())) {
    const std::string name = file.path().filename();
    EXPECT_EQ(quick.read(name), slow.read(name)) << name;
  }
}

}  // namespace
}  // namespace headrace
