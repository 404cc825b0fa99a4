// A model that no file holds: a shape with random weights, so that anyone can measure its cost. Each weight is a pure
// function of seed, tensor and place. Matrices have a mean of 0 and a variance of 1 / columns, so that a layer's output
// is as large as its input: normal ones without a mixture, quantised ones with random bits otherwise. Norms are 1. It
// has no tokenizer. Thread: as runtime/model/checkpoint.h.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "runtime/model/checkpoint.h"
#include "runtime/model/weight_mixture.h"

namespace headrace {

// `mixture` is null for matrices that are not quantised. Throws Error(kUsage) if a row's length is no multiple of its
// type's block.
std::unique_ptr<Checkpoint> make_random_checkpoint(const std::string& name, const ModelConfig& config, uint64_t seed,
                                                   const WeightMixture* mixture = nullptr);

}  // namespace headrace
