#include "kernels/cpu/isa.h"

#include <atomic>
#include <cstdlib>

#include "cache/base.h"
#include "kernels/instruction_set.h"

namespace headrace {

const char* cpu_instruction_set() { return kernels::isa_name(kernels::isa()); }

}  // namespace headrace

namespace headrace::kernels {

namespace {

constexpr int kUnset = -1;
std::atomic<int> current{kUnset};

Isa widest_supported() {
  Isa widest = Isa::kBaseline;
  for (Isa candidate : kAllIsas) {
    if (isa_supported(candidate)) widest = candidate;
  }
  return widest;
}

Isa from_environment() {
  const char* name = std::getenv("HEADRACE_ISA");
  if (name == nullptr || *name == '\0') return widest_supported();
  Isa chosen;
  if (!parse_isa(name, &chosen)) {
    throw_error(ExitCode::kUsage, "HEADRACE_ISA", str("'", name, "' is no instruction set"),
                "baseline, avx2, avx512 or avx512bf16; leave it unset for the widest that the machine has");
  }
  if (!isa_supported(chosen)) {
    throw_error(ExitCode::kUsage, "HEADRACE_ISA", str("this machine has no ", name),
                str("the widest it has is ", isa_name(widest_supported())));
  }
  return chosen;
}

}  // namespace

bool isa_supported(Isa isa) {
#if defined(__x86_64__)
  // Every machine with AVX2 has F16C, but not every compiler can query it.
  const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
  const bool avx512 = avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                      __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq");
  switch (isa) {
    case Isa::kBaseline:
      return true;
    case Isa::kAvx2:
      return avx2;
    case Isa::kAvx512:
      return avx512;
    case Isa::kAvx512Bf16:
      return avx512 && __builtin_cpu_supports("avx512bf16") && __builtin_cpu_supports("avx512vnni");
  }
  return false;
#else
  return isa == Isa::kBaseline;
#endif
}

const char* isa_name(Isa isa) {
  constexpr const char* kNames[] = {"baseline", "avx2", "avx512", "avx512bf16"};
  return kNames[static_cast<size_t>(isa)];
}

bool parse_isa(std::string_view name, Isa* out) {
  for (Isa candidate : kAllIsas) {
    if (name == isa_name(candidate)) {
      *out = candidate;
      return true;
    }
  }
  return false;
}

Isa isa() {
  int value = current.load(std::memory_order_relaxed);
  if (value == kUnset) {  // two threads may both get here, with the same result
    value = static_cast<int>(from_environment());
    current.store(value, std::memory_order_relaxed);
  }
  return static_cast<Isa>(value);
}

void set_isa(Isa isa) {
  CHECK(isa_supported(isa), isa_name(isa));
  current.store(static_cast<int>(isa), std::memory_order_relaxed);
}

}  // namespace headrace::kernels
