// The instruction set of the CPU bodies: a source named *_isa.cc is compiled once per set, with that set's flags, into
// a separate namespace headrace::kernels::isa_<name>. Each subject has a table of function pointers there, and the
// widest set of this machine is selected once at run time. Bits may differ between sets, never within one.
//
// Such a source may only contain code inside HEADRACE_ISA_NAMESPACE. It must not instantiate or call an inline function
// of another namespace (std::, headrace::): the linker keeps one copy of such a function, which may contain AVX-512
// instructions. The test isa_symbols checks the object files.
//
// To add a subject: declare its table with HEADRACE_DECLARE_ISA, select with HEADRACE_PICK_ISA, list the source under
// ISA in its CMakeLists.txt. Thread-safe.
#pragma once

#include <cstdint>
#include <string_view>

namespace headrace::kernels {

enum class Isa : uint8_t { kBaseline, kAvx2, kAvx512, kAvx512Bf16 };
constexpr Isa kAllIsas[] = {Isa::kBaseline, Isa::kAvx2, Isa::kAvx512, Isa::kAvx512Bf16};

// The widest set of the machine, or the one in the environment variable HEADRACE_ISA; throws Error(kUsage) for an
// unknown name, or a set that the machine lacks.
Isa isa();
bool isa_supported(Isa isa);
const char* isa_name(Isa isa);                    // "baseline", "avx2", "avx512", "avx512bf16"
bool parse_isa(std::string_view name, Isa* out);  // false for any other name

// For tests and benches, between synchronised streams. REQUIRES: isa_supported(isa).
void set_isa(Isa isa);

// HEADRACE_DECLARE_ISA(ProductKernels, product_kernels) declares one constant table per set; the *_isa.cc source
// defines it. HEADRACE_PICK_ISA(product_kernels) is the selected set's table.
#if defined(__x86_64__)
#define HEADRACE_DECLARE_ISA(Table, name) \
  namespace isa_baseline {                \
  extern const Table name;                \
  }                                       \
  namespace isa_avx2 {                    \
  extern const Table name;                \
  }                                       \
  namespace isa_avx512 {                  \
  extern const Table name;                \
  }                                       \
  namespace isa_avx512bf16 {              \
  extern const Table name;                \
  }
#define HEADRACE_PICK_ISA(name) \
  (::headrace::kernels::pick_isa(isa_baseline::name, isa_avx2::name, isa_avx512::name, isa_avx512bf16::name))
#else
#define HEADRACE_DECLARE_ISA(Table, name) \
  namespace isa_baseline {                \
  extern const Table name;                \
  }
#define HEADRACE_PICK_ISA(name) (isa_baseline::name)
#endif

template <typename Table>
const Table& pick_isa(const Table& baseline, const Table& avx2, const Table& avx512, const Table& avx512bf16) {
  const Table* const tables[] = {&baseline, &avx2, &avx512, &avx512bf16};
  return *tables[static_cast<int>(isa())];
}

}  // namespace headrace::kernels
