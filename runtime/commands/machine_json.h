// The machine of a measurement in its JSON report: {"cpu", "cores", "memory_bytes", "device"}. Pure; any thread.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "offload/host/machine.h"

namespace headrace {

inline nlohmann::ordered_json machine_json(const Machine& machine, const std::string& device) {
  return {{"cpu", machine.cpu}, {"cores", machine.cores}, {"memory_bytes", machine.memory_bytes}, {"device", device}};
}

}  // namespace headrace
