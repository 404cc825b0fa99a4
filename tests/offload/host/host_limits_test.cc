#include "offload/host/host_limits.h"

#include <gtest/gtest.h>
#include <sched.h>
#include <sys/resource.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <string>

#include "cache/base.h"
#include "tests/support/sanitized.h"

namespace headrace {
namespace {

namespace fs = std::filesystem;

// A planted /proc and /sys. The cores come from the real machine, so a quota is tested with 1, which every machine has.
class PlantedHost : public ::testing::Test {
 protected:
  void SetUp() override {
    root_ = fs::temp_directory_path() /
            str("headrace_host_", ::getpid(), "_", ::testing::UnitTest::GetInstance()->current_test_info()->name());
    write("proc/meminfo", "MemTotal:        8388608 kB\nMemFree:          100 kB\nMemAvailable:    6291456 kB\n");
  }
  void TearDown() override { fs::remove_all(root_); }
  void write(const std::string& path, const std::string& text) {
    fs::create_directories((root_ / path).parent_path());
    std::ofstream(root_ / path) << text;
  }
  HostLimits read() const { return read_host_limits(root_.string()); }

  fs::path root_;
};

int machine_cores() {
  cpu_set_t set;
  CPU_ZERO(&set);
  return sched_getaffinity(0, sizeof set, &set) == 0 ? CPU_COUNT(&set) : 0;
}

TEST_F(PlantedHost, WithoutGroupsIsTheMachine) {
  EXPECT_EQ(read().total_bytes, 8 * kGiB);
  EXPECT_EQ(read().available_bytes, 6 * kGiB);
  EXPECT_EQ(read().cores, machine_cores());
  EXPECT_EQ(read().default_host_mem(), 6 * kGiB / 5 * 3);
}

// What the system refuses is said as it is: a process without a free descriptor has a /proc all the same.
TEST_F(PlantedHost, TooFewDescriptorsAreSaid) {
  if (testing::kSanitized) GTEST_SKIP() << "UBSan opens a pipe to check an object's type";
  rlimit before{};
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &before), 0);
  const rlimit none{.rlim_cur = 0, .rlim_max = before.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &none), 0);
  std::string said;
  ExitCode code = ExitCode::kDone;
  try {
    read();
  } catch (const Error& error) {
    said = error.what();
    code = error.code();
  }
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &before), 0);
  EXPECT_NE(said.find("proc/meminfo: cannot be opened: Too many open files"), std::string::npos) << said;
  EXPECT_NE(said.find("ulimit -n"), std::string::npos) << said;
  EXPECT_EQ(code, ExitCode::kDoesNotFit);
}

TEST_F(PlantedHost, V2LimitsCount) {
  write("proc/self/cgroup", "0::/user/job\n");
  write("sys/fs/cgroup/user/job/memory.max", "2147483648\n");
  write("sys/fs/cgroup/user/job/memory.current", "1073741824\n");
  write("sys/fs/cgroup/user/job/memory.stat", "anon 5\ninactive_file 536870912\nactive_file 7\n");
  write("sys/fs/cgroup/user/job/cpu.max", "50000 100000\n");
  EXPECT_EQ(read().total_bytes, 2 * kGiB);
  EXPECT_EQ(read().available_bytes, 2 * kGiB - 512 * kMiB);
  EXPECT_EQ(read().cores, 1);
}

TEST_F(PlantedHost, V2LimitOfAnAncestorCounts) {
  write("proc/self/cgroup", "0::/user/job\n");
  write("sys/fs/cgroup/user/job/memory.max", "max\n");
  write("sys/fs/cgroup/user/job/cpu.max", "max 100000\n");
  write("sys/fs/cgroup/user/memory.max", "1073741824\n");
  write("sys/fs/cgroup/user/cpu.max", "100000 100000\n");
  EXPECT_EQ(read().total_bytes, kGiB);
  EXPECT_EQ(read().available_bytes, kGiB);
  EXPECT_EQ(read().cores, 1);
}

TEST_F(PlantedHost, InAContainerTheRootIsTheGroup) {
  write("proc/self/cgroup", "0::/\n");
  write("sys/fs/cgroup/memory.max", "1073741824\n");
  EXPECT_EQ(read().total_bytes, kGiB);
}

TEST_F(PlantedHost, V1LimitsCount) {
  write("proc/self/cgroup", "4:memory:/job\n3:cpuacct,cpu:/job\n0::/\n");
  write("sys/fs/cgroup/memory/job/memory.limit_in_bytes", "2147483648\n");
  write("sys/fs/cgroup/memory/job/memory.usage_in_bytes", "1073741824\n");
  write("sys/fs/cgroup/memory/job/memory.stat", "inactive_file 1\ntotal_inactive_file 1073741824\n");
  write("sys/fs/cgroup/cpu/job/cpu.cfs_quota_us", "100000\n");
  write("sys/fs/cgroup/cpu/job/cpu.cfs_period_us", "100000\n");
  EXPECT_EQ(read().total_bytes, 2 * kGiB);
  EXPECT_EQ(read().available_bytes, 2 * kGiB);
  EXPECT_EQ(read().cores, 1);
}

TEST_F(PlantedHost, V1WithoutLimitsIsTheMachine) {
  write("proc/self/cgroup", "4:memory:/job\n3:cpu:/job\n");
  write("sys/fs/cgroup/memory/job/memory.limit_in_bytes", "9223372036854771712\n");
  write("sys/fs/cgroup/memory/job/memory.usage_in_bytes", "1073741824\n");
  write("sys/fs/cgroup/cpu/job/cpu.cfs_quota_us", "-1\n");
  write("sys/fs/cgroup/cpu/job/cpu.cfs_period_us", "100000\n");
  EXPECT_EQ(read().total_bytes, 8 * kGiB);
  EXPECT_EQ(read().available_bytes, 6 * kGiB);
  EXPECT_EQ(read().cores, machine_cores());
}

TEST_F(PlantedHost, AFullGroupHasNothingAvailable) {
  write("proc/self/cgroup", "0::/\n");
  write("sys/fs/cgroup/memory.max", "1073741824\n");
  write("sys/fs/cgroup/memory.current", "1073745920\n");
  EXPECT_EQ(read().available_bytes, 0u);
}

TEST_F(PlantedHost, WithoutMeminfoIsAnError) {
  fs::remove(root_ / "proc/meminfo");
  EXPECT_THROW(read(), Error);
}

TEST_F(PlantedHost, ALimitAboveTheMachineIsRefusedInNumbers) {
  check_against(read(), "--host-mem", 8 * kGiB);
  check_against(read(), "--host-mem", 0);
  try {
    check_against(read(), "--host-mem", 9 * kGiB);
    FAIL() << "was not refused";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::kDoesNotFit);
    EXPECT_EQ(error.info().where, "--host-mem");
    EXPECT_EQ(error.info().what, "9.00 GiB is more than this machine has: 8.00 GiB, 6.00 GiB of them available");
  }
}

TEST(HostLimits, OfThisMachineMakeSense) {
  const HostLimits limits = read_host_limits();
  EXPECT_GE(limits.total_bytes, 64 * kMiB);
  EXPECT_LE(limits.available_bytes, limits.total_bytes);
  EXPECT_GE(limits.cores, 1);
  EXPECT_LE(limits.cores, machine_cores());
}

}  // namespace
}  // namespace headrace
