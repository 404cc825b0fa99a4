// What the disk tier gives by itself: a file as --spill makes it is written from device memory, then streamed through
// the pinned ring to the device, every byte verified; at the depth that it measures for itself. Beside it what the
// checksums cost: of a core, and of the time; and, asked for, the rate without them, measured just after.
//   spill_bench --folder DIR [--size 4GiB] [--slot 16MiB] [--slots 8] [--seconds 3] [--unverified 0] [--depth N]
//               [--turns] [--body auto|io_uring|threads] [--device auto|cuda|cpu]
// --depth: reads at once at most, instead of what is measured. Prints one JSON object with the machine named. --turns:
// an object once the file is written, and one for each line of stdin, which has it read once more; bench/fio_spill.py
// lets fio read the same file in between.
#include <algorithm>
#include <iostream>
#include <memory>
#include <string>
#include <vector>

#include "bench/figures.h"
#include "bench/machine.h"
#include "bench/program.h"
#include "cache/base.h"
#include "offload/device/device.h"
#include "offload/host/checksum.h"
#include "offload/spill/spill_file.h"
#include "runtime/base/random.h"

namespace headrace::bench {
namespace {

using nlohmann::ordered_json;

constexpr uint64_t kGrain = 2 * kMiB;  // of a segment of an 8B model's layer

struct Settings {
  std::string folder;
  uint64_t bytes = 4 * kGiB, slot_bytes = 16 * kMiB;
  FileQueueBody body = FileQueueBody::kAuto;
  DeviceChoice device = DeviceChoice::kAuto;
  int slots = 8, depth = 0;
  double seconds = 3, unverified_seconds = 0;
  bool turns = false;
};

double gb_per_s(uint64_t bytes, double seconds) { return rounded(static_cast<double>(bytes) / seconds / 1e9); }

uint64_t whole_grains(uint64_t bytes) { return bytes / kGrain * kGrain; }

class Bench {
 public:
  Bench(Device& device, const SpillFileOptions& options)
      : device_(device),
        options_(options),
        file_(device, options),
        buffer_(device.allocate(options.slot_bytes, "the slot on the device")),
        stream_(device.make_stream("copies", StreamRole::kCopy)) {
    for (uint64_t at = 0; at < options.bytes; at += options.slot_bytes) {
      extents_.push_back({at, std::min(options.slot_bytes, options.bytes - at)});
    }
    fill();
  }
  ~Bench() { file_.stop_reads(); }

  double write() {
    const Clock::time_point start = Clock::now();
    for (const Extent& extent : extents_) file_.write(extent, buffer_.data(), *stream_, "write");
    file_.finish_writes();
    const double rate = gb_per_s(options_.bytes, seconds_since(start));
    file_.begin_reads(extents_);
    return rate;
  }
  // After a first second, in which the disk wakes up and the depth is measured.
  ordered_json read(double seconds, double unverified_seconds) {
    file_.set_verify(SpillVerify::kEveryRead);
    stream(1);
    ordered_json out = verified(seconds);
    if (unverified_seconds > 0) out["read_unverified_gb_per_s"] = unverified(unverified_seconds);
    return out;
  }

 private:
  // What is written is no easy guess for a disk that compresses, or leaves zeros out.
  void fill() {
    const PinnedBuffer host = device_.allocate_pinned(options_.slot_bytes, "what is written");
    for (uint64_t i = 0; i < options_.slot_bytes / 8; ++i) host.as<uint64_t>()[i] = random64(7, i);
    stream_->copy(buffer_.data(), host.data(), options_.slot_bytes, Link::kHostToDevice);
    stream_->synchronize();
  }
  double unverified(double seconds) {
    file_.set_verify(SpillVerify::kNothing);
    stream(0.1);
    const Clock::time_point start = Clock::now();
    const uint64_t bytes = stream(seconds);
    return gb_per_s(bytes, seconds_since(start));
  }
  ordered_json verified(double seconds) {
    const SpillStats before = file_.stats();
    const Clock::time_point start = Clock::now();
    const uint64_t bytes = stream(seconds);
    const double took = seconds_since(start);
    const SpillStats stats = file_.stats();
    const double ms = stats.checksum_ms - before.checksum_ms;
    return {{"read_gb_per_s", gb_per_s(bytes, took)},
            {"checksum_gb_per_s", gb_per_s(stats.read_bytes - before.read_bytes, ms / 1e3)},
            {"checksum_share_of_a_core", rounded(ms / 1e3 / took)},
            {"verify_wait_share", rounded((stats.verify_wait_ms - before.verify_wait_ms) / 1e3 / took)},
            {"verify_late_ms", rounded(stats.verify_late_ms - before.verify_late_ms)},
            {"verify_late_share", rounded((stats.verify_late_ms - before.verify_late_ms) / 1e3 / took)},
            {"disk_busy_share", rounded((stats.read_busy_ms - before.read_busy_ms) / 1e3 / took)},
            {"read_depth", stats.reads_at_once},
            {"read_depth_why", stats.depth.why},
            {"read_depth_ms", rounded(stats.depth_ms)},
            {"how", stats.how}};
  }
  uint64_t stream(double seconds) {
    uint64_t bytes = 0;
    for (const Clock::time_point start = Clock::now(); seconds_since(start) < seconds; ++next_) {
      const Extent& extent = extents_[next_ % extents_.size()];
      stream_->copy(buffer_.data(), file_.take(), extent.bytes, Link::kHostToDevice);
      file_.release(*stream_);
      bytes += extent.bytes;
    }
    return bytes;
  }

  Device& device_;
  const SpillFileOptions options_;
  SpillFile file_;
  DeviceBuffer buffer_;
  std::unique_ptr<Stream> stream_;
  std::vector<Extent> extents_;
  size_t next_ = 0;
};

double checksum_in_cache_gb_per_s() {
  const std::vector<std::byte> data(256 * kKiB, std::byte{7});
  const Clock::time_point start = Clock::now();
  uint64_t sum = 0;
  for (int i = 0; i < 4000; ++i) sum ^= checksum(data);
  const double seconds = seconds_since(start);
  return sum == 1 ? 0 : gb_per_s(4000 * data.size(), seconds);
}

ordered_json run(const Settings& s) {
  const std::unique_ptr<Device> device = open_device({.choice = s.device});
  const SpillFileOptions options{.folder = s.folder,
                                 .bytes = whole_grains(s.bytes),
                                 .grain_bytes = kGrain,
                                 .slots = s.slots,
                                 .slot_bytes = whole_grains(s.slot_bytes),
                                 .body = s.body,
                                 .depth = {.depth = s.depth, .why = s.depth > 0 ? "as asked" : ""}};
  Bench bench(*device, options);
  ordered_json out = {{"program", "spill_bench"},        {"machine", machine_json()},
                      {"device", device->name()},        {"file_bytes", options.bytes},
                      {"slots", options.slots},          {"slot_bytes", options.slot_bytes},
                      {"write_gb_per_s", bench.write()}, {"checksum_in_cache_gb_per_s", checksum_in_cache_gb_per_s()}};
  if (!s.turns) {
    out.update(bench.read(s.seconds, s.unverified_seconds));
    return out;
  }
  std::printf("%s\n", out.dump().c_str());
  std::fflush(stdout);
  int turns = 0;
  for (std::string line; std::getline(std::cin, line); ++turns) {
    std::printf("%s\n", bench.read(s.seconds, s.unverified_seconds).dump().c_str());
    std::fflush(stdout);
  }
  return {{"turns", turns}};
}

void add_flags(CLI::App& app, Settings& s) {
  app.add_option("--folder", s.folder, "Where the file is made")->required();
  add_size(app, "--size", &s.bytes, kGrain);
  add_size(app, "--slot", &s.slot_bytes, kGrain);
  app.add_option("--slots", s.slots)->check(CLI::Range(1, 256));
  app.add_option("--depth", s.depth)->check(CLI::Range(0, 256));
  app.add_option("--seconds", s.seconds)->check(CLI::Range(0.1, 60.0));
  app.add_option("--unverified", s.unverified_seconds)->check(CLI::Range(0.0, 60.0));
  app.add_flag("--turns", s.turns);
  add_choice<FileQueueBody>(
      app, "--body", &s.body,
      {{"auto", FileQueueBody::kAuto}, {"io_uring", FileQueueBody::kIoUring}, {"threads", FileQueueBody::kThreads}});
  add_device(app, &s.device);
}

}  // namespace
}  // namespace headrace::bench

int main(int argc, char** argv) {
  using namespace headrace::bench;
  Settings settings;
  CLI::App app("Measures the disk tier", "spill_bench");
  add_flags(app, settings);
  return run_program(
      app, argc, argv, [&] { return run(settings); }, kOneLine);
}
