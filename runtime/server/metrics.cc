#include "runtime/server/metrics.h"

#include <algorithm>
#include <cmath>

namespace headrace {
namespace {

template <typename T>
std::string metric(const char* name, const char* type, const char* help, T value) {
  return str("# HELP headrace_", name, " ", help, "\n# TYPE headrace_", name, " ", type, "\nheadrace_", name, " ",
             value, "\n");
}

}  // namespace

void ServerMetrics::responded(int status) {
  const MutexLock lock(mutex_);
  ++sums_.responses[status];
}

void ServerMetrics::ran(const GenerateResult& result, double queue_seconds, double run_seconds) {
  const MutexLock lock(mutex_);
  ++sums_.runs;
  if (result.finish_reason == FinishReason::kInterrupted) ++sums_.cancelled;
  sums_.prompt_tokens += result.prompt_tokens;
  sums_.saved_tokens += result.reused_tokens();
  sums_.generated_tokens += static_cast<int64_t>(result.token_ids.size());
  sums_.queue_seconds += queue_seconds;
  sums_.run_seconds += run_seconds;
  sums_.prefill_seconds += result.timings.ttft_ms / 1000;
  sums_.decode_seconds += result.timings.decode_ms / 1000;
}

void ServerMetrics::failed(double queue_seconds, double run_seconds) {
  const MutexLock lock(mutex_);
  ++sums_.runs;
  ++sums_.failed;
  sums_.queue_seconds += queue_seconds;
  sums_.run_seconds += run_seconds;
}

int ServerMetrics::retry_after_s() const {
  const MutexLock lock(mutex_);
  if (sums_.runs == 0) return 1;
  return static_cast<int>(std::clamp(std::ceil(sums_.run_seconds / static_cast<double>(sums_.runs)), 1.0, 600.0));
}

std::string ServerMetrics::text(const JobQueue& queue) const {
  const size_t waiting = queue.waiting();
  const bool running = queue.running();
  const MutexLock lock(mutex_);
  const Sums& s = sums_;
  std::string out = metric("requests_waiting", "gauge", "Requests in the queue.", waiting) +
                    metric("requests_running", "gauge", "Requests in progress.", running ? 1 : 0) +
                    metric("runs_total", "counter",
                           "Requests that the engine has ended, cancelled and failed ones included.", s.runs) +
                    metric("runs_cancelled_total", "counter",
                           "Runs that ended early, because the client left or the server stops.", s.cancelled) +
                    metric("runs_failed_total", "counter", "Runs that ended with an error.", s.failed) +
                    metric("prompt_tokens_total", "counter", "Tokens of prompts.", s.prompt_tokens) +
                    metric("saved_prefix_tokens_total", "counter", "Tokens of prompts that were not computed again.",
                           s.saved_tokens) +
                    metric("generated_tokens_total", "counter", "Tokens of answers.", s.generated_tokens) +
                    metric("queue_seconds_total", "counter", "Time that runs waited in the queue.", s.queue_seconds) +
                    metric("run_seconds_total", "counter", "Time that runs took.", s.run_seconds) +
                    metric("prefill_seconds_total", "counter", "Time to the first token.", s.prefill_seconds) +
                    metric("decode_seconds_total", "counter", "Time of the tokens after the first.", s.decode_seconds);
  out += "# HELP headrace_responses_total HTTP responses by status.\n# TYPE headrace_responses_total counter\n";
  for (const auto& [status, count] : s.responses)
    out += str("headrace_responses_total{status=\"", status, "\"} ", count, "\n");
  return out;
}

}  // namespace headrace
