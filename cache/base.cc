#include "cache/base.h"

#include <array>
#include <bit>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <utility>

namespace headrace {

// A file name may contain a line break; it must not look like a second message.
Error::Error(ErrorInfo info) : info_(std::move(info)) {
  for (const char c : info_.where) {
    if (c == '\n') {
      text_ += "\\x0a";
    } else {
      text_ += c;
    }
  }
  if (!text_.empty()) text_ += ": ";
  text_ += info_.what;
  if (!info_.hint.empty()) text_ += "\n  " + info_.hint;
}

void throw_error(ExitCode code, std::string where, std::string what, std::string hint) {
  throw Error({code, std::move(where), std::move(what), std::move(hint)});
}

void check_failed(const char* expression, const char* file, int line, const std::string& values) {
  std::fprintf(stderr, "%s:%d: CHECK(%s) failed%s%s\n", file, line, expression, values.empty() ? "" : ": ",
               values.c_str());
  std::abort();
}

const char* dtype_name(DType type) {
  constexpr const char* kNames[] = {"f32", "f16", "bf16", "int8", "int4"};
  return kNames[static_cast<size_t>(type)];
}

bool parse_dtype(std::string_view name, DType* out) {
  for (DType type : {DType::kF32, DType::kF16, DType::kBF16}) {
    if (name == dtype_name(type)) {
      *out = type;
      return true;
    }
  }
  return false;
}

float bf16_to_f32(bf16 value) { return std::bit_cast<float>(uint32_t{value.bits} << 16); }

bf16 f32_to_bf16(float value) {
  uint32_t bits = std::bit_cast<uint32_t>(value);
  if ((bits & 0x7fffffffu) > 0x7f800000u) return {static_cast<uint16_t>((bits >> 16) | 0x40)};  // keep a NaN a NaN
  return {static_cast<uint16_t>((bits + 0x7fffu + ((bits >> 16) & 1)) >> 16)};
}

float f16_to_f32(f16 value) {
  const uint32_t sign = uint32_t{value.bits & 0x8000u} << 16, exponent = (value.bits >> 10) & 31,
                 mantissa = value.bits & 1023;
  if (exponent == 31) return std::bit_cast<float>(sign | 0x7f800000u | (mantissa << 13));
  if (exponent != 0) return std::bit_cast<float>(sign | ((exponent + 112) << 23) | (mantissa << 13));
  const float magnitude = static_cast<float>(mantissa) * 0x1p-24f;
  return sign ? -magnitude : magnitude;
}

f16 f32_to_f16(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  const uint16_t sign = static_cast<uint16_t>((bits >> 16) & 0x8000u);
  const uint32_t magnitude = bits & 0x7fffffffu;
  if (magnitude > 0x7f800000u) return {static_cast<uint16_t>(sign | 0x7e00u)};
  if (magnitude >= 0x477ff000u) return {static_cast<uint16_t>(sign | 0x7c00u)};  // rounds to infinity
  if (magnitude < 0x38800000u) {                                                 // subnormal or zero
    const float scaled = std::bit_cast<float>(magnitude) * 0x1p24f;
    return {static_cast<uint16_t>(sign | static_cast<uint16_t>(std::nearbyint(scaled)))};
  }
  const uint32_t rounded = magnitude + 0xfffu + ((magnitude >> 13) & 1);
  return {static_cast<uint16_t>(sign | ((rounded - 0x38000000u) >> 13))};
}

std::string format_bytes(uint64_t bytes) {
  static constexpr std::array<const char*, 5> kUnits = {"B", "KiB", "MiB", "GiB", "TiB"};
  double value = static_cast<double>(bytes);
  size_t unit = 0;
  while (value >= 1024 && unit + 1 < kUnits.size()) value /= 1024, ++unit;
  char text[32];
  std::snprintf(text, sizeof text, unit == 0 ? "%.0f %s" : "%.2f %s", value, kUnits[unit]);
  return text;
}

namespace {

// "gib" and "g" are binary, "gb" is decimal. 0: unknown unit.
double unit_bytes(const std::string& unit) {
  if (unit.empty() || unit == "b") return 1;
  const size_t power = std::string_view("kmgt").find(unit[0]) + 1;  // npos + 1 is 0
  const std::string_view rest = std::string_view(unit).substr(1);
  if (power == 0 || !(rest.empty() || rest == "b" || rest == "ib")) return 0;
  return std::pow(rest == "b" ? 1000.0 : 1024.0, static_cast<double>(power));
}

}  // namespace

bool parse_bytes(std::string_view text, uint64_t* out) {
  const std::string copy(text);
  if (copy.empty() || (copy[0] != '.' && (copy[0] < '0' || copy[0] > '9'))) return false;
  if (copy.size() > 1 && (copy[1] == 'x' || copy[1] == 'X')) return false;
  char* end = nullptr;
  const double value = std::strtod(copy.c_str(), &end);
  std::string unit(end);
  for (char& c : unit) c = static_cast<char>(c >= 'A' && c <= 'Z' ? c - 'A' + 'a' : c);
  while (!unit.empty() && unit.front() == ' ') unit.erase(0, 1);
  const double scale = unit_bytes(unit);
  const double bytes = value * scale;
  if (scale == 0 || !std::isfinite(bytes) || bytes < 0 || bytes >= 0x1p63) return false;
  *out = static_cast<uint64_t>(bytes);
  return true;
}

}  // namespace headrace
