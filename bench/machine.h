// The machine's name, for every figure that is kept. Reads /proc; any thread.
#pragma once

#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <thread>

namespace headrace::bench {

inline nlohmann::json machine() {
  std::ifstream file("/proc/cpuinfo");
  std::string cpu = "unknown";
  for (std::string line; std::getline(file, line);) {
    if (line.rfind("model name", 0) == 0) {
      cpu = line.substr(line.find(':') + 2);
      break;
    }
  }
  return {{"cpu", cpu}, {"cores", std::thread::hardware_concurrency()}};
}

}  // namespace headrace::bench
