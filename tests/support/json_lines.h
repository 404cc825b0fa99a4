// A text of JSON lines as values.
#pragma once

#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <vector>

namespace headrace::testing_support {

inline std::vector<nlohmann::json> json_lines(const std::string& text) {
  std::vector<nlohmann::json> all;
  std::istringstream in(text);
  for (std::string line; std::getline(in, line);) all.push_back(nlohmann::json::parse(line));
  return all;
}

}  // namespace headrace::testing_support
