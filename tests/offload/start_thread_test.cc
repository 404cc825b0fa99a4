// A thread that the system refuses is an Error that says which, and nothing hangs.
#include "offload/start_thread.h"

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <fstream>
#include <future>

#include "offload/device.h"
#include "offload/spill_file.h"
#include "tests/support/temporary_folder.h"

namespace headrace {
namespace {

TEST(StartThread, EachHasItsNumber) {
  std::atomic<int> sum = 0;
  std::vector<std::thread> threads = start_threads(3, "a test", [&](size_t number) { sum += 1 << number; });
  EXPECT_EQ(threads.size(), 3u);
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(sum.load(), 7);
}

int own_threads() {
  std::ifstream status("/proc/self/status");
  for (std::string word; status >> word;) {
    int count = 0;
    if (word == "Threads:" && status >> count) return count;
  }
  return 0;
}

// For a process of its own: from now on the system gives it `more` threads and no others. Root has no such limit, and
// another user's processes count: so it becomes a user that nobody is. False: it cannot.
bool limit_threads(int more) {
  const uid_t nobody_else = 1900000000u + static_cast<uid_t>(getpid());
  if (geteuid() == 0 && setresuid(nobody_else, nobody_else, nobody_else) != 0) return false;
  const rlim_t most = static_cast<rlim_t>(own_threads() + more);
  const rlimit limit{.rlim_cur = most, .rlim_max = most};
  if (setrlimit(RLIMIT_NPROC, &limit) != 0) return false;
  std::promise<void> over;  // another limit, or another count, may stand in the way
  const std::shared_future<void> end = over.get_future().share();
  std::vector<std::thread> tried;
  try {
    for (int i = 0; i <= more; ++i) tried.emplace_back([end] { end.wait(); });
  } catch (const std::system_error&) {
  }
  over.set_value();
  for (std::thread& thread : tried) thread.join();
  return static_cast<int>(tried.size()) == more;
}

// What the process says where a spilled file is made with so many threads to be had.
void make_with(int threads) {
  const TemporaryFolder folder;
  chmod(folder.path().c_str(), 0777);
  const auto device = open_device({.choice = DeviceChoice::kCpu, .threads = 1});
  const uint64_t used = device->host_mem().used_bytes();
  if (!limit_threads(threads)) {
    std::fprintf(stderr, "threads cannot be limited here\n");
    _exit(0);
  }
  try {
    const SpillFile file(
        *device,
        {.folder = folder.path(), .bytes = 64 * kKiB, .grain_bytes = 64 * kKiB, .slots = 1, .slot_bytes = 64 * kKiB});
    std::fprintf(stderr, "[made]\n");
  } catch (const Error& error) {
    if (device->host_mem().used_bytes() != used) std::fprintf(stderr, "memory is left: ");
    std::fprintf(stderr, "[%d: %s]\n", static_cast<int>(error.code()), error.what());
  }
  _exit(0);
}

// What can be had of several, of which one is enough.
void start_five_with(int threads) {
  if (!limit_threads(threads)) {
    std::fprintf(stderr, "threads cannot be limited here\n");
    _exit(0);
  }
  try {
    std::promise<void> over;
    std::vector<std::thread> started =
        start_threads(5, "a test's thread", [end = over.get_future().share()](size_t) { end.wait(); });
    std::fprintf(stderr, "[%zu of 5]\n", started.size());
    over.set_value();
    for (std::thread& thread : started) thread.join();
  } catch (const Error& error) {
    std::fprintf(stderr, "[%d: %s]\n", static_cast<int>(error.code()), error.what());
  }
  _exit(0);
}

TEST(StartThread, OneOfSeveralIsEnough) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const ::testing::ExitedWithCode fine(0);
  EXPECT_EXIT(start_five_with(0), fine, "^threads cannot|^\\[4: a test's thread: cannot be started: .*\n.*ulimit -u");
  EXPECT_EXIT(start_five_with(2), fine, "^threads cannot|^\\[2 of 5\\]");
}

// A spilled file has two threads of its own, and those of its queue where there is no io_uring.
TEST(StartThread, ARefusedOneOfASpilledFileIsNamed) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const ::testing::ExitedWithCode fine(0);
  EXPECT_EXIT(make_with(0), fine,
              "^threads cannot|^\\[4: the thread that verifies what is read from disk: cannot be started: ");
  EXPECT_EXIT(
      make_with(1), fine,
      "^threads cannot|^\\[4: (the thread that reads and writes the spilled file|a thread that reads and writes "
      "files): cannot be started: ");
  EXPECT_EXIT(make_with(40), fine, "^threads cannot|^\\[made\\]");
}

}  // namespace
}  // namespace headrace
