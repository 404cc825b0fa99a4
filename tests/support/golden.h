// Reads a golden .safetensors file (tests/data) without the product's own reader: i64, i32 and f32 arrays by name.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace headrace::testing {

struct Golden {
  std::map<std::string, std::vector<int64_t>> ints, shapes;  // shapes: of all
  std::map<std::string, std::vector<float>> floats;

  // The array as token ids.
  std::vector<int32_t> ids(const std::string& name) const {
    const std::vector<int64_t>& wide = ints.at(name);
    return {wide.begin(), wide.end()};
  }
};

Golden read_golden(const std::string& path);

// The largest |a[i] - b[i]|.
float largest_difference(const float* a, const float* b, size_t count);

}  // namespace headrace::testing
