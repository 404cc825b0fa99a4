#include "runtime/engine/run.h"

#include "offload/device/trace.h"
#include "runtime/engine/decode_loop.h"

namespace headrace {
namespace {

double per_second(int64_t count, double ms) { return ms > 0 ? static_cast<double>(count) / (ms / 1000) : 0; }

// Bytes over the link since the device was opened.
struct LinkBytes {
  uint64_t in = 0, out = 0;
};
LinkBytes link_bytes(const Device& device) {
  return {.in = device.bytes_over(Link::kHostToDevice), .out = device.bytes_over(Link::kDeviceToHost)};
}

}  // namespace

std::optional<int32_t> prefill(const Run& run, std::span<const int32_t> prompt, HostClock::time_point started,
                               GenerateResult* result) {
  const Device& device = run.session.layout().device();
  const LinkBytes before = link_bytes(device);
  std::optional<int32_t> first;
  {
    const HostSpan span(device.trace(), "prefill");
    first = run.session.prefill(prompt, run.progress, run.options.interrupt);
  }
  const LinkBytes after = link_bytes(device);
  result->transfers.prefill_h2d_bytes += after.in - before.in;
  result->transfers.prefill_d2h_bytes += after.out - before.out;
  Timings& timings = result->timings;
  const SessionStats stats = run.session.stats();
  timings.host_memory_ms += stats.host_memory_ms;
  timings.host_wait_ms += stats.host_wait_ms;
  if (!first) return first;
  timings.ttft_ms = ms_since(started);
  timings.prefill_tokens_per_s = per_second(run.session.layout().computed_rows(), timings.ttft_ms);
  return first;
}

void decode(const Run& run, int32_t first, GenerateResult* result) {
  const uint64_t prefill_written = run.session.stats().spill.written_bytes;
  if (run.progress) run.progress->begin("decode", "tokens", run.output.max_tokens());
  const HostClock::time_point start = HostClock::now();
  const Device& device = run.session.layout().device();
  const LinkBytes before = link_bytes(device);
  {
    const HostSpan span(device.trace(), "decode");
    DecodeLoop loop(run);
    run.options.forced.empty() ? loop.run(first) : loop.follow(&result->forced);
  }
  Timings& timings = result->timings;
  result->speculation = run.drafting.speculation();
  timings.step_ms = run.drafting.step_ms();
  timings.decode_steps = static_cast<int64_t>(timings.step_ms.size());
  timings.decode_tokens = run.output.taken() - 1;  // the first is prefill's
  timings.decode_ms = ms_since(start);
  timings.decode_tokens_per_s = per_second(timings.decode_tokens, timings.decode_ms);
  const LinkBytes after = link_bytes(device);
  result->transfers.decode_h2d_bytes = after.in - before.in;
  result->transfers.decode_d2h_bytes = after.out - before.out;
  result->spill = {run.session.stats().spill, prefill_written, run.setup.session.spill.folder};
  if (run.progress) run.progress->end();
}

}  // namespace headrace
