// The machine's name, for every stored figure. Any thread.
#pragma once

#include <nlohmann/json.hpp>

#include "offload/host/machine.h"

namespace headrace::bench {

inline nlohmann::ordered_json machine_json() {
  const Machine machine = read_machine();
  return {{"cpu", machine.cpu}, {"cores", machine.cores}, {"memory_bytes", machine.memory_bytes}};
}

}  // namespace headrace::bench
