#include "offload/measure/disk_probe.h"

#include <algorithm>
#include <cstring>
#include <optional>
#include <utility>

#include "cache/base.h"
#include "offload/host/clock.h"
#include "offload/host/pages.h"

namespace headrace {
namespace {

constexpr uint64_t kMaxMemory = 64 * kMiB;  // all blocks in flight
constexpr uint64_t kMaxBlock = 4 * kMiB;    // one more block is checked or prepared beside them
constexpr uint64_t kLayoutBlock = kMiB;
constexpr int kLayoutDepth = 16;
constexpr uint64_t kMinFile = 16 * kMiB;

uint64_t mixed(uint64_t x) {
  x ^= x >> 33;
  x *= 0xff51afd7ed558ccdull;
  x ^= x >> 33;
  x *= 0xc4ceb9fe1a85ec53ull;
  return x ^ x >> 33;
}

// The first word of each page of the file identifies the page.
uint64_t stamp_of(uint64_t page) { return mixed(page + 1); }

void stamp(std::byte* data, uint64_t offset, uint64_t bytes) {
  for (uint64_t at = 0; at < bytes; at += kPageBytes) {
    const uint64_t word = stamp_of((offset + at) / kPageBytes);
    std::memcpy(data + at, &word, sizeof word);
  }
}

bool stamped(const std::byte* data, uint64_t offset, uint64_t bytes) {
  for (uint64_t at = 0; at < bytes; at += kPageBytes) {
    uint64_t word = 0;
    std::memcpy(&word, data + at, sizeof word);
    if (word != stamp_of((offset + at) / kPageBytes)) return false;
  }
  return true;
}

class Probe {
 public:
  explicit Probe(const DiskProbeOptions& options)
      : options_(options), buffers_(kMaxMemory + kMaxBlock, "for blocks of a disk") {
    uint64_t* const words = buffers_.as<uint64_t>();
    for (uint64_t i = 0; i < buffers_.bytes() / 8; ++i) words[i] = mixed(i);
  }
  DiskReport run();

 private:
  void open();
  void lay_out();
  std::span<std::byte> memory() const { return {buffers_.data(), buffers_.bytes()}; }
  bool stop() const { return options_.interrupt != nullptr && options_.interrupt->load(std::memory_order_relaxed); }
  DiskRow measure(const DiskTest& test);
  struct Moved {
    uint64_t blocks = 0;
    double seconds = 0;
  };
  // Blocks of [0, limit) until the time is up, or one pass if `once`.
  Moved move(FileQueue& queue, const DiskTest& test, uint64_t limit, double seconds, bool once);
  FileRequest made(const DiskTest& test, uint64_t number, uint64_t places, uint64_t tag);
  void check_read(const FileRequest& request) const;
  void note_written(uint64_t place, uint64_t block);

  const DiskProbeOptions& options_;
  // Of all requests, filled with incompressible data. In huge pages if possible, like the store's memory: a large block
  // in small pages has more segments than many disks accept in one request.
  const MappedPages buffers_;
  File file_;
  DiskReport report_;
  uint64_t written_ = 0, drawn_ = 0;
  std::vector<bool> there_;  // which blocks of the layout are written
};

void Probe::open() {
  file_ = File::temporary(options_.folder, FileCaching::kDirect);
  if (!file_.direct()) {
    report_.notes.push_back(
        options_.folder +
        ": its file system does not support O_DIRECT: the figures are those of the page cache, not of a disk");
  }
  if (options_.file_bytes < kMinFile) {
    throw_error(
        ExitCode::kStorage, options_.folder,
        str("a file of ", format_bytes(options_.file_bytes), " is too small: a test takes ", format_bytes(kMinFile)));
  }
  const uint64_t room = folder_free_bytes(options_.folder) / 4 / kLayoutBlock * kLayoutBlock;
  report_.file_bytes = std::min(options_.file_bytes, room);
  if (report_.file_bytes < kMinFile) {
    throw_error(
        ExitCode::kStorage, options_.folder,
        str("has ", format_bytes(4 * room), " free: a test takes a quarter, and at least ", format_bytes(kMinFile)),
        "Free some of it, or name another folder.");
  }
}

FileRequest Probe::made(const DiskTest& test, uint64_t number, uint64_t places, uint64_t tag) {
  const uint64_t block = test.block_bytes, place = (test.random ? mixed(++drawn_) : number) % places;
  std::byte* const data = buffers_.data() + tag * block;
  if (test.op == FileOp::kWrite) stamp(data, place * block, block);
  return {.op = test.op, .offset = place * block, .data = data, .bytes = block, .tag = tag};
}

void Probe::check_read(const FileRequest& r) const {
  if (r.op == FileOp::kRead && !stamped(r.data, r.offset, r.bytes)) {
    throw_error(ExitCode::kStorage, options_.folder,
                str("reading ", r.bytes, " bytes at offset ", r.offset, " returned other data than was written there"),
                "The disk or its cable is faulty: do not keep anything there.");
  }
}

// Prepares the next request and checks the last one while others are in flight: the disk waits for neither.
Probe::Moved Probe::move(FileQueue& queue, const DiskTest& test, uint64_t limit, double seconds, bool once) {
  const uint64_t block = test.block_bytes, places = limit / block;
  uint64_t started = 0, done = 0;
  std::vector<uint64_t> free;  // tags: a block's place in the buffers
  for (int i = test.depth; i >= 0; --i) free.push_back(static_cast<uint64_t>(i));
  const auto next_free = [&free] {
    const uint64_t tag = free.back();
    free.pop_back();
    return tag;
  };
  const HostClock::time_point start = HostClock::now();
  FileRequest next = made(test, started, places, next_free());
  std::optional<FileRequest> last;
  for (;;) {
    const bool more = seconds_since(start) < seconds && !(once && started == places) && !stop();
    const bool submits = more && !queue.full();
    if (submits) queue.submit(next), ++started;
    if (last) {
      check_read(*last);
      free.push_back(last->tag);
      last.reset();
    }
    if (submits) {
      next = made(test, started, places, next_free());
      continue;
    }
    if (queue.pending() == 0) break;
    const FileDone finished = queue.wait();
    queue.check(finished);
    last = finished.request;
    ++done;
    if (once) note_written(last->offset / block, block);
  }
  return {.blocks = done, .seconds = seconds_since(start)};
}

// Tracks how much is written without gaps; writes complete in any order.
void Probe::note_written(uint64_t place, uint64_t block) {
  if (there_.size() <= place) there_.resize(place + 1);
  there_[place] = true;
  while (written_ / block < there_.size() && there_[written_ / block]) written_ += block;
}

// Writes the file once from its beginning, for the tests to read. A full disk ends the writing, not the tests.
void Probe::lay_out() {
  const DiskTest test{.op = FileOp::kWrite, .random = false, .block_bytes = kLayoutBlock, .depth = kLayoutDepth};
  const auto queue = FileQueue::open(file_, {.depth = test.depth, .body = options_.body, .memory = memory()});
  report_.how = queue->describe();
  if (!report_.how.starts_with("io_uring") && options_.body == FileQueueBody::kAuto) {
    report_.notes.push_back("io_uring is not allowed here: measured with " + report_.how);
  }
  try {
    move(*queue, test, report_.file_bytes, options_.layout_seconds, /*once=*/true);
  } catch (const Error& error) {
    while (queue->pending() > 0) {  // other requests in flight
      const FileDone done = queue->wait();
      if (done.error == 0) note_written(done.request.offset / kLayoutBlock, kLayoutBlock);
    }
    if (written_ < kMinFile) throw;
    report_.notes.push_back(str(first_line(error), "; measured on the first ", format_bytes(written_)));
  }
  report_.file_bytes = written_;
  if (written_ < kMinFile && !stop()) {
    throw_error(ExitCode::kStorage, options_.folder,
                str("took only ", format_bytes(written_), " in ", options_.layout_seconds, " s"),
                "It is too slow to be measured.");
  }
}

DiskRow Probe::measure(const DiskTest& test) {
  DiskRow row{.test = test};
  try {
    const auto queue = FileQueue::open(file_, {.depth = test.depth, .body = options_.body, .memory = memory()});
    move(*queue, test, written_, options_.seconds / 5, /*once=*/false);  // warm-up
    const Moved moved = move(*queue, test, written_, options_.seconds, /*once=*/false);
    row.per_s = static_cast<double>(moved.blocks) / moved.seconds;
    row.gb_per_s = row.per_s * static_cast<double>(test.block_bytes) * 1e-9;
  } catch (const Error& error) {
    row.error = first_line(error);
  }
  return row;
}

DiskReport Probe::run() {
  try {
    open();
    lay_out();
  } catch (const Error& error) {
    report_.notes.push_back(first_line(error));
    return std::move(report_);
  }
  for (const DiskTest& test : options_.tests) {
    if (stop()) break;
    if (test.block_bytes * static_cast<uint64_t>(test.depth) > kMaxMemory || test.block_bytes > kMaxBlock) continue;
    if (test.block_bytes > written_) continue;
    report_.rows.push_back(measure(test));
    if (options_.on_row) options_.on_row(report_.rows.back());
  }
  return std::move(report_);
}

}  // namespace

std::string disk_test_name(const DiskTest& test) {
  return str(test.random ? "random " : "sequential ", test.op == FileOp::kRead ? "read" : "write");
}

std::vector<DiskTest> disk_tests(bool quick) {
  std::vector<DiskTest> tests;
  for (const FileOp op : {FileOp::kRead, FileOp::kWrite}) {
    for (const uint64_t block :
         quick ? std::vector<uint64_t>{kMiB} : std::vector<uint64_t>{128 * kKiB, kMiB, 4 * kMiB}) {
      std::vector<int> depths = quick ? std::vector<int>{8} : std::vector<int>{1, 8, 16};
      // As --spill reads, with fewer and with more at once.
      if (!quick && op == FileOp::kRead && block == kMiB) depths = {1, 4, 8, 16, 32, 64};
      for (const int depth : depths) tests.push_back({op, false, block, depth});
    }
    for (const uint64_t block : quick ? std::vector<uint64_t>{4 * kKiB} : std::vector<uint64_t>{4 * kKiB, 64 * kKiB}) {
      for (const int depth : quick ? std::vector<int>{1, 32} : std::vector<int>{1, 8, 32, 128}) {
        tests.push_back({op, true, block, depth});
      }
    }
  }
  return tests;
}

DiskReport measure_disk(const DiskProbeOptions& options) { return Probe(options).run(); }

}  // namespace headrace
