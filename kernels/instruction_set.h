// The instruction set of the CPU bodies, for whoever must know which bits they make. Any thread.
#pragma once

namespace headrace {

// The name of the set in use: "baseline", "avx2", "avx512" or "avx512bf16". Throws Error(kUsage) if HEADRACE_ISA names
// none of them, or one that this machine does not have.
const char* cpu_instruction_set();

}  // namespace headrace
