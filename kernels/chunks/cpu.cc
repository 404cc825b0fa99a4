#include <algorithm>
#include <cmath>
#include <limits>

#include "kernels/chunks/bodies.h"
#include "kernels/chunks/cpu_isa.h"
#include "offload/host/thread_pool.h"

namespace headrace::kernels::cpu {

namespace {

constexpr int64_t kStatesRun = 16, kScoresRun = 64;  // chunks of a thread's piece of work

// The weight of a state whose largest score is m, beside one whose largest is top.
float weight(float m, float top) { return m == -std::numeric_limits<float>::infinity() ? 1.0f : std::exp(m - top); }

}  // namespace

void chunk_states(const ChunkStatesParams& p, ThreadPool& pool) {
  const ChunkKernels& kernels = HEADRACE_PICK_ISA(chunk_kernels);
  const int64_t runs = ceil_div(p.count, kStatesRun);
  pool.parallel_for(p.all.call.kv_heads * runs, [&](int64_t index, int) {
    const int64_t begin = index % runs * kStatesRun;
    kernels.states(p, index / runs, p.first + begin, std::min(kStatesRun, p.count - begin));
  });
}

void chunk_scores(const ChunkScoresParams& p, ThreadPool& pool) {
  pool.parallel_for(p.call.heads, [&](int64_t head, int) {
    const float* states = p.states + head * p.chunks * 2;
    float top = -std::numeric_limits<float>::infinity();
    for (int64_t chunk = 0; chunk < p.chunks; ++chunk) top = std::max(top, states[2 * chunk]);
    double sum = 0;
    for (int64_t chunk = 0; chunk < p.chunks; ++chunk) {
      sum += static_cast<double>(weight(states[2 * chunk], top) * states[2 * chunk + 1]);
    }
    p.totals[2 * head] = top;
    p.totals[2 * head + 1] = static_cast<float>(sum);
  });
  pool.parallel_for(ceil_div(p.chunks, kScoresRun), [&](int64_t run, int) {
    for (int64_t chunk = run * kScoresRun; chunk < std::min((run + 1) * kScoresRun, p.chunks); ++chunk) {
      float sum = 0;
      for (int64_t head = 0; head < p.call.heads; ++head) {
        const float* state = p.states + (head * p.chunks + chunk) * 2;
        sum += weight(state[0], p.totals[2 * head]) * state[1] / p.totals[2 * head + 1];
      }
      const int64_t rows = std::min(p.call.chunk_rows, p.call.rows - chunk * p.call.chunk_rows);
      const float before = p.call.add ? p.call.scores[chunk] : 0;
      p.call.scores[chunk] = before + sum / static_cast<float>(p.call.heads * rows);
    }
  });
}

}  // namespace headrace::kernels::cpu
