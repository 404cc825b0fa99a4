// The options of several engines in one process, each on its own device: together they stay within the limits of one
// engine. Reads the machine's limits. Any thread.
#pragma once

#include <vector>

#include "runtime/engine/options.h"

namespace headrace {

// Returns the options of one engine for each device; of `devices` only the choice and the GPU's index count. No
// devices: `all` itself, for one engine. Host memory, threads (at least one each) and the disk of --spill are divided;
// each device has the whole --vram. Only one engine may write a folder of saved prefixes: the first has the folder
// itself, the others "device-2" and so on in it, and the limit, if there is one, is divided. Throws Error(kDoesNotFit):
// more host memory than the machine has.
std::vector<EngineOptions> engine_shares(const EngineOptions& all, const std::vector<DeviceOptions>& devices);

}  // namespace headrace
