#include "cache/recurrent_cost.h"

#include <algorithm>

#include "cache/base.h"
#include "cache/cost.h"

namespace headrace {
namespace {

// Times of a GPU, of one layer: kernel_bench_h200_recurrence.jsonl, in the shape of Qwen3.5-27B. A warp walks eight
// columns of a state alone, token by token, so a pass waits for the chain of its tokens, not for memory or arithmetic:
// it takes as long with fewer heads, or on a card with fewer multiprocessors, as long as all warps find room.
constexpr double kLeastUs = 5.5, kRecurrenceUs = 3.5, kTokenUs = 1.34, kReplayedUs = 0.395;
// The inputs' convolution, norms and gates, of which a warp walks 16 tokens of a chain alone, and the gated norm of the
// output; what a channel or a value of many rows takes.
constexpr double kInputsUs = 5.0, kInputsTokenUs = 0.43, kInputsPsAChannel = 3.77;
constexpr int64_t kInputsRun = 16;
constexpr double kOutputUs = 5.3, kOutputPsAValue = 2.83;
// A commit reads and writes the states, at this share of the read rate of rows, which hides one token, and replays
// more tokens: values of the states a microsecond.
constexpr double kCommitShare = 0.8, kReplayedValuesPerUs = 3.34e6;
// A call of the chunk form, and its rows: values of the state times rows a microsecond.
constexpr double kChunksUs = 22, kChunkValuesPerUs = 4.84e6;

// A CPU's, as shares of the rates of attention: of decoding and of prefill.
constexpr double kCpuRecurrenceShare = 0.25, kCpuCommitShare = 0.7, kCpuChunksShare = 0.6;
constexpr double kRecurrenceFlop = 7, kReplayFlop = 3;  // of a value of the state and a token

double real(int64_t value) { return static_cast<double>(value); }

// All layers' kernels around the recurrence. They read inputs in the type of the computation and write f32.
double around_ms(const RecurrentSizes& s, int64_t rows, const MachineRates& rates) {
  const double layers = real(s.layers), tokens = real(rows);
  const double bytes = layers * tokens * real(s.channels() + s.v_width()) * 8;
  const double least = gb_ms(bytes, rates.weights_gb_per_s);
  if (!rates.gpu) return least;
  const double inputs = std::max(kInputsUs + kInputsTokenUs * real(std::min(rows, kInputsRun)),
                                 kInputsPsAChannel * 1e-6 * tokens * real(s.channels()));
  const double output = std::max(kOutputUs, kOutputPsAValue * 1e-6 * tokens * real(s.v_width()));
  return std::max(layers * (inputs + output) * 1e-3, least);
}

double chunks_flop(const RecurrentSizes& s, int64_t tokens) {
  constexpr double kChunkRows = 64;
  const double a_head = 3 * real(s.k_dim * s.v_dim) + kChunkRows * real(s.k_dim + s.v_dim);
  return 2 * real(s.layers * tokens * s.v_heads) * a_head;
}

}  // namespace

double recurrence_ms(const RecurrentSizes& s, const RecurrentRows& pass, const MachineRates& rates) {
  if (s.layers == 0) return 0;
  const double layers = real(s.layers), read = gb_ms(static_cast<double>(s.state_bytes()), rates.kv_gb_per_s);
  if (rates.gpu) {
    const double chain = kRecurrenceUs + kTokenUs * real(pass.rows) + kReplayedUs * real(pass.replayed);
    return std::max(layers * std::max(kLeastUs, chain) * 1e-3, read);
  }
  const double flop =
      layers * real(s.state_values()) * (kRecurrenceFlop * real(pass.rows) + kReplayFlop * real(pass.replayed));
  return std::max(read, tflop_ms(flop, kCpuRecurrenceShare * rates.queries_tflop_per_s));
}

double recurrent_pass_ms(const RecurrentSizes& s, const RecurrentRows& pass, const MachineRates& rates) {
  if (s.layers == 0) return 0;
  return around_ms(s, pass.rows, rates) + recurrence_ms(s, pass, rates);
}

double recurrent_commit_ms(const RecurrentSizes& s, int64_t rows, const MachineRates& rates) {
  if (s.layers == 0) return 0;
  const double moved = gb_ms(2 * static_cast<double>(s.state_bytes()), kCommitShare * rates.kv_gb_per_s);
  const double values = real(s.layers * s.state_values()) * real(rows);
  if (rates.gpu) return rows == 1 ? moved : moved + values / kReplayedValuesPerUs * 1e-3;
  return moved + tflop_ms(kReplayFlop * values, kCpuCommitShare * rates.queries_tflop_per_s);
}

// Behind a refresh the states of pending tokens begin anew, as a copy of the committed ones.
double recurrent_step_ms(const RecurrentSizes& s, const PassShape& pass, const MachineRates& rates) {
  return recurrent_pass_ms(s, {.rows = pass.queries}, rates) + recurrent_commit_ms(s, pass.accepted, rates) +
         (pass.mode == StepMode::kRefresh ? recurrent_copy_ms(s, rates) : 0);
}

double recurrent_copy_ms(const RecurrentSizes& s, const MachineRates& rates) {
  return s.layers == 0 ? 0 : gb_ms(2 * static_cast<double>(s.state_bytes()), kCommitShare * rates.kv_gb_per_s);
}

double recurrent_prefill_ms(const RecurrentSizes& s, int64_t tokens, int64_t group, const MachineRates& rates) {
  if (s.layers == 0) return 0;
  const double around = around_ms(s, tokens, rates);
  if (!rates.gpu) return around + tflop_ms(chunks_flop(s, tokens), kCpuChunksShare * rates.attention_tflop_per_s);
  const double groups = real(ceil_div(tokens, group)), layers = real(s.layers);
  const double launches = (groups - 1) * layers * kInputsUs * 1e-3;  // around_ms() has one group's
  const double chunks =
      layers * (groups * kChunksUs + real(s.state_values()) * real(tokens) / kChunkValuesPerUs) * 1e-3;
  return around + launches + chunks;
}

}  // namespace headrace
