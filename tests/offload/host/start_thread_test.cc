// A thread that the system refuses is an Error that says which, and nothing hangs.
#include "offload/host/start_thread.h"

#include <gtest/gtest.h>
#include <pthread.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <fstream>
#include <future>
#include <new>
#include <system_error>

#include "offload/device/device.h"
#include "offload/host/pages.h"
#include "offload/measure/link_bandwidth.h"
#include "offload/spill/spill_file.h"
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

// The tests run where RLIMIT_STACK is what the machine has, 8 MiB as a rule: a thread of ours has its own size. (What
// the program does under a small limit: tests/cli/limits_program_test.cc.)
TEST(StartThread, HasAStackOfItsOwnSize) {
  size_t bytes = 0;
  start_thread("a test", [&] {
    pthread_attr_t attributes;
    ASSERT_EQ(pthread_getattr_np(pthread_self(), &attributes), 0);
    pthread_attr_getstacksize(&attributes, &bytes);
    pthread_attr_destroy(&attributes);
  }).join();
  EXPECT_EQ(bytes, kThreadStackBytes);
}

// There is memory for so many of its copies.
class Scarce {
 public:
  Scarce(std::atomic<int>* left, std::atomic<int>* ran) : left_(left), ran_(ran) {}
  Scarce(const Scarce& other) : left_(other.left_), ran_(other.ran_) {
    if (--*left_ < 0) throw std::bad_alloc();
  }
  Scarce(Scarce&&) noexcept = default;
  void operator()(size_t) const { ++*ran_; }

 private:
  std::atomic<int>*left_, *ran_;
};

TEST(StartThread, NoMemoryForOneIsAsNoThread) {
  std::atomic<int> ran = 0, left = 2;
  std::vector<std::thread> threads = start_threads(5, "a test's thread", Scarce(&left, &ran));
  EXPECT_EQ(threads.size(), 2u);
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(ran.load(), 2);
  left = 0;
  try {
    start_threads(5, "a test's thread", Scarce(&left, &ran));
    ADD_FAILURE() << "started";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::kDoesNotFit);
    EXPECT_NE(std::string(error.what()).find("a test's thread: cannot be started: no memory"), std::string::npos)
        << error.what();
  }
}

int own_threads() {
  std::ifstream status("/proc/self/status");
  for (std::string word; status >> word;) {
    int count = 0;
    if (word == "Threads:" && status >> count) return count;
  }
  return 0;
}

// One that has been joined counts until the system is done with it.
void wait_for_threads(int count) {
  for (int i = 0; own_threads() > count && i < 2000; ++i) std::this_thread::sleep_for(std::chrono::milliseconds(1));
}

// For a process of its own: from now on the system gives it `more` threads and no others. Root has no such limit, and
// another user's processes count: so it becomes a user that nobody is. False: it cannot.
bool limit_threads(int more) {
  const uid_t nobody_else = 1900000000u + static_cast<uid_t>(getpid());
  if (geteuid() == 0 && setresuid(nobody_else, nobody_else, nobody_else) != 0) return false;
  int own = 0;  // with the first thread TSan starts one of its own, which counts
  std::thread([&] { own = own_threads() - 1; }).join();
  wait_for_threads(own);
  const rlim_t most = static_cast<rlim_t>(own + more);
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
  wait_for_threads(own);
  return static_cast<int>(tried.size()) == more;
}

// Tried in a process of its own.
bool threads_can_be_limited() {
  const pid_t child = fork();
  if (child == 0) _exit(limit_threads(2) ? 0 : 1);
  int status = 1;
  return child > 0 && waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

class FewThreads : public ::testing::Test {
 protected:
  void SetUp() override {
    GTEST_FLAG_SET(death_test_style, "threadsafe");
    if (!threads_can_be_limited()) GTEST_SKIP() << "threads cannot be limited here (RLIMIT_NPROC of a user of our own)";
  }
  const ::testing::ExitedWithCode fine_{0};
};

void limit_threads_or_end(int more) {
  if (limit_threads(more)) return;
  std::fprintf(stderr, "threads cannot be limited\n");
  _exit(1);
}

// What the process says where a spilled file is made with so many threads to be had.
void make_with(int threads) {
  const auto device = open_device({.choice = DeviceChoice::kCpu, .threads = 1});
  const uint64_t used = device->host_mem().used_bytes();
  limit_threads_or_end(threads);
  try {
    const TemporaryFolder folder;  // of the user that it is now
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
  limit_threads_or_end(threads);
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

// How many of the pages that four threads were to touch are resident.
void touch_with(int threads) {
  constexpr uint64_t kBytes = 64 * kMiB, kPages = kBytes / kPageBytes;
  void* const data = map_pages(kBytes);
  limit_threads_or_end(threads);
  touch_pages(data, kBytes, 4);
  std::vector<unsigned char> resident(kPages);
  if (mincore(data, kBytes, resident.data()) != 0) _exit(1);
  const auto count = std::count_if(resident.begin(), resident.end(), [](unsigned char page) { return page & 1; });
  std::fprintf(stderr, "[%d of %d pages]\n", static_cast<int>(count), static_cast<int>(kPages));
  _exit(0);
}

// How the pageable copies of a link are measured, both ways at once.
void measure_with(int threads) {
  const auto device = open_device({.choice = DeviceChoice::kCpu, .threads = 1});
  LinkMeter meter(*device, kMiB);
  limit_threads_or_end(threads);
  try {
    std::fprintf(stderr, "[%d rounds]\n", meter.measure_pageable(LinkUse::kBoth, kMiB, kMiB, 2).rounds);
  } catch (const Error& error) {
    std::fprintf(stderr, "[%d: %s]\n", static_cast<int>(error.code()), error.what());
  }
  _exit(0);
}

TEST_F(FewThreads, OneOfSeveralIsEnough) {
  EXPECT_EXIT(start_five_with(0), fine_, "^\\[4: a test's thread: cannot be started: .*\n.*ulimit -u");
  EXPECT_EXIT(start_five_with(2), fine_, "^\\[2 of 5\\]");
}

// A spilled file has two threads of its own, and those of its queue where there is no io_uring.
TEST_F(FewThreads, ARefusedOneOfASpilledFileIsNamed) {
  EXPECT_EXIT(make_with(0), fine_, "^\\[4: the thread that verifies what is read from disk: cannot be started: ");
  EXPECT_EXIT(make_with(1), fine_,
              "^\\[4: (the thread that reads and writes the spilled file|a thread that reads and writes files): cannot "
              "be started: ");
  EXPECT_EXIT(make_with(40), fine_, "^\\[made\\]");
}

TEST_F(FewThreads, PagesAreTouchedByThoseThereAre) {
  for (const int threads : {0, 1, 40}) EXPECT_EXIT(touch_with(threads), fine_, "^\\[16384 of 16384 pages\\]");
}

TEST_F(FewThreads, ARefusedOneOfTheLinksMeasurementIsNamed) {
  EXPECT_EXIT(measure_with(0), fine_, "^\\[4: the thread that copies to the host to measure the link: cannot be ");
  EXPECT_EXIT(measure_with(1), fine_, "^\\[2 rounds\\]");
}

}  // namespace
}  // namespace headrace
