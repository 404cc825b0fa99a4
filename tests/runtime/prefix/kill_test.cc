// kill -9 while a prompt is saved: at 200 seeded points of a save, no two the same, the process is killed, and the next
// run behind what is left says what a fresh one says. Each run is a process of its own, forked from one without
// threads.
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <mutex>
#include <numeric>
#include <optional>
#include <random>
#include <set>
#include <string>
#include <tuple>
#include <vector>

#include "cache/base.h"
#include "offload/disk/file_faults.h"
#include "runtime/engine/engine.h"
#include "runtime/prefix/store.h"
#include "tests/support/sanitized.h"
#include "tests/support/session_fixture.h"
#include "tests/support/temporary_folder.h"

namespace headrace {
namespace {

constexpr size_t kPoints = testing::kSanitized ? 20 : 200, kStatesPoints = kPoints / 4;  // a fork is slow there
constexpr int kParts = 4;                                                                // of the points, a test each
constexpr int kMoments = testing::kSanitized ? 4 : 16;  // and as many by the clock, wherever it then is
constexpr int64_t kKilledPrompt = 600;                  // two segments

// A model, and how many rows the next run finds by the number of whole blocks.
struct KilledModel {
  const char* name;
  int32_t vocab;
  size_t points;
  std::vector<int64_t> rows;
};
// Rows of the second have recurrent states beside them, whose block is the last one.
const KilledModel kKilledModels[] = {{"llama31", 512, kPoints, {0, 512, kKilledPrompt - 1}},
                                     {"qwen35", 320, kStatesPoints, {0, 0, 0, 576}}};

// What an operation is to this test.
enum Kind : int64_t { kOther, kDataPage, kManifestRename };

// Notes what a save does on the disk, and kills the process before an operation, or so long after one. Writes
// are short, as a system may make them: of data a page at a time, so that a save is some hundred operations, and of a
// manifest a half where the next one is the end.
class KillAt final : public FileFaults {
 public:
  static constexpr int64_t kNever = INT64_MAX;
  explicit KillAt(int64_t point) : point_(point) { set_file_faults(this); }
  KillAt(int64_t from, int64_t after_ns) : from_(from), after_ns_(after_ns) { set_file_faults(this); }
  ~KillAt() override { set_file_faults(nullptr); }
  FileFault before(FileOp op, const std::string& path, uint64_t, uint64_t bytes) override {
    const std::lock_guard lock(mutex_);
    const auto number = static_cast<int64_t>(kinds_.size());
    if (number >= point_) ::kill(::getpid(), SIGKILL);
    if (number == from_) start_timer();
    times_.push_back(std::chrono::nanoseconds(std::chrono::steady_clock::now().time_since_epoch()).count());
    const bool manifest = path.find(PrefixStore::kManifestSuffix) != std::string::npos;
    const bool page = op == FileOp::kWrite && path.find(PrefixStore::kDataSuffix) != std::string::npos;
    kinds_.push_back(page ? kDataPage : op == FileOp::kRename && manifest ? kManifestRename : kOther);
    if (page) return {.at_most = kPageBytes};
    if (op == FileOp::kWrite && number == point_ - 1) return {.at_most = std::max<uint64_t>(1, bytes / 2)};
    return {};
  }
  const std::vector<int64_t>& kinds() const { return kinds_; }
  const std::vector<int64_t>& times() const { return times_; }

 private:
  void start_timer() const {
    sigevent event{};
    event.sigev_notify = SIGEV_SIGNAL;
    event.sigev_signo = SIGKILL;
    timer_t timer{};
    itimerspec when{};
    when.it_value = {.tv_sec = after_ns_ / 1'000'000'000, .tv_nsec = after_ns_ % 1'000'000'000};
    CHECK(::timer_create(CLOCK_MONOTONIC, &event, &timer) == 0 && ::timer_settime(timer, 0, &when, nullptr) == 0);
  }

  const int64_t point_ = kNever, from_ = kNever, after_ns_ = 0;
  std::mutex mutex_;
  std::vector<int64_t> kinds_, times_;
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

class KilledSave : public ::testing::TestWithParam<std::tuple<KilledModel, int>> {
 protected:
  static const KilledModel& model() { return std::get<0>(GetParam()); }
  static int part() { return std::get<1>(GetParam()); }
  // `cache`: empty for a fresh run. The answer's tokens and how many rows came from the cache.
  static std::vector<int64_t> run(const std::string& cache) {
    EngineOptions options;
    options.model = testing::tiny_model(model().name);
    options.device = {.choice = DeviceChoice::kCpu, .threads = 1};
    options.want_tokenizer = false;
    options.dtype = DType::kF32;
    options.prefix_cache.folder = cache;
    const GenerateResult result = Engine(options).generate(
        testing::made_up_ids(kKilledPrompt, model().vocab),
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
int64_t rows_of(const std::vector<int64_t>& said) { return said.size() >= 2 ? said[said.size() - 2] : -1; }

// What is saved before an operation: a block is there from its manifest's rename on.
int64_t rows_before(const KilledModel& model, const std::vector<int64_t>& kinds, int64_t point) {
  return model.rows.at(static_cast<size_t>(std::count(kinds.begin(), kinds.begin() + point, int64_t{kManifestRename})));
}

// Distinct ones: the first operation, the last one (all is there but the folder's sync), the one after the first
// manifest, then all that are no page of data, then pages.
std::vector<int64_t> points_of(const KilledModel& model, const std::vector<int64_t>& kinds) {
  const auto count = static_cast<int64_t>(kinds.size());
  std::vector<int64_t> points(kinds.size());
  std::iota(points.begin(), points.end(), int64_t{0});
  std::shuffle(points.begin(), points.end(), std::mt19937(20261122));
  const int64_t second = std::find(kinds.begin(), kinds.end(), int64_t{kManifestRename}) - kinds.begin() + 1;
  std::stable_sort(points.begin(), points.end(), [&](int64_t a, int64_t b) {
    const auto rank = [&](int64_t point) {
      if (point == 0 || point == count - 1 || point == second) return 0;
      return kinds[static_cast<size_t>(point)] == kDataPage ? 2 : 1;
    };
    return rank(a) < rank(b);
  });
  points.resize(std::min(points.size(), model.points));
  return points;
}

class KilledSaveAt : public KilledSave {
 protected:
  void SetUp() override {
    fresh_ = in_a_child([] { return run(""); });
    ASSERT_TRUE(fresh_ && fresh_->size() == 10);
    const auto whole = in_a_child([&] {
      KillAt faults(KillAt::kNever);
      run(parent_ / "whole");
      std::vector<int64_t> said = faults.kinds();
      said.insert(said.end(), faults.times().begin(), faults.times().end());
      return said;
    });
    ASSERT_TRUE(whole && !whole->empty());
    const auto half = static_cast<std::ptrdiff_t>(whole->size() / 2);
    kinds_.assign(whole->begin(), whole->begin() + half);
    times_.assign(whole->begin() + half, whole->end());
  }
  // A save that is killed, and the next run; whether it was.
  template <typename... Where>
  bool kill_and_run(const std::string& folder, Where... where) {
    const auto broken = in_a_child([&] {
      const KillAt faults(where...);
      return run(folder);
    });
    next_ = in_a_child([&] { return run(folder); });
    return !broken;
  }

  const TemporaryFolder parent_;
  std::optional<std::vector<int64_t>> fresh_, next_;
  std::vector<int64_t> kinds_, times_;
};

INSTANTIATE_TEST_SUITE_P(Points, KilledSaveAt,
                         ::testing::Combine(::testing::ValuesIn(kKilledModels), ::testing::Range(0, kParts)),
                         [](const auto& given) {
                           return str(std::get<0>(given.param).name, "_", std::get<1>(given.param));
                         });

TEST_P(KilledSaveAt, TheNextRunSaysWhatAFreshOneSays) {
  const std::vector<int64_t> points = points_of(model(), kinds_);
  ASSERT_EQ(std::set<int64_t>(points.begin(), points.end()).size(), model().points);
  std::set<int64_t> found;
  for (const int64_t point : points) found.insert(rows_before(model(), kinds_, point));
  EXPECT_EQ(found, std::set<int64_t>(model().rows.begin(), model().rows.end()));  // every number of whole blocks
  for (auto i = static_cast<size_t>(part()); i < points.size(); i += kParts) {
    const int64_t point = points[i];
    const std::string folder = parent_ / std::to_string(i);
    EXPECT_TRUE(kill_and_run(folder, point)) << point;
    ASSERT_TRUE(next_) << point;
    EXPECT_EQ(text_of(*next_), text_of(*fresh_)) << "killed at operation " << point << " of " << kinds_.size();
    EXPECT_EQ(rows_of(*next_), rows_before(model(), kinds_, point)) << "killed at operation " << point;
    if (i / kParts % 10 == 0) {  // and it has saved what was not there
      const auto third = in_a_child([&] { return run(folder); });
      ASSERT_TRUE(third);
      EXPECT_EQ(text_of(*third), text_of(*fresh_));
      EXPECT_EQ(rows_of(*third), model().rows.back());
    }
    std::filesystem::remove_all(folder);
  }
}

// By the clock, in the midst of whatever is done then: half of them from the first operation on, half from where all
// data is written. A run that is over by then has saved all.
TEST_P(KilledSaveAt, AnyMomentIsAsGood) {
  std::mt19937 random(20261122 + static_cast<uint32_t>(part()));
  const auto written = std::find(kinds_.rbegin(), kinds_.rend(), int64_t{kDataPage}).base() - kinds_.begin();
  ASSERT_GT(written, 0);
  for (int i = 0; i < kMoments / kParts; ++i) {
    const std::string folder = parent_ / std::to_string(i);
    const int64_t from = i % 2 == 0 ? int64_t{written} : 0;
    const int64_t time = times_.back() - times_.at(static_cast<size_t>(from));
    const int64_t after_ns = 1 + static_cast<int64_t>(random() / 4294967296.0 * static_cast<double>(time));
    const bool killed = kill_and_run(folder, from, after_ns);
    ASSERT_TRUE(next_) << after_ns;
    EXPECT_EQ(text_of(*next_), text_of(*fresh_)) << "killed " << after_ns << " ns after operation " << from;
    if (!killed) {
      EXPECT_EQ(rows_of(*next_), model().rows.back());
    }
    std::filesystem::remove_all(folder);
  }
}

}  // namespace
}  // namespace headrace
