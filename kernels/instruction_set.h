// The instruction set of the CPU bodies, which decides their bits. Any thread.
#pragma once

namespace headrace {

// The name of the set in use: "baseline", "avx2", "avx512" or "avx512bf16". Throws Error(kUsage) if HEADRACE_ISA has
// another value, or one that this machine lacks.
const char* cpu_instruction_set();

}  // namespace headrace
