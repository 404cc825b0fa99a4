// Small valid drafts as files, for tests to damage: every config entry and tensor can be changed. Plain builders; one
// thread at a time.
#pragma once

#include <cstdint>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "runtime/model/config.h"

namespace headrace::testing_support {

// A tensor of a safetensors file in memory: its header entry and its bytes.
struct FileTensor {
  std::string dtype;
  std::vector<int64_t> shape;
  std::string bytes;
};
std::string safetensors_bytes(const std::map<std::string, FileTensor>& tensors);

// F32, values from -1 to 1 that differ from tensor to tensor.
FileTensor f32_tensor(const std::string& name, std::vector<int64_t> shape);

struct DraftFiles {
  nlohmann::json config;
  std::map<std::string, FileTensor> tensors;

  void add(const std::string& name, const std::vector<int64_t>& shape) { tensors[name] = f32_tensor(name, shape); }
  void prefix(const std::string& prefix);  // of every tensor's name
  // Writes config.json and model.safetensors into an existing folder.
  void write(const std::string& folder) const;
};

// For a target of 12 layers, hidden 8 and 20 ids: 2 heads of 6 and one KV head, ffn 10, a draft vocabulary of 5.
struct Eagle3Files : DraftFiles {
  Eagle3Files();
  void set_d2t(const std::vector<int64_t>& offsets);
  void set_t2d(const std::vector<int64_t>& target_ids);
};
ModelConfig eagle3_target();

// For a target of hidden 8 and 20 ids: 2 heads of 4 and one KV head, as in the target, and ffn 10.
struct LongSpecFiles : DraftFiles {
  LongSpecFiles();
};
ModelConfig longspec_target();

}  // namespace headrace::testing_support
