// kill -9 while a prompt is saved: at 200 seeded points of a save the process is killed, and the next run
// behind what is left says what a fresh one says. Each run is a process of its own, forked from one without threads.
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <optional>
#include <random>
#include <set>
#include <vector>

#include "offload/file_faults.h"
#include "runtime/engine.h"
#include "runtime/prefix/store.h"
#include "tests/support/sanitized.h"
#include "tests/support/session_fixture.h"
#include "tests/support/temporary_folder.h"

namespace headrace {
namespace {

constexpr int kPoints = testing::kSanitized ? 5 : 50;  // a fork is slow there
constexpr uint32_t kParts = 4;                         // of the points, a test each
constexpr int64_t kPrompt = 700;                       // two segments

// Counts what a save does on the disk, and kills the process at an operation: a write is cut in the middle first.
class KillAt final : public FileFaults {
 public:
  static constexpr int64_t kNever = INT64_MAX, kAfterFirstPiece = -1;
  explicit KillAt(int64_t point) : point_(point) { set_file_faults(this); }
  ~KillAt() override { set_file_faults(nullptr); }
  FileFault before(FileOp op, const std::string& path, uint64_t, uint64_t bytes) override {
    const int64_t number = count_++;
    if (number == point_ - 1 && op == FileOp::kWrite) return {.at_most = std::max<uint64_t>(1, bytes / 2 / 512 * 512)};
    if (point_ == kAfterFirstPiece ? piece_.load() : number >= point_) ::kill(::getpid(), SIGKILL);
    if (op == FileOp::kRename && path.find(PrefixStore::kManifestSuffix) != std::string::npos) piece_ = true;
    return {};
  }
  int64_t count() const { return count_; }

 private:
  const int64_t point_;
  std::atomic<int64_t> count_{0};
  std::atomic<bool> piece_{false};  // its manifest is there: the last operation was its rename
};

// What a child process has to say; none: it was killed.
std::optional<std::vector<int64_t>> in_a_child(const std::function<std::vector<int64_t>()>& call) {
  int ends[2];
  EXPECT_EQ(::pipe(ends), 0);
  const pid_t child = ::fork();
  if (child == 0) {
    ::close(ends[0]);
    int code = 1;
    try {
      const std::vector<int64_t> said = call();
      const auto bytes = static_cast<ssize_t>(said.size() * sizeof(int64_t));
      code = ::write(ends[1], said.data(), said.size() * sizeof(int64_t)) == bytes ? 0 : 1;
    } catch (const std::exception& error) {
      std::fprintf(stderr, "child: %s\n", error.what());
    }
    ::_exit(code);
  }
  ::close(ends[1]);
  std::vector<int64_t> said;
  for (int64_t value = 0; ::read(ends[0], &value, sizeof value) == sizeof value;) said.push_back(value);
  ::close(ends[0]);
  int status = 0;
  EXPECT_EQ(::waitpid(child, &status, 0), child);
  if (WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL) return std::nullopt;
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << status;
  return said;
}

class KilledSave : public ::testing::TestWithParam<uint32_t> {
 protected:
  // `cache`: empty for a fresh run. The answer's tokens and how many rows came from the cache.
  static std::vector<int64_t> run(const std::string& cache) {
    EngineOptions options;
    options.model = testing::tiny_model("llama31");
    options.device = {.choice = DeviceChoice::kCpu, .threads = 1};
    options.want_tokenizer = false;
    options.dtype = DType::kF32;
    options.prefix_cache.folder = cache;
    const GenerateResult result = Engine(options).generate(
        testing::made_up_ids(kPrompt, 512),
        {.max_tokens = 8, .sampling = {.temperature = 1, .seed = 5}, .ignore_eos = true}, nullptr);
    for (const std::string& note : result.prefix.notes) std::fprintf(stderr, "note: %s\n", note.c_str());
    std::vector<int64_t> said(result.token_ids.begin(), result.token_ids.end());
    said.push_back(result.prefix.rows);
    said.push_back(static_cast<int64_t>(result.prefix.notes.size()));
    return said;
  }
  // In memory, where a sync costs nothing.
  static void SetUpTestSuite() {
    if (std::filesystem::is_directory("/dev/shm")) ::setenv("TMPDIR", "/dev/shm", 1);
  }
};

// Of what is said, all but how many rows were found: the tokens, and that there was nothing to remark.
std::vector<int64_t> text_of(std::vector<int64_t> said) {
  if (said.size() >= 2) said.erase(said.end() - 2);
  return said;
}

INSTANTIATE_TEST_SUITE_P(Points, KilledSave, ::testing::Range(0u, kParts));

TEST_P(KilledSave, TheNextRunSaysWhatAFreshOneSays) {
  const TemporaryFolder parent;
  const auto fresh = in_a_child([] { return run(""); });
  ASSERT_TRUE(fresh && fresh->size() == 10);
  const auto whole = in_a_child([&] {
    const KillAt faults(KillAt::kNever);
    run(parent / "whole");
    return std::vector<int64_t>{faults.count()};
  });
  ASSERT_TRUE(whole && whole->size() == 1);
  const int64_t operations = whole->front();
  ASSERT_GT(operations, 30);
  std::mt19937 random(20261122 + GetParam());
  std::set<int64_t> found;
  int killed = 0;
  for (int i = 0; i < kPoints; ++i) {
    const std::string folder = parent / std::to_string(i);
    const auto drawn = static_cast<int64_t>(random() % static_cast<uint32_t>(operations));
    // The last one: all is there but the folder's sync.
    const int64_t point = i == 0 ? operations - 1 : i == 1 ? KillAt::kAfterFirstPiece : i == 2 ? 0 : drawn;
    const auto broken = in_a_child([&] {
      const KillAt faults(point);
      return run(folder);
    });
    killed += broken ? 0 : 1;
    const auto next = in_a_child([&] { return run(folder); });
    ASSERT_TRUE(next) << point;
    EXPECT_EQ(text_of(*next), text_of(*fresh)) << "killed at operation " << point << " of " << operations;
    found.insert(next->at(next->size() - 2));
    if (i % 10 == 0) {  // and it has saved what was not there
      const auto third = in_a_child([&] { return run(folder); });
      ASSERT_TRUE(third);
      EXPECT_EQ(text_of(*third), text_of(*fresh));
      EXPECT_EQ(third->at(third->size() - 2), kPrompt - 1);
    }
    std::filesystem::remove_all(folder);
  }
  EXPECT_EQ(killed, kPoints);
  EXPECT_EQ(found, (std::set<int64_t>{0, 512, kPrompt - 1}));  // every number of whole pieces
}

}  // namespace
}  // namespace headrace
