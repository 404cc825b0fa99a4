// A tensor as a file holds it: what the parsers of safetensors and PyTorch files return. A plain value.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace headrace {

struct StoredTensor {
  std::string name;
  std::string dtype;  // "BF16", by safetensors' names
  std::vector<int64_t> shape;
  uint64_t begin = 0, bytes = 0;  // from the start of the file
};

}  // namespace headrace
