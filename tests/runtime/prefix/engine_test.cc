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
#include "runtime/prefix/cache_key.h"
#include "tests/runtime/prefix/tiny_engine.h"
#include "tests/support/file_faults.h"
#include "tests/support/spill.h"
#include "tests/support/temporary_folder.h"

namespace headrace {
namespace {

using testing::kRun;
using testing::tiny;

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
  options.cache_type_k = DType::kInt8;
  EXPECT_EQ(cached(options), 0);
  EXPECT_EQ(cached(options), 699);
  options.cache_type_k.reset();
  options.rope.theta = 20000;
  EXPECT_EQ(cached(options), 0);
  options.rope.theta = 0;
  options.dtype = DType::kBF16;
  EXPECT_EQ(cached(options), 0);
  options.weights = WeightPolicy::kQ8_0;
  EXPECT_EQ(cached(options), 0);
  options.weights = WeightPolicy::kKeep;
  EXPECT_EQ(cached(options), 699);
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

// A miss for the other --prefill-type says so, until the prompt is saved in this one, too.
TEST(PrefixEngine, AnotherPrefillTypeIsAMissAndSaid) {
  const TemporaryFolder folder;
  const std::vector<int32_t> prompt = testing::made_up_ids(700, 512), other = testing::made_up_ids(700, 512, 9);
  const auto use = [&](PrefillType type, const std::vector<int32_t>& of) {
    EngineOptions options = tiny(folder.path());
    options.prefill = type;
    return Engine(options).generate(of, kRun, nullptr).prefix;
  };
  const PrefixUse first = use(PrefillType::kCompute, prompt), again = use(PrefillType::kAuto, prompt);
  EXPECT_TRUE(first.notes.empty());
  EXPECT_EQ(first.rows, 0);
  EXPECT_EQ(again.rows, 699);  // weights in f32 are read in f32
  const PrefixUse int8 = use(PrefillType::kInt8, prompt), int8_again = use(PrefillType::kInt8, prompt);
  EXPECT_EQ(int8.rows, 0);
  EXPECT_EQ(int8.notes, std::vector<std::string>{"prefix cache: 699 tokens of this prompt are saved by --prefill-type "
                                                 "bf16, which this run does not use"});
  EXPECT_EQ(int8_again.rows, 699);
  EXPECT_TRUE(int8_again.notes.empty());
  EXPECT_TRUE(use(PrefillType::kInt8, other).notes.empty());
  const PrefixUse plain = use(PrefillType::kCompute, other);
  EXPECT_EQ(plain.rows, 0);
  EXPECT_EQ(plain.notes, std::vector<std::string>{"prefix cache: 699 tokens of this prompt are saved by --prefill-type "
                                                  "int8, which this run does not use"});
}

// In 8 bits a row does not depend on the group that it is computed in, but on whether its weights were rounded first.
TEST(PrefixEngine, TheKeyOfRowsIsOfTheirPrefill) {
  const testing::LoadedModel model(testing::tiny_model("llama31"), DType::kBF16);
  const auto key = [&](int64_t group, bool int8, bool keeps_blocks) {
    return rows_cache_key({.weights = {},
                           .config = &model.checkpoint->config(),
                           .dtype = DType::kBF16,
                           .k_type = DType::kBF16,
                           .v_type = DType::kBF16,
                           .quantised = std::nullopt,
                           .prefill_group = group,
                           .prefill_int8 = int8,
                           .keeps_blocks = keeps_blocks},
                          *model.device);
  };
  EXPECT_NE(key(256, false, false), key(256, true, false));
  EXPECT_NE(key(256, false, false), key(512, false, false));
  EXPECT_EQ(key(256, true, false), key(512, true, false));
  EXPECT_EQ(key(256, false, false), key(256, false, true));
  EXPECT_NE(key(256, true, false), key(256, true, true));
}

// The scale of q decides the rows of every layer but the first.
TEST(PrefixEngine, AnotherScaleOfQueriesIsAMiss) {
  const TemporaryFolder folder;
  const std::vector<int32_t> prompt = testing::made_up_ids(700, 512);
  EngineOptions options = tiny(folder / "cache", "ministral3");
  const auto cached = [&] { return Engine(options).generate(prompt, kRun, nullptr).prefix.rows; };
  EXPECT_EQ(cached(), 0);
  EXPECT_EQ(cached(), 699);
  for (const auto& [from, to] : {std::pair("\"llama_4_scaling_beta\": 0.1", "\"llama_4_scaling_beta\": 0.2"),
                                 std::pair("\"llama_4_scaling_beta\": 0.1", "\"llama_4_scaling_beta\": 0.0")}) {
    std::filesystem::remove_all(folder / "model");
    std::filesystem::copy(options.model = testing::tiny_model("ministral3"), folder / "model");
    options.model = folder / "model";
    std::string config = folder.read("model/config.json");
    ASSERT_NE(config.find(from), std::string::npos);
    folder.write("model/config.json", config.replace(config.find(from), std::string(from).size(), to));
    EXPECT_EQ(cached(), 0) << to;
  }
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
  EXPECT_TRUE(PrefixStore({.folder = folder.path()}, PrefixStore::Use::kLook).verify().empty());
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
