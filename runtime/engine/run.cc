#include "runtime/engine/run.h"

#include <optional>

#include "offload/device/trace.h"
#include "offload/host/clock.h"
#include "runtime/engine/decode_loop.h"

namespace headrace {
namespace {

double per_second(int64_t count, double ms) { return ms > 0 ? static_cast<double>(count) / (ms / 1000) : 0; }

// Since the device was opened.
struct LinkBytes {
  uint64_t in = 0, out = 0;
};
LinkBytes link_bytes(const Device& device) {
  return {.in = device.bytes_over(Link::kHostToDevice), .out = device.bytes_over(Link::kDeviceToHost)};
}

SpillUse spill_use(const SpillStats& prefilled, const SpillStats& end, const std::string& folder) {
  return {.file_bytes = end.file_bytes,
          .prefill_written_bytes = prefilled.written_bytes,
          .decode_written_bytes = end.written_bytes - prefilled.written_bytes,
          .decode_read_bytes = end.read_bytes,
          .checksum_ms = end.checksum_ms,
          .verify_wait_ms = end.verify_wait_ms,
          .read_busy_ms = end.read_busy_ms,
          .folder = folder,
          .how = end.how,
          .reads_at_once = end.reads_at_once};
}

std::optional<int32_t> prefill(const Answer& a) {
  const LinkBytes before = link_bytes(a.device);
  std::optional<int32_t> first;
  {
    const HostSpan span(a.device.trace(), "prefill");
    first = a.session.prefill(a.prompt, a.progress, a.run.interrupt);
  }
  const LinkBytes after = link_bytes(a.device);
  a.result.transfers.prefill_h2d_bytes += after.in - before.in;
  a.result.transfers.prefill_d2h_bytes += after.out - before.out;
  Timings& timings = a.result.timings;
  const SessionStats stats = a.session.stats();
  timings.host_memory_ms += stats.host_memory_ms;
  timings.host_wait_ms += stats.host_wait_ms;
  if (!first) return first;
  timings.ttft_ms = ms_since(a.started);
  timings.prefill_tokens_per_s = per_second(a.session.layout().computed_rows(), timings.ttft_ms);
  return first;
}

void run_steps(const Answer& a, int32_t first) {
  const HostSpan span(a.device.trace(), "decode");
  DecodeLoop(a.session, a.drafting, a.output, a.compute,
             {.verify = *a.setup.verify.mode,
              .interval = a.setup.verify.interval,
              .streams = a.result.plan.ring_slots > 0,
              .step_costs = a.run.step_costs,
              .pending = a.setup.pending,
              .interrupt = a.run.interrupt,
              .progress = a.progress,
              .model = a.model,
              .damage = a.damage})
      .run(first);
}

void decode(const Answer& a, int32_t first) {
  const HostClock::time_point start = HostClock::now();
  const LinkBytes before = link_bytes(a.device);
  a.drafting.planned(a.compute, {.streams = a.result.plan.ring_slots > 0,
                                 .verify = *a.setup.verify.mode,
                                 .most_steps = a.output.max_tokens(),
                                 .step_costs = a.run.step_costs});
  run_steps(a, first);
  Timings& timings = a.result.timings;
  a.result.speculation = a.drafting.speculation();
  timings.step_ms = a.drafting.step_ms();
  timings.decode_steps = static_cast<int64_t>(timings.step_ms.size());
  timings.decode_tokens = a.output.taken() - 1;  // the first is prefill's
  timings.decode_ms = ms_since(start);
  timings.decode_tokens_per_s = per_second(timings.decode_tokens, timings.decode_ms);
  const LinkBytes after = link_bytes(a.device);
  a.result.transfers.decode_h2d_bytes = after.in - before.in;
  a.result.transfers.decode_d2h_bytes = after.out - before.out;
}

}  // namespace

void answer(const Answer& a) {
  const std::optional<int32_t> first = prefill(a);
  if (!first) return a.output.interrupted();
  const SpillStats prefilled = a.session.stats().spill;
  if (a.progress) a.progress->begin("decode", "tokens", a.output.max_tokens());
  decode(a, *first);
  a.result.spill = spill_use(prefilled, a.session.stats().spill, a.setup.session.spill.folder);
  if (a.progress) a.progress->end();
}

}  // namespace headrace
