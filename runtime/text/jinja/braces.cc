// "{} has {n:>3}".format(…): Python's str.format with the specs of texts, integers and reals.
#include <algorithm>
#include <charconv>
#include <cstdio>

#include "cache/base.h"
#include "runtime/base/utf8.h"
#include "runtime/text/jinja/characters.h"
#include "runtime/text/jinja/operations.h"
#include "runtime/text/jinja/print.h"

namespace headrace::jinja {

namespace {

constexpr int64_t kMaxField = 1000;

struct Spec {
  std::string fill = " ";
  char align = '\0', sign = '-', kind = '\0';
  bool zeros = false, commas = false, any = false;
  int64_t width = 0, precision = -1;
};

int64_t number_at(std::string_view text, size_t* at) {
  int64_t out = -1;
  for (; *at < text.size() && text[*at] >= '0' && text[*at] <= '9'; ++*at)
    out = std::min(std::max<int64_t>(out, 0) * 10 + (text[*at] - '0'), kMaxField + 1);
  return out;
}

// [[fill]align][sign][0][width][,][.precision][type]
Spec parse_spec(const Runtime& runtime, std::string_view text) {
  const auto is_align = [](char c) { return c == '<' || c == '>' || c == '^' || c == '='; };
  Spec spec;
  spec.any = !text.empty();
  size_t at = 0;
  if (!text.empty()) {
    const size_t first = utf8_length(text[0]);
    if (first < text.size() && is_align(text[first])) {
      spec.fill = text.substr(0, first);
      spec.align = text[first];
      at = first + 1;
    } else if (is_align(text[0])) {
      spec.align = text[at++];
    }
  }
  const auto take = [&](std::string_view any) {
    return at < text.size() && any.find(text[at]) != std::string_view::npos ? text[at++] : '\0';
  };
  if (const char sign = take("+- ")) spec.sign = sign;
  if (take("0")) {
    spec.zeros = true;
    if (spec.align == '\0') spec.fill = "0", spec.align = '=';
  }
  spec.width = std::max<int64_t>(number_at(text, &at), 0);
  spec.commas = take(",") != '\0';
  if (take(".")) {
    spec.precision = number_at(text, &at);
    if (spec.precision < 0) runtime.fail("format: a precision is missing");
  }
  spec.kind = take("sdfxXobeEgG%");
  if (at != text.size()) runtime.fail(str("format: the spec '", text, "' is not supported"));
  if (spec.width > kMaxField || spec.precision > kMaxField) runtime.fail(str("a format is wider than ", kMaxField));
  return spec;
}

// `sign` stands before what a '=' fills.
Text aligned(const Spec& spec, const std::string& sign, const Text& body, char preset) {
  const char align = spec.align == '\0' ? preset : spec.align;
  const auto size = static_cast<int64_t>(sign.size() + count_characters(body.bytes()));
  const int64_t room = std::max<int64_t>(spec.width - size, 0);
  const int64_t before = align == '>' || align == '=' ? room : align == '^' ? room / 2 : 0;
  const auto fill = [&](int64_t count) {
    std::string out;
    for (int64_t i = 0; i < count; ++i) out += spec.fill;
    return out;
  };
  Text out(align == '=' ? sign + fill(before) : fill(before) + sign);
  out.append(body);
  out.append(fill(room - before), Origin::kTemplate);
  return out;
}

std::string with_commas(std::string digits) {
  const size_t whole = std::min(digits.find_first_not_of("0123456789"), digits.size());
  for (size_t at = whole; at > 3; at -= 3) digits.insert(at - 3, ",");
  return digits;
}

std::string whole_digits(const Runtime& runtime, const Spec& spec, uint64_t value) {
  const int base = spec.kind == 'x' || spec.kind == 'X' ? 16 : spec.kind == 'o' ? 8 : spec.kind == 'b' ? 2 : 10;
  if (spec.commas && base != 10) runtime.fail("format: ',' is for decimal numbers");
  char out[70];
  std::string digits(out, std::to_chars(out, out + sizeof out, value, base).ptr);
  if (spec.kind == 'X')
    std::transform(digits.begin(), digits.end(), digits.begin(),
                   [](char c) { return c >= 'a' ? static_cast<char>(c - 32) : c; });
  return digits;
}

std::string real_digits(const Runtime& runtime, const Spec& spec, double value) {
  if (spec.kind == '\0' && spec.precision < 0) return printed_real(value);
  char out[2 * kMaxField];
  const char kind = spec.kind == '%' ? 'f' : spec.kind == '\0' ? 'g' : spec.kind;
  if (spec.kind == '\0') runtime.fail("format: a precision needs a type, such as f");
  const char format[] = {'%', '.', '*', kind, '\0'};
  std::snprintf(out, sizeof out, format, static_cast<int>(spec.precision < 0 ? 6 : spec.precision),
                spec.kind == '%' ? 100 * value : value);
  return std::string(out) + (spec.kind == '%' ? "%" : "");
}

Text formatted_value(Runtime& runtime, const Value& value, const Spec& spec) {
  if (!spec.any) return printed(runtime, value);
  if (value.is_undefined()) runtime.fail(value.why_undefined());
  const bool is_text = value.text() != nullptr;
  int64_t whole = 0;
  double real = 0;
  std::string digits;
  bool negative = false;
  if (is_text) {
    if ((spec.kind != 's' && spec.kind != '\0') || spec.align == '=' || spec.commas)
      runtime.fail("format: the spec is not for a str");
    Text text = printed(runtime, value);
    if (spec.precision >= 0) text = *sliced(runtime, text, None(), spec.precision, None()).text();
    return aligned(spec, "", text, '<');
  }
  if (value.whole(&whole) &&
      (spec.kind == '\0' || std::string_view("dxXob").find(spec.kind) != std::string_view::npos)) {
    if (spec.precision >= 0) runtime.fail("format: an int has no precision");
    negative = whole < 0;
    digits = whole_digits(runtime, spec, negative ? 0 - static_cast<uint64_t>(whole) : static_cast<uint64_t>(whole));
  } else if (value.number(&real) && std::string_view("dxXobs").find(spec.kind) == std::string_view::npos) {
    negative = real < 0;
    digits = real_digits(runtime, spec, negative ? -real : real);
  } else {
    runtime.fail(str("format: the spec is not for a ", type_name(value)));
  }
  if (spec.commas) digits = with_commas(std::move(digits));
  const std::string sign = negative ? "-" : spec.sign == '-' ? "" : std::string(1, spec.sign);
  return aligned(spec, sign, Text(digits), '>');
}

class Braces {
 public:
  Braces(Runtime& runtime, const Arguments& arguments) : runtime_(runtime), arguments_(arguments) {}

  // "name.a[0]!r:>5", the inside of a pair of braces.
  Text field(std::string_view text) {
    const size_t colon = text.find(':');
    std::string_view name = text.substr(0, colon);
    const std::string_view spec = colon == std::string_view::npos ? "" : text.substr(colon + 1);
    char conversion = '\0';
    if (const size_t mark = name.find('!'); mark != std::string_view::npos) {
      if (mark + 2 != name.size()) runtime_.fail("format: a conversion is one letter");
      conversion = name[mark + 1];
      name = name.substr(0, mark);
    }
    Value value = lookup(name);
    if (conversion == 's') value = printed(runtime_, value);
    if (conversion == 'r') value = printed_repr(runtime_, value);
    if (conversion != '\0' && conversion != 's' && conversion != 'r')
      runtime_.fail(str("format: the conversion '!", std::string(1, conversion), "' is not supported"));
    return formatted_value(runtime_, value, parse_spec(runtime_, spec));
  }

 private:
  Value lookup(std::string_view name) {
    const size_t end = std::min(name.find_first_of(".["), name.size());
    if (end == 0 && !name.empty()) runtime_.fail(str("format: '", name, "' names no value"));
    Value value = first(name.substr(0, end));
    for (size_t at = end; at < name.size();) {
      const bool is_item = name[at] == '[';
      const size_t stop = std::min(is_item ? name.find(']', at) : name.find_first_of(".[", at + 1), name.size());
      const std::string part(name.substr(at + 1, stop - at - 1));
      if (part.empty() || (is_item && stop == name.size())) runtime_.fail(str("format: '", name, "' is not a field"));
      int64_t index = 0;
      const bool whole =
          std::from_chars(part.data(), part.data() + part.size(), index).ptr == part.data() + part.size();
      value =
          !is_item ? attribute(runtime_, value, part) : item(runtime_, value, whole ? Value(index) : Value::text(part));
      if (value.is_undefined()) runtime_.fail(value.why_undefined());
      at = stop + is_item;
    }
    return value;
  }

  Value first(std::string_view name) {
    const bool numbered = !name.empty() && name.find_first_not_of("0123456789") == std::string_view::npos;
    if (name.empty() || numbered) {
      (numbered ? any_numbered_ : any_counted_) = true;
      if (any_numbered_ && any_counted_) runtime_.fail("format: fields with and without numbers");
      size_t at = next_;
      const int64_t number = numbered ? number_at(name, &(at = 0)) : static_cast<int64_t>(next_++);
      if (number >= static_cast<int64_t>(arguments_.positional.size()))
        runtime_.fail("a format has more fields than values");
      return arguments_.positional[static_cast<size_t>(number)];
    }
    for (const auto& [key, value] : arguments_.named)
      if (key == name) return value;
    runtime_.fail(str("format: no value is named '", name, "'"));
  }

  Runtime& runtime_;
  const Arguments& arguments_;
  bool any_numbered_ = false, any_counted_ = false;
  size_t next_ = 0;
};

}  // namespace

Value braces_formatted(Runtime& runtime, const Text& format, const Arguments& arguments) {
  const std::string_view text = format.bytes();
  Braces braces(runtime, arguments);
  Text out;
  for (size_t done = 0; done < text.size();) {
    const size_t at = std::min(text.find_first_of("{}", done), text.size());
    out.append(format.slice(done, at));
    done = at;
    if (at == text.size()) break;
    if (at + 1 < text.size() && text[at + 1] == text[at]) {
      out.append(format.slice(at, at + 1));
      done = at + 2;
      continue;
    }
    const size_t end = text[at] == '{' ? text.find('}', at) : std::string_view::npos;
    if (end == std::string_view::npos) runtime.fail(str("format: a '", text.substr(at, 1), "' without its pair"));
    const std::string_view inside = text.substr(at + 1, end - at - 1);
    if (inside.find('{') != std::string_view::npos) runtime.fail("format: a field within a field is not supported");
    const Text part = braces.field(inside);
    runtime.charge(1 + part.size() / kBytesPerWeight);
    out.append(part);
    done = end + 1;
  }
  return runtime.text(std::move(out));
}

}  // namespace headrace::jinja
