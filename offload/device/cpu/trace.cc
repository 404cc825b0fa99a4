#include "offload/device/cpu/trace.h"

#include "offload/device/cpu_stream.h"
#include "offload/host/clock.h"

namespace headrace {

void CpuTraceClock::stamp(Stream& stream, TraceSlice& slice, TraceEdge edge) {
  cpu_stream(stream).enqueue([at = &slice, edge](ThreadPool&) { at->stamp(edge, host_now_ns()); });
}

}  // namespace headrace
