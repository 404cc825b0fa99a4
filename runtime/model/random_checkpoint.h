// A model without files: random weights in a given shape, so that its cost can be measured. Each weight is a pure
// function of seed, tensor and index. Matrices have mean 0 and variance 1 / columns, so a layer's output is as large as
// its input: normally distributed without a mixture, random bits in quantised blocks with one. Norms are 1. Recurrent
// layers have the decays of an untrained model, so that their states stay finite. There is no tokenizer. Thread: as in
// runtime/model/checkpoint.h.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "runtime/model/checkpoint.h"
#include "runtime/model/weight_mixture.h"

namespace headrace {

// `mixture`: the types of quantised matrices; null: matrices are not quantised. Throws Error(kUsage) if the length of a
// row is not a multiple of its type's block.
std::unique_ptr<Checkpoint> make_random_checkpoint(const std::string& name, const ModelConfig& config, uint64_t seed,
                                                   const WeightMixture* mixture = nullptr);

}  // namespace headrace
