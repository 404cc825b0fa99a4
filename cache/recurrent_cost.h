// Predicts what layers with a recurrent state (Gated DeltaNet, kernels/recurrence) take beside their matrix products,
// for cache/cost. Pure functions of plain values, in milliseconds of all these layers together.
#pragma once

#include <cstdint>

namespace headrace {

struct MachineRates;
struct PassShape;

// The layers of a model that have a state of v_heads x k_dim x v_dim in f32 in place of rows.
struct RecurrentSizes {
  int64_t layers = 0;  // 0: all layers have rows
  int64_t k_heads = 0, v_heads = 0, k_dim = 0, v_dim = 0;

  int64_t k_width() const { return k_heads * k_dim; }
  int64_t v_width() const { return v_heads * v_dim; }
  int64_t channels() const { return 2 * k_width() + v_width(); }  // of the convolution
  int64_t in_width() const { return channels() + v_width() + 2 * v_heads; }
  int64_t state_values() const { return v_heads * k_dim * v_dim; }  // of a layer
  uint64_t state_bytes() const { return static_cast<uint64_t>(layers * state_values()) * sizeof(float); }
};

// The tokens of a pass. `replayed`: tokens of paths that are replayed because a token does not follow the one that was
// computed before it; none in a chain.
struct RecurrentRows {
  int64_t rows = 1, replayed = 0;
};
// What is before the recurrence, the recurrence itself from the states, and what is behind it.
double recurrent_pass_ms(const RecurrentSizes& sizes, const RecurrentRows& pass, const MachineRates& rates);
// Of these, the recurrence alone.
double recurrence_ms(const RecurrentSizes& sizes, const RecurrentRows& pass, const MachineRates& rates);
// All of a target's pass over a chain, with the commit of what is accepted.
double recurrent_step_ms(const RecurrentSizes& sizes, const PassShape& pass, const MachineRates& rates);
// `rows` accepted tokens move the states.
double recurrent_commit_ms(const RecurrentSizes& sizes, int64_t rows, const MachineRates& rates);
// A copy of all states on the device.
double recurrent_copy_ms(const RecurrentSizes& sizes, const MachineRates& rates);
// A prompt, in groups of at most `group` tokens.
double recurrent_prefill_ms(const RecurrentSizes& sizes, int64_t tokens, int64_t group, const MachineRates& rates);

}  // namespace headrace
