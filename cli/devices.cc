// headrace --list-devices: lists the values of --device. --devices: opens an engine for each.
#include "cli/devices.h"

#include <algorithm>
#include <cstdio>

#include "cli/commands.h"
#include "runtime/engine/engine_shares.h"

namespace headrace {
namespace {

std::string device_name(const DeviceOptions& device) {
  return device.choice == DeviceChoice::kCuda ? str("cuda:", device.cuda_index) : "cpu";
}

}  // namespace

std::string format_devices(const std::vector<DeviceListing>& devices) {
  size_t width = 0;
  for (const DeviceListing& device : devices) width = std::max(width, device.id.size());
  std::string text;
  for (const DeviceListing& device : devices) {
    text += device.id + std::string(width - device.id.size() + 2, ' ') + device.description;
    if (!device.unusable.empty()) text += " (cannot be used: " + device.unusable + ")";
    text += "\n";
  }
  return text;
}

std::deque<Engine> open_engines(const EngineOptions& options, const std::vector<DeviceOptions>& devices,
                                Console* console) {
  std::deque<Engine> engines;
  for (const EngineOptions& share : engine_shares(options, devices)) engines.emplace_back(console->with_rates(share));
  console->note_engine(engines.front());
  return engines;
}

std::string format_lost(const DeviceOptions& device, const std::string& why, const std::string& document) {
  return str(device_name(device), " failed on ", document, ": ", why, "; the other devices continue");
}

std::string format_batch(const BatchOutcome& outcome, const char* answered, const std::vector<DeviceOptions>& devices) {
  std::string text = str(outcome.answered, " ", answered, ", ", outcome.skipped, " done before, ", outcome.failed,
                         " failed", outcome.interrupted ? "; interrupted, the same command continues" : "");
  if (outcome.engines.size() < 2) return text;
  for (size_t i = 0; i < outcome.engines.size(); ++i) {
    const EngineOutcome& engine = outcome.engines[i];
    text += str(i == 0 ? "; " : ", ", device_name(devices.at(i)), " ", engine.answered, engine.lost ? " (lost)" : "");
  }
  return text;
}

ExitCode run_command(const DevicesArgs&) {
  std::fputs(format_devices(list_devices()).c_str(), stdout);
  return ExitCode::kDone;
}

}  // namespace headrace
