// Measures a folder's disk: sequential and random reads and writes, by block size and queue depth, with the store's own
// queue (offload/disk/file_queue.h): past the page cache, by io_uring with file and memory registered. The file is
// unnamed, so nothing remains however the process ends. Its pages are stamped; a read that returns another page is an
// error. Thread: one.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "cache/base.h"
#include "offload/disk/file_queue.h"

namespace headrace {

struct DiskTest {
  FileOp op = FileOp::kRead;  // or kWrite
  bool random = false;
  uint64_t block_bytes = 0;
  int depth = 1;
  bool operator==(const DiskTest&) const = default;
};
std::string disk_test_name(const DiskTest& test);  // "random read"

struct DiskRow {
  DiskTest test;
  double gb_per_s = 0, per_s = 0;  // blocks a second
  std::string error{};             // why it was not measured, or not completely
};

struct DiskProbeOptions {
  std::string folder;
  uint64_t file_bytes = 2 * kGiB;  // at most a quarter of the free space
  double seconds = 0.75;           // per test, after a warm-up of a fifth of it
  double layout_seconds = 4;       // time limit for writing the file; tests use the part that was written
  std::vector<DiskTest> tests;
  FileQueueBody body = FileQueueBody::kAuto;
  const std::atomic<bool>* interrupt = nullptr;
  std::function<void(const DiskRow& row)> on_row{};
};
std::vector<DiskTest> disk_tests(bool quick);

struct DiskReport {
  std::vector<DiskRow> rows;
  std::string how;  // "io_uring", or the threads instead, and why
  uint64_t file_bytes = 0;
  std::vector<std::string> notes;  // deviations, one line each: no O_DIRECT, a full disk, no io_uring
};
// Does not throw disk errors: a failed measurement is a note, and the others continue.
DiskReport measure_disk(const DiskProbeOptions& options);

}  // namespace headrace
