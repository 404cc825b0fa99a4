// What the link between host and device gives: pinned memory to the device, back, and both at once, by the size of a
// copy. Copies are enqueued behind one that holds them back, the first round is not counted, the median of the others
// is, and what arrived is compared with what was sent (offload/link_peak.h).
//   link_bench [--device auto|cuda|cuda:N|cpu] [--most 256MiB] [--rounds 5]
// Prints one JSON object with the machine named.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>

#include "bench/machine.h"
#include "cache/base.h"
#include "offload/device.h"
#include "offload/link_peak.h"

namespace headrace {
namespace {

using nlohmann::ordered_json;

constexpr uint64_t kRoundBytes = kGiB;

struct Settings {
  std::string device = "auto", most = "256MiB";
  int rounds = 5;
};

DeviceOptions device_options(const std::string& name) {
  DeviceOptions options;
  if (name == "cpu") options.choice = DeviceChoice::kCpu;
  if (name.starts_with("cuda")) options.choice = DeviceChoice::kCuda;
  if (name.starts_with("cuda:")) options.cuda_index = std::atoi(name.c_str() + 5);
  return options;
}

double rounded(double gb_per_s) { return std::round(gb_per_s * 1000) / 1000; }

ordered_json row_json(const LinkPeak& peak) {
  return {{"use", link_use_name(peak.use)},     {"copy_bytes", peak.copy_bytes},    {"copies", peak.copies},
          {"gb_per_s", rounded(peak.gb_per_s)}, {"slowest", rounded(peak.slowest)}, {"fastest", rounded(peak.fastest)}};
}

void run(const Settings& s) {
  uint64_t most = 0;
  if (!parse_bytes(s.most, &most) || most < kMiB) {
    throw_error(ExitCode::kUsage, "--most", "'" + s.most + "' is no size of at least 1MiB");
  }
  most = most / kMiB * kMiB;
  const std::unique_ptr<Device> device = open_device(device_options(s.device));
  LinkMeter meter(*device, most);
  ordered_json out = {
      {"program", "link_bench"}, {"machine", bench::machine_json()},        {"device", device->name()},
      {"rounds", s.rounds},      {"peak_gb_per_s", ordered_json::object()}, {"rows", ordered_json::array()}};
  for (const LinkUse use : kLinkUses) {
    double best = 0;
    for (uint64_t bytes = kMiB; bytes <= most; bytes *= 2) {
      const LinkPeak peak = meter.measure(use, bytes, kRoundBytes, s.rounds);
      best = std::max(best, peak.gb_per_s);
      out["rows"].push_back(row_json(peak));
    }
    out["peak_gb_per_s"][link_use_name(use)] = rounded(best);
  }
  std::printf("%s\n", out.dump(1).c_str());
}

}  // namespace
}  // namespace headrace

int main(int argc, char** argv) {
  headrace::Settings settings;
  CLI::App app("Measures the link between host and device");
  app.add_option("--device", settings.device)->check([](const std::string& name) {
    return name == "auto" || name == "cpu" || name.starts_with("cuda")
               ? std::string()
               : "'" + name + "' is none of auto, cpu, cuda, cuda:N";
  });
  app.add_option("--most", settings.most, "The largest copy");
  app.add_option("--rounds", settings.rounds)->check(CLI::Range(1, 1000));
  CLI11_PARSE(app, argc, argv);
  try {
    headrace::run(settings);
  } catch (const headrace::Error& error) {
    std::fprintf(stderr, "link_bench: %s\n", error.what());
    return static_cast<int>(error.code());
  }
  return 0;
}
