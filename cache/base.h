// The base header: bug checks, the one exception type, element types and byte units.
// It includes nothing of ours and may be included from anywhere. All functions are pure and thread-safe.
#pragma once

#include <cstddef>
#include <cstdint>
#include <exception>
#include <sstream>
#include <string>
#include <string_view>

namespace headrace {

// ---- Errors -------------------------------------------------------------------------------------------------------
// A bug is a CHECK (it aborts with the values). A failing environment (a bad file, a full disk, CUDA) throws Error. An
// expected outcome is a return value.

// The process exit code that an Error maps to (docs/design.md, section 11).
enum class ExitCode : int {
  kDone = 0,
  kInternal = 1,
  kUsage = 2,
  kBadInput = 3,    // a bad file, model, prompt or document
  kDoesNotFit = 4,  // over a memory budget
  kStorage = 5,     // a disk or file system failed
  kInterrupted = 130,
};

struct ErrorInfo {
  ExitCode code = ExitCode::kInternal;
  std::string where;  // the file, flag or call: "model.safetensors", "--vram", "cudaMemcpyAsync"
  std::string what;   // what is wrong, with the value: "header is 99 bytes, the file has 12"
  std::string hint;   // what to do about it; may be empty
};

// The one exception type. what() is "where: what" and, on a second line, the hint.
class Error : public std::exception {
 public:
  explicit Error(ErrorInfo info);
  const char* what() const noexcept override { return text_.c_str(); }
  const ErrorInfo& info() const noexcept { return info_; }
  ExitCode code() const noexcept { return info_.code; }

 private:
  ErrorInfo info_;
  std::string text_;
};

// "where: what" without the hint, for notes and table rows of one line.
inline std::string first_line(std::string_view text) { return std::string(text.substr(0, text.find('\n'))); }
inline std::string first_line(const std::exception& error) { return first_line(std::string_view(error.what())); }

// Shorthand for the common case: throw_error(ExitCode::kBadInput, path, "…", "…").
[[noreturn]] void throw_error(ExitCode code, std::string where, std::string what, std::string hint = "");

// Concatenates with operator<<: str("head_dim ", 64, " is odd"). Throws std::bad_alloc when memory runs out; a plain
// stream would drop the rest of the text.
template <typename... Args>
std::string str(const Args&... args) {
  std::ostringstream out;
  out.exceptions(std::ios_base::badbit);
  (out << ... << args);
  return out.str();
}

[[noreturn]] void check_failed(const char* expression, const char* file, int line, const std::string& values);

// CHECK(n > 0, "n=", n): aborts with the expression, the place and the values. For bugs only, never for bad input.
#define CHECK(condition, ...)                                                                                   \
  do {                                                                                                          \
    if (!(condition)) [[unlikely]]                                                                              \
      ::headrace::check_failed(#condition, __FILE__, __LINE__, ::headrace::str("" __VA_OPT__(, ) __VA_ARGS__)); \
  } while (false)

// ---- Element types ------------------------------------------------------------------------------------------------

// kInt8 and kInt4 are types of stored KV rows only (kernels/rows/op.h); weights and states never have them.
enum class DType : uint8_t { kF32, kF16, kBF16, kInt8, kInt4 };

struct bf16 {
  uint16_t bits;
};
struct f16 {
  uint16_t bits;
};

constexpr bool low_bit(DType type) { return type == DType::kInt8 || type == DType::kInt4; }
constexpr size_t dtype_bytes(DType type) { return type == DType::kF32 ? 4 : 2; }  // REQUIRES: !low_bit(type)
const char* dtype_name(DType type);                   // "f32", "f16", "bf16", "int8", "int4"
bool parse_dtype(std::string_view name, DType* out);  // "f32", "f16" and "bf16"; false for any other name

// A stored row of K or V of one KV head: its values, and apart from them its parameters. int8: an f16 scale. int4: for
// each group of kInt4Group values an f16 scale and an f16 minimum. Other types have no parameters.
constexpr int64_t kInt4Group = 32;
constexpr uint64_t row_value_bytes(DType type, int64_t head_dim) {
  const uint64_t dim = static_cast<uint64_t>(head_dim);
  return type == DType::kInt8 ? dim : type == DType::kInt4 ? dim / 2 : dim * dtype_bytes(type);
}
constexpr uint64_t row_parameter_bytes(DType type, int64_t head_dim) {
  const uint64_t groups = static_cast<uint64_t>(head_dim / kInt4Group);
  return type == DType::kInt8 ? 2 : type == DType::kInt4 ? groups * 4 : 0;
}
constexpr uint64_t row_bytes(DType type, int64_t head_dim) {
  return row_value_bytes(type, head_dim) + row_parameter_bytes(type, head_dim);
}

// Remainders (kernels/rows/op.h): what a segment's int8 rows lack of its bf16 rows. For each run of kRemainderRun
// values of K, then of V, the place of its piece, in words of 32 bits from the first piece; then the pieces, in at most
// remainder_room() words. `values`: of K and V together.
constexpr int64_t kRemainderRun = 1024;
constexpr uint64_t remainder_pieces_offset(uint64_t values) { return values / kRemainderRun * 4; }
constexpr uint64_t remainder_room(uint64_t values) { return values * 3 / 16; }  // words: 6 bits a value
constexpr uint64_t remainder_bytes(uint64_t values, uint64_t words) {
  return remainder_pieces_offset(values) + 4 * words;
}

// Scalar conversions, round to nearest even; NaN stays NaN. Bulk conversions are in kernels.
float bf16_to_f32(bf16 value);
bf16 f32_to_bf16(float value);
float f16_to_f32(f16 value);
f16 f32_to_f16(float value);

// ---- Bytes --------------------------------------------------------------------------------------------------------

constexpr uint64_t kKiB = 1024, kMiB = 1024 * kKiB, kGiB = 1024 * kMiB;

std::string format_bytes(uint64_t bytes);  // "1.50 GiB", "24 B"
// "24GiB", "24G" and "24g" are 24 * 2^30 bytes; "24GB" is 24 * 10^9. Also K, M and T, a fraction, and plain bytes.
// Returns false on anything else and on overflow.
bool parse_bytes(std::string_view text, uint64_t* out);

// Buffers are allocated in whole pages, so a plan counts whole pages.
constexpr uint64_t kPageBytes = 4 * kKiB;

constexpr uint64_t round_up(uint64_t value, uint64_t multiple) { return (value + multiple - 1) / multiple * multiple; }
constexpr uint64_t whole_pages(uint64_t bytes) { return round_up(bytes, kPageBytes); }
constexpr int64_t ceil_div(int64_t value, int64_t divisor) { return (value + divisor - 1) / divisor; }

// Returns false on overflow instead of wrapping: for sizes read from files.
[[nodiscard]] inline bool checked_mul(uint64_t a, uint64_t b, uint64_t* out) {
  return !__builtin_mul_overflow(a, b, out);
}
[[nodiscard]] inline bool checked_add(uint64_t a, uint64_t b, uint64_t* out) {
  return !__builtin_add_overflow(a, b, out);
}

// ---- The tail -----------------------------------------------------------------------------------------------------
// Attention is cut by the query's own position (docs/design.md, section 6, rule 2): a query at absolute position t sees
// rows [0, tail_begin(t)) as prefix, in states per segment, and rows [tail_begin(t), t] as tail, in order of position.
// These are constants of the program: changing one raises kNumericsVersion.

constexpr int64_t kTailWindow = 256;
constexpr int64_t kPrefixTile = 64;  // the prefix ends at a multiple of this, and is walked in tiles of it
constexpr int64_t kTailGroup = 16;   // the tail is walked in groups at absolute multiples of this

constexpr int64_t tail_begin(int64_t position) {
  return position < kTailWindow ? 0 : (position - kTailWindow) / kPrefixTile * kPrefixTile;
}

}  // namespace headrace
