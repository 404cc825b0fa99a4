// Compares what two runs over the same prompt predict: the first leaves the final states of its rows, the second
// computes the logits of both from the same head. Plain values. Thread: the executor's.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace headrace {

struct StateComparison {
  std::vector<std::byte> states;  // [prompt, hidden] of the weights' type; empty: the run leaves them here
  // Of each position of the second run: the divergence of its distribution from the first run's, in nats, and whether
  // both have the same likeliest token. NaN where logits are not finite.
  std::vector<float> kl;
  std::vector<uint8_t> same_first;
};

struct Divergence {
  float kl;
  bool same_first;  // ties go to the lower token
};
// The sum of p log(p / q) over the vocabulary, p and q the softmax of the two rows; in f64.
Divergence divergence(std::span<const float> reference, std::span<const float> logits);

}  // namespace headrace
