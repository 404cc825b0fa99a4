// headrace --list-devices: lists the values of --device.
#include "cli/devices.h"

#include <algorithm>
#include <cstdio>

#include "cli/commands.h"

namespace headrace {

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

ExitCode run_devices(const DevicesArgs&) {
  std::fputs(format_devices(list_devices()).c_str(), stdout);
  return ExitCode::kDone;
}

}  // namespace headrace
