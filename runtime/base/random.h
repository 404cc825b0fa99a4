// Pseudorandom numbers that are a pure function of seed and index: for generated weights and prompts.
#pragma once

#include <cstdint>

namespace headrace {

// The output function of SplitMix64 (Steele, Lea, Flood, "Fast splittable pseudorandom number generators", 2014): every
// bit of the result depends on every bit of the argument, and no two arguments share a result.
constexpr uint64_t mix64(uint64_t x) {
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9u;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBu;
  return x ^ (x >> 31);
}

// Term `index` of the sequence of `seed`.
constexpr uint64_t random64(uint64_t seed, uint64_t index) { return mix64(seed + (index + 1) * 0x9E3779B97F4A7C15u); }

}  // namespace headrace
