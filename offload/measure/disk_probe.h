// What a folder's disk gives: reads and writes one after the other and at random places, by the size of a block and by
// how many are under way, as the store does them (offload/disk/file_queue.h): past the page cache, by io_uring with
// file and memory registered. The file is unnamed, so nothing remains however the process ends. Its pages carry
// recognisable content: a read that returns another page is an error. Thread: one.
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
  std::string error{};             // why it was not measured, or not to its end
};

struct DiskProbeOptions {
  std::string folder;
  uint64_t file_bytes = 2 * kGiB;  // at most a quarter of what is free
  double seconds = 0.75;           // of a test, after a fifth of it to warm up
  double layout_seconds = 4;       // that writing the file may take: what is there by then is what is measured on
  std::vector<DiskTest> tests;
  FileQueueBody body = FileQueueBody::kAuto;
  const std::atomic<bool>* interrupt = nullptr;
  std::function<void(const DiskRow& row)> on_row{};
};
std::vector<DiskTest> disk_tests(bool quick);

struct DiskReport {
  std::vector<DiskRow> rows;
  std::string how;  // "io_uring", or the threads in its place, and why
  uint64_t file_bytes = 0;
  std::vector<std::string> notes;  // what was not as it should be, a line each: no O_DIRECT, a full disk, no io_uring
};
// Throws nothing of a disk's: what cannot be measured is a note, and the rest is measured.
DiskReport measure_disk(const DiskProbeOptions& options);

}  // namespace headrace
