// A batch on several engines: made-up ones, of which some are lost, and two real ones on the CPU.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <deque>
#include <map>
#include <new>
#include <nlohmann/json.hpp>
#include <set>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "offload/host/host_limits.h"
#include "runtime/commands/batch.h"
#include "runtime/engine/engine_shares.h"
#include "tests/support/json_lines.h"
#include "tests/support/temporary_folder.h"

namespace headrace {
namespace {

using nlohmann::json;

class BatchEngines : public ::testing::Test {
 protected:
  BatchEngines() {
    for (int i = 0; i < 24; ++i) files_.push_back("r" + std::to_string(i));
  }

  BatchOutcome run(size_t engines) {
    ResultsFile results(out_, files_);
    BatchOptions batch;
    batch.files = files_;
    batch.options = "o";
    batch.results = &results;
    batch.engines = engines;
    batch.shared = shared_;
    batch.mutex = &mutex_;
    batch.read = [](const BatchJob& job) { return "text of " + job.file; };
    batch.answer = [this](const BatchJob& job, const std::string& text) {
      {
        const MutexLock lock(mutex_);
        if (reads_lines_) {
          EXPECT_EQ(lines().size(), written_) << "an answer is not on the disk";
        }
        taken_[job.engine].push_back(job.index);
      }
      while (job.engine < wait_for_.size() && !wait_for_[job.engine]()) std::this_thread::yield();
      if (on_answer_) on_answer_(job);
      GenerateResult result;
      result.text = "about " + text;
      result.finish_reason = interrupt_ ? FinishReason::kInterrupted : FinishReason::kStop;
      return result;
    };
    // Events come one at a time, each behind the line of its answer.
    batch.events.on_result = [this](const BatchJob&, const GenerateResult&) { written_ = lines().size(); };
    batch.events.on_error = [this](const BatchJob& job, const Error& error) {
      written_ = lines().size();
      errors_[job.file] = error.what();
    };
    batch.events.on_lost = [this](const BatchJob& job, const std::string& why) { lost_.emplace_back(job.engine, why); };
    batch.events.on_begin = [this](const BatchJob&) { written_ = lines().size(); };
    return run_batch(batch);
  }

  std::vector<json> lines() const { return testing_support::json_lines(folder_.read("out.jsonl")); }
  // Every request has one line, with its answer.
  void expect_all_answered() const {
    std::set<std::string> names;
    for (const json& line : lines()) {
      const std::string name = line["file"];
      EXPECT_TRUE(names.insert(name).second) << name << " twice";
      EXPECT_EQ(line["text"], "about text of " + name);
    }
    EXPECT_EQ(names.size(), files_.size());
  }
  size_t taken(size_t engine) {
    const MutexLock lock(mutex_);
    return taken_[engine].size();
  }

  TemporaryFolder folder_;
  const std::string out_ = folder_ / "out.jsonl";
  std::vector<std::string> files_;
  std::vector<size_t> shared_;
  Mutex mutex_;
  std::map<size_t, std::vector<size_t>> taken_;     // by engine
  std::vector<std::function<bool()>> wait_for_;     // by engine, before each answer
  std::function<void(const BatchJob&)> on_answer_;  // may throw
  std::atomic<bool> interrupt_{false};
  bool reads_lines_ = true;
  size_t written_ = 0;
  std::map<std::string, std::string> errors_;
  std::vector<std::pair<size_t, std::string>> lost_;
};

TEST_F(BatchEngines, ShareTheRequests) {
  // Each waits for the others' first, so that all have work.
  wait_for_.assign(3, [this] { return taken(0) > 0 && taken(1) > 0 && taken(2) > 0; });
  const BatchOutcome outcome = run(3);
  EXPECT_EQ(outcome.answered, 24);
  EXPECT_EQ(outcome.exit_code(), ExitCode::kDone);
  ASSERT_EQ(outcome.engines.size(), 3u);
  int64_t answered = 0;
  for (const EngineOutcome& engine : outcome.engines) {
    EXPECT_GT(engine.answered, 0);
    EXPECT_FALSE(engine.lost);
    answered += engine.answered;
  }
  EXPECT_EQ(answered, 24);
  expect_all_answered();
  EXPECT_EQ(run(2).skipped, 24);
  EXPECT_EQ(run(1).skipped, 24);
}

TEST_F(BatchEngines, RequestsThatBeginAlikeStayTogether) {
  shared_.assign(24, 3);
  shared_[0] = shared_[12] = 0;
  // Neither is ahead, so that neither helps the other out.
  const auto even = [this](size_t self) { return taken(1 - self) >= taken(self); };
  wait_for_ = {[&] { return even(0); }, [&] { return even(1); }};
  run(2);
  expect_all_answered();
  for (const auto& [engine, requests] : taken_) {
    ASSERT_EQ(requests.size(), 12u);
    EXPECT_TRUE(requests.front() == 0 || requests.front() == 12);
    for (size_t i = 1; i < 12; ++i) EXPECT_EQ(requests[i], requests[i - 1] + 1);
  }
}

TEST_F(BatchEngines, ALostEnginesRequestsAreTakenByTheOthers) {
  on_answer_ = [this](const BatchJob& job) {
    if (job.engine == 1 && taken(1) == 3)
      throw_error(ExitCode::kInternal, "cudaMemcpyAsync", "the GPU fell off the bus");
  };
  wait_for_ = {[this] { return taken(1) >= 3; }};
  const BatchOutcome outcome = run(2);
  EXPECT_EQ(outcome.answered, 24);
  EXPECT_EQ(outcome.failed, 0);
  EXPECT_EQ(outcome.exit_code(), ExitCode::kDone);
  EXPECT_FALSE(outcome.engines[0].lost);
  EXPECT_TRUE(outcome.engines[1].lost);
  EXPECT_EQ(outcome.engines[1].answered, 2);
  EXPECT_EQ(taken(1), 3u);
  ASSERT_EQ(lost_.size(), 1u);
  EXPECT_EQ(lost_[0].first, 1u);
  EXPECT_EQ(lost_[0].second, "cudaMemcpyAsync: the GPU fell off the bus");
  expect_all_answered();
}

// The others have nothing left to take when an engine is lost with the last request: they wait for it.
TEST_F(BatchEngines, TheLastRequestIsPutBackToo) {
  files_.resize(2);
  on_answer_ = [](const BatchJob& job) {
    if (job.engine == 1) throw std::runtime_error("gone");
  };
  wait_for_ = {[this] { return taken(1) > 0; },
               [this] {
                 const MutexLock lock(mutex_);
                 return lines().size() == 1;
               }};
  const BatchOutcome outcome = run(2);
  EXPECT_EQ(outcome.answered, 2);
  EXPECT_EQ(outcome.engines[0].answered, 2);
  expect_all_answered();
}

TEST_F(BatchEngines, ARequestThatTwoEnginesAreLostWithFails) {
  on_answer_ = [](const BatchJob& job) {
    if (job.file == "r5") throw_error(ExitCode::kInternal, "cudaStreamSynchronize", "an illegal address");
  };
  const BatchOutcome outcome = run(3);
  EXPECT_EQ(outcome.answered, 23);
  EXPECT_EQ(outcome.failed, 1);
  EXPECT_EQ(outcome.exit_code(), ExitCode::kInternal);
  EXPECT_EQ(lost_.size(), 2u);
  ASSERT_EQ(errors_.size(), 1u);
  EXPECT_NE(errors_["r5"].find("an illegal address"), std::string::npos);
  on_answer_ = nullptr;  // a rerun tries it again
  EXPECT_EQ(run(2).answered, 1);
  expect_all_answered();
}

TEST_F(BatchEngines, TheBatchEndsWithAnErrorWhenNoEngineIsLeft) {
  on_answer_ = [this](const BatchJob& job) {
    if (taken(job.engine) == 2) throw_error(ExitCode::kStorage, "engine " + std::to_string(job.engine), "is gone");
  };
  wait_for_.assign(2, [this] { return taken(0) > 0 && taken(1) > 0; });
  try {
    run(2);
    ADD_FAILURE() << "nothing was thrown";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::kStorage);
    ASSERT_EQ(lost_.size(), 1u);
    EXPECT_EQ(error.info().where, "engine " + std::to_string(1 - lost_[0].first));
  }
  EXPECT_EQ(lines().size(), 2u);
  on_answer_ = nullptr;
  EXPECT_EQ(run(2).answered, 22);
  expect_all_answered();
}

TEST_F(BatchEngines, ErrorsOfADocumentLoseNoEngine) {
  on_answer_ = [](const BatchJob& job) {
    if (job.index % 4 == 0) throw_error(ExitCode::kBadInput, job.file, "is too long");
    if (job.index % 4 == 1) throw_error(ExitCode::kDoesNotFit, job.file, "does not fit");
    if (job.index % 4 == 2) throw std::bad_alloc();
  };
  const BatchOutcome outcome = run(2);
  EXPECT_EQ(outcome.answered, 6);
  EXPECT_EQ(outcome.failed, 18);
  EXPECT_EQ(outcome.exit_code(), ExitCode::kBadInput);
  EXPECT_TRUE(lost_.empty());
  EXPECT_EQ(lines().size(), 24u);
}

TEST_F(BatchEngines, AnInterruptionEndsAll) {
  on_answer_ = [this](const BatchJob& job) {
    if (job.index == 6) interrupt_ = true;
  };
  const BatchOutcome outcome = run(2);
  EXPECT_TRUE(outcome.interrupted);
  EXPECT_EQ(outcome.exit_code(), ExitCode::kInterrupted);
  EXPECT_LT(outcome.answered, 24);
  EXPECT_EQ(lines().size(), static_cast<size_t>(outcome.answered));
  interrupt_ = false;
  on_answer_ = nullptr;
  run(2);
  expect_all_answered();
}

// No engine is to blame, so nothing is put back; the others' answers are written.
TEST_F(BatchEngines, AFailingResultsFileEndsTheBatch) {
  // By the number taken, which may pass six between a request and its answer: one engine may run ahead of the other.
  on_answer_ = [this](const BatchJob&) {
    const MutexLock lock(mutex_);
    if (taken_[0].size() + taken_[1].size() >= 6) folder_.write("out.jsonl", "{}\n");
  };
  reads_lines_ = false;
  EXPECT_THROW(run(2), Error);
  EXPECT_TRUE(lost_.empty());
  EXPECT_LT(taken(0) + taken(1), 24u);
}

TEST(EngineShares, KeepToTheLimitsTogether) {
  const HostLimits limits = read_host_limits();
  EngineOptions all;
  all.device.host_mem_bytes = 10 * kMiB;
  all.device.vram_bytes = kMiB;
  all.device.threads = 5;
  all.spill = {.folder = "/tmp", .limit_bytes = 600};
  all.prefix_cache = {.folder = "kept", .limit_bytes = 90};
  const DeviceOptions cpu{.choice = DeviceChoice::kCpu}, gpu{.choice = DeviceChoice::kCuda, .cuda_index = 3};
  const std::vector<EngineOptions> shares = engine_shares(all, {cpu, gpu});
  ASSERT_EQ(shares.size(), 2u);
  EXPECT_EQ(shares[0].device.choice, DeviceChoice::kCpu);
  EXPECT_EQ(shares[1].device.choice, DeviceChoice::kCuda);
  EXPECT_EQ(shares[1].device.cuda_index, 3);
  for (const EngineOptions& share : shares) {
    EXPECT_EQ(share.device.host_mem_bytes, 5 * kMiB);
    EXPECT_EQ(share.device.vram_bytes, kMiB);
    EXPECT_EQ(share.spill.limit_bytes, 300u);
    EXPECT_EQ(share.prefix_cache.limit_bytes, 45u);
  }
  EXPECT_EQ(shares[0].device.threads, 3);
  EXPECT_EQ(shares[1].device.threads, 2);
  EXPECT_EQ(shares[0].prefix_cache.folder, "kept");
  EXPECT_EQ(shares[1].prefix_cache.folder, "kept/device-2");

  all.device = {.threads = 1};
  all.spill.limit_bytes = 0;
  uint64_t host = 0;
  for (const EngineOptions& share : engine_shares(all, {cpu, cpu, cpu})) {
    EXPECT_EQ(share.device.threads, 1);
    EXPECT_GT(share.spill.limit_bytes, 0u);
    host += share.device.host_mem_bytes;
  }
  EXPECT_LE(host, limits.total_bytes / 5 * 3);
  EXPECT_GT(host, 0u);

  all.device.host_mem_bytes = limits.total_bytes * 2;
  EXPECT_THROW(engine_shares(all, {cpu, cpu}), Error);
  EXPECT_EQ(engine_shares(all, {}).size(), 1u);
  EXPECT_EQ(engine_shares(all, {gpu})[0].device.host_mem_bytes, all.device.host_mem_bytes);
  EXPECT_EQ(engine_shares(all, {gpu})[0].device.cuda_index, 3);
}

// Two real engines at the same time give what one gives, greedy and sampled.
TEST(RealEngines, AnswerAsOneDoes) {
  const TemporaryFolder folder;
  EngineOptions all;
  all.model = HEADRACE_TEST_DATA "/tiny/llama2";
  all.device.threads = 2;
  all.want_tokenizer = false;
  all.prefix_cache.folder = folder / "kept";
  std::vector<std::string> files;
  for (int i = 0; i < 8; ++i) files.push_back(std::to_string(i));
  const auto answers = [&](size_t count) {
    std::deque<Engine> engines;
    const DeviceOptions cpu{.choice = DeviceChoice::kCpu};
    for (const EngineOptions& share : engine_shares(all, std::vector<DeviceOptions>(count, cpu))) {
      engines.emplace_back(share);
    }
    std::map<std::string, std::vector<int32_t>> ids;
    BatchOptions batch;
    batch.files = files;
    batch.engines = count;
    batch.read = [](const BatchJob& job) { return job.file; };
    batch.answer = [&](const BatchJob& job, const std::string&) {
      std::vector<int32_t> prompt(100 + job.index);
      for (size_t i = 0; i < prompt.size(); ++i) prompt[i] = static_cast<int32_t>((i * 7 + job.index / 4) % 200 + 1);
      GenerateOptions options{.max_tokens = 8, .ignore_eos = true};
      options.sampling.temperature = job.index % 2 == 0 ? 0.0f : 0.8f;
      options.sampling.seed = job.index;
      return engines[job.engine].generate(prompt, options, nullptr);
    };
    batch.events.on_result = [&](const BatchJob& job, const GenerateResult& result) {
      ids[job.file] = result.token_ids;
    };
    EXPECT_EQ(run_batch(batch).answered, 8);
    return ids;
  };
  const auto one = answers(1);
  ASSERT_EQ(one.size(), 8u);
  EXPECT_EQ(one.at("0").size(), 8u);
  EXPECT_EQ(answers(2), one);
  EXPECT_EQ(answers(3), one);
}

}  // namespace
}  // namespace headrace
