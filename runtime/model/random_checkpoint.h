// A model that is on no disk: a shape with made-up weights, so that anyone can measure what it costs. Each element is a
// pure function of seed, tensor and place; matrices are normal with a variance of 1 / columns, so that what comes out
// of a layer is as large as what went in, and norms are 1. It has no tokenizer. Thread: as runtime/model/checkpoint.h.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "runtime/model/checkpoint.h"

namespace headrace {

std::unique_ptr<Checkpoint> make_random_checkpoint(const std::string& name, const ModelConfig& config, uint64_t seed);

}  // namespace headrace
