// The shapes of well-known models by name, for measuring what a model of that size costs without having it. Pure, but
// for a shape that is a file; any thread.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "runtime/model/config.h"

namespace headrace {

struct Shape {
  std::string name;  // "llama-3.1-8b"
  ModelConfig config;
};

std::vector<Shape> known_shapes();

// A known shape, or that of a config.json, given by its path. Throws Error(kUsage) that lists the names.
Shape find_shape(const std::string& name);

int64_t parameter_count(const ModelConfig& config);

}  // namespace headrace
