// The output of --list-devices. Pure; any thread.
#pragma once

#include <string>
#include <vector>

#include "runtime/engine/engine.h"

namespace headrace {

// One line per device: its --device value, its description, and why it cannot be used.
std::string format_devices(const std::vector<DeviceListing>& devices);

}  // namespace headrace
