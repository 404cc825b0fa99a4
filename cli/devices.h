// What --list-devices prints. Pure; any thread.
#pragma once

#include <string>
#include <vector>

#include "runtime/engine/engine.h"

namespace headrace {

// A line a device: what --device takes, what it is, and why it cannot be used.
std::string format_devices(const std::vector<DeviceListing>& devices);

}  // namespace headrace
