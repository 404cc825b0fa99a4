// Changes single weights of a model.safetensors in place, for tests of damaged and overflowing models. F32 files.
// Header only. Thread: one.
#pragma once

#include <cstdint>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "cache/base.h"

namespace headrace::testing_support {

// Writes `values` over the elements of a tensor from [row, col] on.
inline void set_weights(const std::string& path, const std::string& tensor, int64_t row, int64_t col,
                        const std::vector<float>& values) {
  std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
  uint64_t header_bytes = 0;
  file.read(reinterpret_cast<char*>(&header_bytes), sizeof header_bytes);
  std::string text(header_bytes, '\0');
  file.read(text.data(), static_cast<std::streamsize>(text.size()));
  const nlohmann::json entry = nlohmann::json::parse(text).at(tensor);
  CHECK(entry.at("dtype") == "F32", tensor);
  const int64_t cols = entry.at("shape").back().get<int64_t>(), begin = entry.at("data_offsets")[0].get<int64_t>();
  file.seekp(static_cast<std::streamoff>(8 + header_bytes) + begin + (row * cols + col) * 4);
  file.write(reinterpret_cast<const char*>(values.data()), static_cast<std::streamsize>(values.size() * 4));
  file.flush();
  CHECK(file.good(), path);
}

// Makes tests/data/tiny's llama2 or llama31 overflow in f32 where `token` is read, and nowhere else, by finite weights:
// its embedding has one direction, whose square one lane of the first MLP computes, beyond the largest float. That
// lane's output weights are 0: other tokens are unaffected, and this one's state becomes 0 x infinity, NaN. token -1:
// only the lane, so that no token overflows.
inline void make_overflow(const std::string& path, int64_t token) {
  constexpr int64_t kHidden = 64, kDirection = 7, kLane = 3;
  std::vector<float> embedding(kHidden, 0.0f), row(kHidden, 0.0f);
  embedding[kDirection] = 1000.0f;
  row[kDirection] = 3.2e18f;  // of a norm's output: 6.5 or more here, at most 5 elsewhere
  set_weights(path, "model.layers.0.mlp.gate_proj.weight", kLane, 0, row);
  set_weights(path, "model.layers.0.mlp.up_proj.weight", kLane, 0, row);
  for (int64_t out = 0; out < kHidden; ++out) {
    set_weights(path, "model.layers.0.mlp.down_proj.weight", out, kLane, {0.0f});
  }
  if (token >= 0) set_weights(path, "model.embed_tokens.weight", token, 0, embedding);
}

}  // namespace headrace::testing_support
