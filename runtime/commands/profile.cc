#include "runtime/commands/profile.h"

#include <algorithm>
#include <cmath>
#include <ctime>
#include <memory>
#include <utility>

#include "cache/base.h"
#include "cache/gpu_specs.h"
#include "offload/disk/file.h"
#include "offload/host/clock.h"
#include "offload/measure/disk_probe.h"
#include "offload/measure/host_probe.h"
#include "offload/measure/link_bandwidth.h"
#include "runtime/commands/compute_probe.h"

namespace headrace {
namespace {

constexpr uint64_t kMinCopy = 64 * kKiB, kMaxCopy = kGiB;
constexpr uint64_t kLargeCopy = 16 * kMiB;  // a link reaches its peak from here on
constexpr uint64_t kScattered = 16 * kMiB;  // bytes of pages per round
constexpr double kAsLongAsItTakes = 3600;

const char* use_text(LinkUse use) {
  return use == LinkUse::kToDevice ? "to device" : use == LinkUse::kToHost ? "to host" : "both at once";
}

std::string now_text() {
  const std::time_t now = std::time(nullptr);
  std::tm utc{};
  gmtime_r(&now, &utc);
  char text[32];
  std::strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%SZ", &utc);
  return text;
}

class Profiler {
 public:
  Profiler(const ProfileOptions& options, const ProfileHooks& hooks) : options_(options), hooks_(hooks) {}
  ProfileReport run();

 private:
  void open();
  void link();
  void pinned(LinkMeter& meter, uint64_t most);
  void pageable(LinkMeter& meter, uint64_t most);
  void scattered(LinkMeter& meter, uint64_t most);
  void small(LinkMeter& meter, uint64_t most);
  void compute();
  void host();
  void disk();
  void connection();

  // Measures a group of figures; a failure is a note.
  template <typename Work>
  void group(ProfileGroup which, const Work& work) {
    if (stop()) return;
    group_ = which;
    if (hooks_.on_group) hooks_.on_group(which);
    try {
      work();
    } catch (const Error& error) {
      if (error.code() == ExitCode::kInternal) throw;  // the received data is wrong
      report_.notes.push_back(str(profile_group_title(which, report_.gpu), ": ", first_line(error)));
    }
  }
  void add(ProfileRow row) {
    row.group = group_;
    report_.rows.push_back(std::move(row));
    if (hooks_.on_row) hooks_.on_row(report_);
  }
  void add_peak(const std::string& test, const LinkPeak& peak, std::string same_as = "") {
    add({.test = test,
         .bytes = peak.copy_bytes,
         .value = peak.gb_per_s,
         .low = peak.slowest,
         .high = peak.fastest,
         .same_as = std::move(same_as)});
  }
  bool stop() const { return options_.interrupt != nullptr && options_.interrupt->load(std::memory_order_relaxed); }
  int rounds() const { return options_.quick ? 3 : 5; }
  uint64_t round_bytes() const {
    if (report_.gpu) return options_.quick ? 64 * kMiB : 256 * kMiB;
    return options_.quick ? 16 * kMiB : 64 * kMiB;
  }

  const ProfileOptions& options_;
  const ProfileHooks& hooks_;
  std::unique_ptr<Device> device_;
  ProfileGroup group_ = ProfileGroup::kPinned;
  ProfileReport report_;
};

void Profiler::open() {
  DeviceOptions untraced = options_.device;
  untraced.trace_path.clear();
  device_ = open_device(untraced);
  if (hooks_.on_device) hooks_.on_device(*device_);
  report_.machine = read_machine();
  report_.device = device_->name();
  report_.driver = device_->driver();
  report_.gpu = device_->backend() == Backend::kCuda;
  report_.quick = options_.quick;
  report_.measured = now_text();
}

// Sizes from 64 KiB on, each four times the previous (quick: sixteen times).
template <typename Measure>
void for_sizes(uint64_t most, bool quick, const Measure& measure) {
  for (uint64_t bytes = kMinCopy; bytes <= most; bytes *= quick ? 16 : 4) measure(bytes);
}

void Profiler::pinned(LinkMeter& meter, uint64_t most) {
  for (const LinkUse use : kLinkUses) {
    for_sizes(most, options_.quick, [&](uint64_t bytes) {
      if (stop()) return;
      const bool named = bytes >= kMiB && report_.gpu && use != LinkUse::kBoth;  // its sizes are whole MiB
      add_peak(use_text(use), meter.measure(use, bytes, round_bytes(), rounds()),
               named ? str("nvbandwidth ", use == LinkUse::kToDevice ? "host_to_device" : "device_to_host",
                           "_memcpy_ce -b ", bytes / kMiB)
                     : "");
    });
  }
}

void Profiler::pageable(LinkMeter& meter, uint64_t most) {
  for (const LinkUse use : kLinkUses) {
    for_sizes(std::min(most, options_.quick ? kLargeCopy : kMaxCopy), options_.quick, [&](uint64_t bytes) {
      if (stop()) return;
      add_peak(use_text(use), meter.measure_pageable(use, bytes, round_bytes() / 4, rounds()));
    });
  }
}

void Profiler::scattered(LinkMeter& meter, uint64_t most) {
  const uint64_t round = std::min(kScattered, most / 2);
  for (const ScatterWay way : kScatterWays) {
    for (uint64_t page = 4 * kKiB; page <= 256 * kKiB && page <= round; page *= options_.quick ? 8 : 4) {
      if (stop()) return;
      add_peak(scatter_way_name(way), meter.measure_scattered(way, page, round, rounds()));
    }
  }
}

void Profiler::small(LinkMeter& meter, uint64_t most) {
  group(ProfileGroup::kLatency, [&] {
    for (const LinkUse use : {LinkUse::kToDevice, LinkUse::kToHost}) {
      add({.test = use_text(use), .bytes = 8, .value = meter.latency_us(use, options_.quick ? 50 : 200), .unit = "us"});
    }
  });
  group(ProfileGroup::kDeviceMemory, [&] {
    const uint64_t bytes = std::min<uint64_t>(most, 512 * kMiB);
    add_peak("copy", meter.measure_within(bytes, 4 * bytes, rounds()),
             report_.gpu ? str("nvbandwidth device_local_copy -b ", bytes / kMiB) : "");
  });
}

void Profiler::link() {
  const uint64_t room = std::min(device_->vram().free_bytes(), device_->host_mem().free_bytes());
  const uint64_t wanted = !report_.gpu ? 64 * kMiB : options_.quick ? 256 * kMiB : kMaxCopy;
  uint64_t most = kMiB;
  while (2 * most <= wanted && 2 * most <= room / 8) most *= 2;
  group(ProfileGroup::kPinned, [&] {
    if (most > room / 4) throw_error(ExitCode::kDoesNotFit, "the budgets", "have no room to measure the link");
    LinkMeter meter(*device_, most);
    pinned(meter, most);
    connection();              // while the link is active
    if (!report_.gpu) return;  // what is left tells kinds of memory apart, and a CPU has one
    group(ProfileGroup::kPageable, [&] { pageable(meter, most); });
    group(ProfileGroup::kScattered, [&] { scattered(meter, most); });
    small(meter, most);
  });
}

void Profiler::connection() {
  report_.pcie = read_pcie(device_->pci_bus_id());
  report_.numa_nodes = read_numa_nodes();
  if (!report_.pcie) return;
  const std::string warning = pcie_warning(*report_.pcie);
  if (!warning.empty()) report_.notes.push_back(warning);
  const int node = report_.pcie->numa_node;
  const std::vector<int>& own = report_.numa_nodes;
  if (node >= 0 && !own.empty() && (own.size() > 1 || own[0] != node)) {
    report_.notes.push_back(str("the GPU is at NUMA node ", node, ", this process may run ",
                                own.size() > 1 ? "on others as well" : str("on node ", own[0], " alone"),
                                ": numactl --cpunodebind=", node, " --membind=", node, " keeps it near"));
  }
}

void Profiler::compute() {
  group(ProfileGroup::kCompute, [&] {
    const ComputeRates rates = measure_compute(*device_, options_.quick);
    const auto add_rate = [this](const char* test, const ComputeRate& rate, const char* unit) {
      add({.test = test, .value = rate.value, .unit = unit, .low = rate.low, .high = rate.high});
    };
    add_rate("weights", rates.weights_gb_per_s, "GB/s");
    add_rate("rows", rates.kv_gb_per_s, "GB/s");
    add_rate("product", rates.product_tflop_per_s, "TFLOP/s");
    add_rate("prefill attention", rates.attention_tflop_per_s, "TFLOP/s");
    add_rate("attention of 64 queries", rates.queries_tflop_per_s, "TFLOP/s");
    add_rate("product in 8 bits", rates.int8_product_tflop_per_s, "T/s");
    add_rate("prefill attention in 8 bits", rates.int8_attention_tflop_per_s, "T/s");
  });
}

void Profiler::host() {
  group(ProfileGroup::kHostMemory, [&] {
    const uint64_t room = device_->host_mem().free_bytes() / 4;
    const uint64_t bytes = std::min<uint64_t>(options_.quick ? 128 * kMiB : 512 * kMiB, room / kMiB * kMiB);
    if (bytes < kMiB) throw_error(ExitCode::kDoesNotFit, "--host-mem", "has no room to measure memory with");
    const HostMemorySpeed speed = measure_host_memory(device_->threads(), bytes, rounds());
    add({.test = "read", .bytes = bytes, .value = speed.read});
    add({.test = "write", .bytes = bytes, .value = speed.write});
    add({.test = "copy", .bytes = bytes, .value = speed.copy});
    add({.test = "copy, one thread", .bytes = bytes, .value = speed.one_thread_copy});
  });
}

std::string fio_name(const DiskTest& test) {
  const char* const rw =
      test.op == FileOp::kRead ? (test.random ? "randread" : "read") : (test.random ? "randwrite" : "write");
  // fio's buffers are in huge pages like ours if they are large enough to matter.
  const bool huge = test.block_bytes * static_cast<uint64_t>(test.depth) >= 2 * kMiB;
  return str(huge ? "GLIBC_TUNABLES=glibc.malloc.hugetlb=1 " : "", "fio --rw=", rw, " --bs=", test.block_bytes / kKiB,
             "k --iodepth=", test.depth, " --direct=1 --ioengine=io_uring --fixedbufs --registerfiles",
             huge ? " --mem_align=2m" : "");
}

void Profiler::disk() {
  if (options_.disk.empty()) return;
  group(ProfileGroup::kDisk, [&] {
    DiskProbeOptions probe;
    probe.folder = report_.disk = options_.disk;
    probe.tests = disk_tests(options_.quick);
    if (options_.quick) probe.file_bytes = kGiB, probe.seconds = 0.4, probe.layout_seconds = 1.5;
    if (options_.disk_file_bytes > 0) {  // the requested size, however long writing it takes
      probe.file_bytes = options_.disk_file_bytes;
      probe.layout_seconds = kAsLongAsItTakes;
    }
    if (options_.disk_seconds > 0) probe.seconds = options_.disk_seconds;
    report_.disk_seconds = probe.seconds;
    probe.interrupt = options_.interrupt;
    probe.on_row = [&](const DiskRow& row) {
      add({.test = disk_test_name(row.test),
           .bytes = row.test.block_bytes,
           .depth = row.test.depth,
           .value = row.gb_per_s,
           .same_as = fio_name(row.test),
           .error = row.error});
    };
    DiskReport report = measure_disk(probe);
    report_.disk_how = report.how;
    report_.disk_file_bytes = report.file_bytes;
    report_.disk_file_system = folder_file_system(options_.disk);
    for (std::string& note : report.notes) report_.notes.push_back("disk: " + std::move(note));
  });
}

ProfileReport Profiler::run() {
  const HostClock::time_point start = HostClock::now();
  open();
  link();
  compute();
  host();
  disk();
  report_.seconds = seconds_since(start);
  report_.interrupted = stop();
  return std::move(report_);
}

}  // namespace

const char* profile_group_name(ProfileGroup group) {
  constexpr const char* kNames[] = {"pinned",        "pageable", "scattered",   "latency",
                                    "device_memory", "compute",  "host_memory", "disk"};
  return kNames[static_cast<size_t>(group)];
}

const char* profile_group_title(ProfileGroup group, bool gpu) {
  if (!gpu && group == ProfileGroup::kPinned) return "copies in memory, by their size";
  if (!gpu && group == ProfileGroup::kHostMemory) return "memory, all threads";
  constexpr const char* kTitles[] = {"pinned memory, by the size of a copy",
                                     "pageable memory",
                                     "scattered pages, to the device",
                                     "latency of a copy of 8 bytes",
                                     "device memory",
                                     "kernels",
                                     "host memory, all threads",
                                     "disk"};
  return kTitles[static_cast<size_t>(group)];
}

std::string shown_test(const ProfileRow& row, bool gpu) {
  if (gpu || row.group != ProfileGroup::kPinned || row.test == use_text(LinkUse::kBoth)) return row.test;
  return row.test == use_text(LinkUse::kToDevice) ? "in" : "out";
}

ShownRate shown_rate(const ProfileRow& row) {
  struct Smaller {
    const char *unit, *smaller;
    double below;
  };
  for (const Smaller& s : {Smaller{"TFLOP/s", "GFLOP/s", 1}, {"T/s", "G/s", 1}, {"GB/s", "MB/s", 0.1}}) {
    if (row.unit == s.unit && row.value < s.below) return {.factor = 1000, .unit = s.smaller};
  }
  return {.factor = 1, .unit = row.unit};
}

const ProfileRow* ProfileReport::best_row(ProfileGroup group, const std::string& test, uint64_t least_bytes) const {
  const ProfileRow* most = nullptr;
  for (const ProfileRow& row : rows) {
    if (row.group != group || row.test != test || row.bytes < least_bytes || !row.error.empty()) continue;
    if (row.value > (most != nullptr ? most->value : 0)) most = &row;
  }
  return most;
}

const ProfileRow* ProfileReport::row_of(Rate rate) const {
  struct Source {
    Rate rate;
    ProfileGroup group;
    const char* test;
    uint64_t least_bytes = 0;
  };
  const Source sources[] = {
      {&MachineRates::to_device_gb_per_s, ProfileGroup::kPinned, use_text(LinkUse::kToDevice), kLargeCopy},
      {&MachineRates::to_host_gb_per_s, ProfileGroup::kPinned, use_text(LinkUse::kToHost), kLargeCopy},
      {&MachineRates::weights_gb_per_s, ProfileGroup::kCompute, "weights"},
      {&MachineRates::kv_gb_per_s, ProfileGroup::kCompute, "rows"},
      {&MachineRates::product_tflop_per_s, ProfileGroup::kCompute, "product"},
      {&MachineRates::attention_tflop_per_s, ProfileGroup::kCompute, "prefill attention"},
      {&MachineRates::queries_tflop_per_s, ProfileGroup::kCompute, "attention of 64 queries"},
      {&MachineRates::int8_product_tflop_per_s, ProfileGroup::kCompute, "product in 8 bits"},
      {&MachineRates::int8_attention_tflop_per_s, ProfileGroup::kCompute, "prefill attention in 8 bits"},
      {&MachineRates::disk_read_gb_per_s, ProfileGroup::kDisk, "sequential read", kMiB},
      {&MachineRates::disk_write_gb_per_s, ProfileGroup::kDisk, "sequential write", kMiB}};
  for (const Source& source : sources) {
    if (source.rate != rate) continue;
    const ProfileRow* const row = best_row(source.group, source.test, source.least_bytes);
    const bool small_copies = row == nullptr && source.group == ProfileGroup::kPinned;
    return small_copies ? best_row(source.group, source.test, 0) : row;
  }
  return nullptr;
}

MachineRates ProfileReport::rates() const {
  MachineRates rates{.gpu = gpu};
  for (const RateName& name : kRateNames) {
    if (const ProfileRow* const row = row_of(name.rate)) rates.*name.rate = row->value;
  }
  return rates;
}

std::vector<RateSpread> ProfileReport::spread() const {
  std::vector<RateSpread> spread;
  for (const RateName& name : kRateNames) {
    const ProfileRow* const row = row_of(name.rate);
    if (row != nullptr && row->high > 0)
      spread.push_back({.rate = &name, .share = (row->high - row->low) / row->value});
  }
  return spread;
}

std::string ProfileReport::why_not_kept() const {
  if (interrupted) return "it is incomplete";
  if (!rates().known()) return "it lacks rates that predictions need";
  return steady(spread()) ? "" : "the machine was busy, so it would mislead predictions";
}

std::string pcie_text(const PcieMode& mode) {
  return mode.known() ? str("PCIe ", mode.generation, ".0 x", mode.lanes) : std::string();
}

std::string pcie_warning(const PcieLink& link) {
  if (!link.below_possible()) return "";
  const PcieMode best = link.possible();
  const auto rate = [](const PcieMode& mode) {
    return str(std::lround(pcie_gb_per_s(mode.generation, mode.lanes)), " GB/s at best");
  };
  return str("the link runs as ", pcie_text(link.now), " (", rate(link.now), "), card and slot support ",
             pcie_text(best), " (", rate(best), "): look at the slot, a riser or the BIOS");
}

ProfileReport run_profile(const ProfileOptions& options, const ProfileHooks& hooks) {
  return Profiler(options, hooks).run();
}

}  // namespace headrace
