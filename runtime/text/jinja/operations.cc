#include "runtime/text/jinja/operations.h"

#include <cmath>

#include "cache/base.h"
#include "runtime/text/jinja/characters.h"
#include "runtime/text/jinja/print.h"

namespace headrace::jinja {

namespace {

[[noreturn]] void no_operator(const Runtime& runtime, std::string_view name, const Value& a, const Value& b) {
  for (const Value* value : {&a, &b})
    if (value->is_undefined()) runtime.fail(value->why_undefined());
  runtime.fail(str("'", name, "' has no meaning between a ", type_name(a), " and a ", type_name(b)));
}

Value joined(Runtime& runtime, const Text& a, const Text& b) {
  runtime.charge_bytes(a.size() + b.size());
  Text out = a;
  out.append(b);
  return runtime.text(std::move(out));
}

Value repeated(Runtime& runtime, const Value& value, int64_t times) {
  const auto count = static_cast<uint64_t>(std::max<int64_t>(times, 0));
  uint64_t work = 0;
  const uint64_t size = value.text() ? value.text()->size() + 1 : value.list()->items.size() + 1;
  if (!checked_mul(count, size, &work)) work = UINT64_MAX;
  value.text() ? runtime.charge(count), runtime.charge_bytes(work) : runtime.charge(work);
  if (value.text()) {
    Text out;
    for (uint64_t i = 0; i < count; ++i) out.append(*value.text());
    return runtime.text(std::move(out));
  }
  std::vector<Value> out;
  for (uint64_t i = 0; i < count; ++i) out.insert(out.end(), value.list()->items.begin(), value.list()->items.end());
  return value.list()->is_tuple ? runtime.tuple(std::move(out)) : runtime.list(std::move(out));
}

// Division rounds down, and a remainder has the divisor's sign.
Value divided(const Runtime& runtime, std::string_view name, int64_t a, int64_t b) {
  if (b == 0) runtime.fail("a division by zero");
  if (a == INT64_MIN && b == -1) runtime.fail("an integer is too large");
  const int64_t remainder = a % b, fix = remainder != 0 && (remainder < 0) != (b < 0) ? 1 : 0;
  if (name == "%") return remainder + fix * b;
  return a / b - fix;
}

Value power(const Runtime& runtime, int64_t base, int64_t exponent) {
  if (exponent < 0) return std::pow(static_cast<double>(base), static_cast<double>(exponent));
  int64_t out = 1;
  if (base == 0 || base == 1 || base == -1)
    return exponent == 0 || base == 1 || (base == -1 && exponent % 2 == 0) ? int64_t{1} : base;
  for (; exponent > 0; --exponent)
    if (__builtin_mul_overflow(out, base, &out)) runtime.fail("an integer is too large");
  return out;
}

Value whole_result(Runtime& runtime, std::string_view name, int64_t a, int64_t b) {
  int64_t out = 0;
  bool overflows = false;
  if (name == "+") {
    overflows = __builtin_add_overflow(a, b, &out);
  } else if (name == "-") {
    overflows = __builtin_sub_overflow(a, b, &out);
  } else if (name == "*") {
    overflows = __builtin_mul_overflow(a, b, &out);
  } else if (name == "**") {
    return power(runtime, a, b);
  } else if (name == "/") {
    if (b == 0) runtime.fail("a division by zero");
    return static_cast<double>(a) / static_cast<double>(b);
  } else {
    return divided(runtime, name, a, b);
  }
  if (overflows) runtime.fail("an integer is too large");
  return out;
}

Value real_result(const Runtime& runtime, std::string_view name, double a, double b) {
  if (name == "+") return a + b;
  if (name == "-") return a - b;
  if (name == "*") return a * b;
  if (name == "**") return std::pow(a, b);
  if (b == 0) runtime.fail("a division by zero");
  if (name == "/") return a / b;
  const double floor = std::floor(a / b);
  return name == "//" ? floor : a - floor * b;
}

bool holds(std::string_view text, std::string_view part) {
  return part.empty() || find_part(text, part) != std::string_view::npos;
}

bool contains(Runtime& runtime, const Value& part, const Value& whole) {
  if (whole.text()) {
    const Text& wanted = runtime.need_text(part, "'in' a str");
    runtime.charge_search(*whole.text(), wanted);
    return holds(whole.text()->bytes(), wanted.bytes());
  }
  if (whole.list()) {
    for (const Value& value : whole.list()->items)
      if (runtime.equal(value, part)) return true;
    return false;
  }
  if (whole.dict()) {
    runtime.charge(whole.weight());
    return whole.dict()->find(part) != nullptr;
  }
  if (whole.is_undefined()) return false;
  no_operator(runtime, "in", part, whole);
}

}  // namespace

Value binary(Runtime& runtime, std::string_view name, const Value& a, const Value& b) {
  if (name == "~") return joined(runtime, printed(runtime, a), printed(runtime, b));
  if (name == "+" && a.text() && b.text()) return joined(runtime, *a.text(), *b.text());
  if (name == "+" && a.list() && b.list() && a.list()->is_tuple == b.list()->is_tuple) {
    runtime.charge(a.list()->items.size() + b.list()->items.size());
    std::vector<Value> out = a.list()->items;
    out.insert(out.end(), b.list()->items.begin(), b.list()->items.end());
    return a.list()->is_tuple ? runtime.tuple(std::move(out)) : runtime.list(std::move(out));
  }
  int64_t i = 0, j = 0;
  if (name == "*" && (a.text() || a.list()) && b.whole(&j)) return repeated(runtime, a, j);
  if (name == "*" && (b.text() || b.list()) && a.whole(&i)) return repeated(runtime, b, i);
  if (name == "%" && a.text()) {
    const bool is_tuple = b.list() && b.list()->is_tuple;
    return formatted(runtime, *a.text(), is_tuple ? b.list()->items : std::vector<Value>{b});
  }
  if (a.whole(&i) && b.whole(&j)) return whole_result(runtime, name, i, j);
  double x = 0, y = 0;
  if (a.number(&x) && b.number(&y)) return real_result(runtime, name, x, y);
  no_operator(runtime, name, a, b);
}

Value unary(Runtime& runtime, std::string_view name, const Value& value) {
  int64_t whole = 0;
  double real = 0;
  if (value.whole(&whole)) return name == "-" ? whole_result(runtime, "-", 0, whole) : Value(whole);
  if (value.number(&real)) return name == "-" ? -real : real;
  if (value.is_undefined()) runtime.fail(value.why_undefined());
  runtime.fail(str("'", name, "' has no meaning before a ", type_name(value)));
}

bool compared(Runtime& runtime, std::string_view name, const Value& a, const Value& b) {
  if (name == "in") return contains(runtime, a, b);
  if (name == "not in") return !contains(runtime, a, b);
  if (name == "==") return runtime.equal(a, b);
  if (name == "!=") return !runtime.equal(a, b);
  runtime.charge(std::min(a.weight(), b.weight()));
  int order = 0;
  if (!compare(a, b, &order)) no_operator(runtime, name, a, b);
  return name == "<" ? order < 0 : name == "<=" ? order <= 0 : name == ">" ? order > 0 : order >= 0;
}

}  // namespace headrace::jinja
