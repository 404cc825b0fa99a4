// "%s has %d items" % values: the conversions s, r, d, i, f, x and %%, with flags, width and precision.
#include <algorithm>
#include <cstdio>

#include "cache/base.h"
#include "runtime/text/jinja/operations.h"
#include "runtime/text/jinja/print.h"

namespace headrace::jinja {

namespace {

constexpr int64_t kMaxWidth = 1000;

struct Conversion {
  std::string flags;
  int64_t width = 0, precision = -1;
  char kind = '\0';
};

size_t read_number(const std::string& text, size_t at, int64_t* out) {
  for (*out = 0; at < text.size() && text[at] >= '0' && text[at] <= '9'; ++at)
    *out = std::min(*out * 10 + (text[at] - '0'), kMaxWidth + 1);
  return at;
}

size_t read_conversion(const Runtime& runtime, const std::string& text, size_t at, Conversion* out) {
  while (at < text.size() && std::string_view("-+ 0").find(text[at]) != std::string_view::npos)
    out->flags += text[at++];
  at = read_number(text, at, &out->width);
  if (at < text.size() && text[at] == '.') at = read_number(text, at + 1, &out->precision);
  if (out->width > kMaxWidth || out->precision > kMaxWidth) runtime.fail(str("a format is wider than ", kMaxWidth));
  if (at == text.size()) runtime.fail("a format ends after '%'");
  out->kind = text[at];
  return at + 1;
}

Text number(const Runtime& runtime, const Conversion& conversion, const Value& value) {
  char out[2 * kMaxWidth];
  double real = 0;
  if (!value.number(&real)) runtime.fail(str("'%", conversion.kind, "' needs a number, not a ", type_name(value)));
  const auto width = static_cast<int>(conversion.width), precision = static_cast<int>(conversion.precision);
  if (conversion.kind == 'f') {
    const std::string format = "%" + conversion.flags + "*.*f";
    std::snprintf(out, sizeof out, format.c_str(), width, precision < 0 ? 6 : precision, real);
  } else {
    int64_t whole = 0;
    if (!value.whole(&whole)) {
      if (!(real > -9e18 && real < 9e18)) runtime.fail("a number is too large for '%d'");
      whole = static_cast<int64_t>(real);
    }
    const std::string format = "%" + conversion.flags + (conversion.kind == 'x' ? "*llx" : "*lld");
    std::snprintf(out, sizeof out, format.c_str(), width, static_cast<long long>(whole));
  }
  return Text(out);
}

Text converted(Runtime& runtime, const Conversion& conversion, const Value& value) {
  if (std::string_view("dixf").find(conversion.kind) != std::string_view::npos)
    return number(runtime, conversion, value);
  if (conversion.kind != 's') runtime.fail(str("'%", conversion.kind, "' is not supported"));
  Text text = printed(runtime, value);
  int64_t length = 0;
  if (conversion.precision >= 0) text = *sliced(runtime, text, None(), conversion.precision, None()).text();
  length_of(text, &length);
  const std::string space(static_cast<size_t>(std::max<int64_t>(conversion.width - length, 0)), ' ');
  Text out(conversion.flags.find('-') == std::string::npos ? space : "");
  out.append(text);
  if (out.size() == text.size()) out.append(space, Origin::kTemplate);
  return out;
}

}  // namespace

Value formatted(Runtime& runtime, const Text& format, const std::vector<Value>& values) {
  Text out;
  size_t used = 0, done = 0;
  const std::string& text = format.bytes();
  for (size_t at = text.find('%'); at != std::string::npos; at = text.find('%', done)) {
    out.append(format.slice(done, at));
    Conversion conversion;
    done = read_conversion(runtime, text, at + 1, &conversion);
    if (conversion.kind == '%') {
      out.append("%", format.origin_at(at));
      continue;
    }
    if (used == values.size()) runtime.fail("a format has more conversions than values");
    const Text part = converted(runtime, conversion, values[used++]);
    runtime.charge_bytes(part.size());
    out.append(part);
  }
  if (used < values.size()) runtime.fail("a format has fewer conversions than values");
  out.append(format.slice(done, text.size()));
  return runtime.text(std::move(out));
}

}  // namespace headrace::jinja
