// The disk's measurement: every test has a figure, nothing is left in the folder, and each thing that may go wrong is a
// line while the rest is measured.
#include "offload/measure/disk_probe.h"

#include <gtest/gtest.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#include <cerrno>
#include <cstddef>
#include <cstdlib>
#include <filesystem>

#include "tests/support/file_faults.h"
#include "tests/support/temporary_folder.h"

namespace headrace {
namespace {

using testing::ScriptedFaults;

class DiskProbe : public ::testing::Test {
 protected:
  DiskProbeOptions options() {
    DiskProbeOptions o;
    o.folder = folder_.path();
    o.file_bytes = 20 * kMiB;
    o.seconds = 0.02;
    o.tests = {{FileOp::kRead, false, kMiB, 4},
               {FileOp::kWrite, false, 128 * kKiB, 2},
               {FileOp::kRead, true, 4 * kKiB, 16},
               {FileOp::kWrite, true, 64 * kKiB, 1}};
    return o;
  }
  static bool noted(const DiskReport& report, const std::string& part) {
    for (const std::string& note : report.notes) {
      if (note.find(part) != std::string::npos) return true;
    }
    return false;
  }
  TemporaryFolder folder_;
};

TEST_F(DiskProbe, MeasuresEveryTestAndLeavesNothing) {
  for (const FileQueueBody body : {FileQueueBody::kAuto, FileQueueBody::kThreads}) {
    DiskProbeOptions o = options();
    o.body = body;
    int seen = 0;
    o.on_row = [&](const DiskRow&) {
      ++seen;
      EXPECT_TRUE(std::filesystem::is_empty(folder_.path()));  // even now
    };
    const DiskReport report = measure_disk(o);
    ASSERT_EQ(report.rows.size(), o.tests.size());
    EXPECT_EQ(seen, 4);
    EXPECT_EQ(report.file_bytes, 20 * kMiB);
    EXPECT_FALSE(report.how.empty());
    for (const DiskRow& row : report.rows) {
      EXPECT_EQ(row.error, "");
      EXPECT_GT(row.gb_per_s, 0) << disk_test_name(row.test);
      EXPECT_NEAR(row.gb_per_s, row.per_s * static_cast<double>(row.test.block_bytes) * 1e-9, 1e-9);
    }
  }
  EXPECT_TRUE(std::filesystem::is_empty(folder_.path()));
}

TEST_F(DiskProbe, AFolderThatIsNotThereOrMayNotBeWrittenIsALine) {
  DiskProbeOptions o = options();
  o.folder = folder_ / "gone";
  DiskReport report = measure_disk(o);
  EXPECT_TRUE(report.rows.empty());
  EXPECT_TRUE(noted(report, "No such file or directory"));
  const ScriptedFaults no_permission(testing::failing(FileOp::kOpen, 0, EACCES));
  report = measure_disk(options());
  EXPECT_TRUE(report.rows.empty());
  EXPECT_TRUE(noted(report, "Permission denied")) << report.notes.at(0);
}

// As a container does: the system call says EPERM. In a process of its own, which cannot take that back.
void deny_io_uring() {
  constexpr sock_filter kFilter[] = {
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, __NR_io_uring_setup, 0, 1),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
  };
  const sock_fprog program = {.len = 4, .filter = const_cast<sock_filter*>(kFilter)};
  if (::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0 || ::prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) != 0) {
    std::_Exit(77);
  }
}

TEST_F(DiskProbe, WhereIoUringIsNotAllowedThreadsMeasureAndALineSaysSo) {
  const auto measured = [&] {
    deny_io_uring();
    const DiskReport report = measure_disk(options());
    bool all = report.rows.size() == 4;
    for (const DiskRow& row : report.rows) all = all && row.error.empty() && row.gb_per_s > 0;
    const bool said = noted(report, "io_uring is not allowed here: measured with ") && noted(report, "not permitted");
    std::_Exit(all && said ? 0 : 1);
  };
  const auto good = [](int status) {  // 77: this sandbox lets nobody filter
    return WIFEXITED(status) && (WEXITSTATUS(status) == 0 || WEXITSTATUS(status) == 77);
  };
  EXPECT_EXIT(measured(), good, "");
}

TEST_F(DiskProbe, AFullDiskEndsTheWritingAndNotTheTests) {
  const ScriptedFaults full([](FileOp op, const std::string&, uint64_t offset, uint64_t) {
    return FileFault{.error = op == FileOp::kWrite && offset >= 40 * kMiB ? ENOSPC : 0};
  });
  DiskProbeOptions o = options();
  o.file_bytes = 64 * kMiB;
  const DiskReport report = measure_disk(o);
  EXPECT_TRUE(noted(report, "No space left on device")) << (report.notes.empty() ? "" : report.notes[0]);
  EXPECT_TRUE(noted(report, "measured on the first "));
  EXPECT_EQ(report.file_bytes, 40 * kMiB);
  ASSERT_EQ(report.rows.size(), 4u);
  for (const DiskRow& row : report.rows) EXPECT_EQ(row.error, "");
}

TEST_F(DiskProbe, ATestThatFailsLeavesTheOthers) {
  const ScriptedFaults faulty([](FileOp op, const std::string&, uint64_t, uint64_t bytes) {
    return FileFault{.error = op == FileOp::kRead && bytes == 4096 ? EIO : 0};
  });
  const DiskReport report = measure_disk(options());
  ASSERT_EQ(report.rows.size(), 4u);
  EXPECT_EQ(report.rows[0].error, "");
  EXPECT_NE(report.rows[2].error.find("Input/output error"), std::string::npos) << report.rows[2].error;
  EXPECT_EQ(report.rows[3].error, "");
}

TEST_F(DiskProbe, WhatIsReadIsWhatWasWritten) {
  const ScriptedFaults flip(nullptr, [](uint64_t offset, std::span<std::byte> data) {
    if (offset % (2 * kMiB) == 0) data[4096 + 3] ^= std::byte{1};
  });
  const DiskReport report = measure_disk(options());
  ASSERT_EQ(report.rows.size(), 4u);
  EXPECT_NE(report.rows[0].error.find("returned other data than was written there"), std::string::npos)
      << report.rows[0].error;
}

TEST_F(DiskProbe, AnInterruptEndsItAtOnce) {
  std::atomic<bool> interrupt{false};
  DiskProbeOptions o = options();
  o.interrupt = &interrupt;
  o.on_row = [&](const DiskRow&) { interrupt = true; };
  EXPECT_EQ(measure_disk(o).rows.size(), 1u);
}

}  // namespace
}  // namespace headrace
