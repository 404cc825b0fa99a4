// A small EAGLE-3 head as files, right as it is, to be broken by tests: every config entry and tensor can be changed.
// A plain builder; one thread at a time.
#pragma once

#include <cstdint>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "runtime/model/config.h"

namespace headrace::testing_support {

// A safetensors file in memory: what a header says of each tensor, and its bytes.
struct FileTensor {
  std::string dtype;
  std::vector<int64_t> shape;
  std::string bytes;
};
std::string safetensors_bytes(const std::map<std::string, FileTensor>& tensors);

// F32, values from -1 to 1 that differ from tensor to tensor.
FileTensor f32_tensor(const std::string& name, std::vector<int64_t> shape);

// For a target of 12 layers, hidden 8 and 20 ids: 2 heads of 6 and one KV head, ffn 10, a draft vocabulary of 5.
struct Eagle3Files {
  nlohmann::json config;
  std::map<std::string, FileTensor> tensors;

  Eagle3Files();
  void set_d2t(const std::vector<int64_t>& offsets);
  void set_t2d(const std::vector<int64_t>& target_ids);
  // Writes config.json and model.safetensors into a folder that exists.
  void write(const std::string& folder) const;
};
ModelConfig eagle3_target();

}  // namespace headrace::testing_support
