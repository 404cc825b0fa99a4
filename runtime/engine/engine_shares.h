// Several engines in one process, each on a device of its own: what each is opened with, so that together they keep to
// the limits of one. Reads the machine's limits. Any thread.
#pragma once

#include <vector>

#include "runtime/engine/options.h"

namespace headrace {

// Options for an engine a device; of `devices` only the choice and the GPU's index count. No devices: `all` itself, for
// one engine. Host memory, threads (at least one each) and the disk of --spill are divided; --vram is each device's.
// Only one engine may write a folder of saved prefixes: the first has the folder itself, the others "device-2" and so
// on in it, and the limit, if there is one, is divided. Throws Error(kDoesNotFit): more host memory than the machine
// has.
std::vector<EngineOptions> engine_shares(const EngineOptions& all, const std::vector<DeviceOptions>& devices);

}  // namespace headrace
