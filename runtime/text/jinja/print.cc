#include "runtime/text/jinja/print.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdio>

#include "cache/base.h"
#include "runtime/base/utf8.h"
#include "runtime/text/jinja/callable.h"

namespace headrace::jinja {

namespace {

// The shortest text that reads back as the number, with Python's choice of an exponent.
std::string real_text(double value) {
  if (std::isnan(value)) return "nan";
  if (std::isinf(value)) return value < 0 ? "-inf" : "inf";
  char digits[64];
  const auto end = std::to_chars(digits, digits + sizeof digits, value, std::chars_format::scientific).ptr;
  const std::string scientific(digits, end);
  const int exponent = std::stoi(scientific.substr(scientific.find('e') + 1));
  if (exponent < -4 || exponent >= 16) return scientific;
  const auto fixed_end = std::to_chars(digits, digits + sizeof digits, value, std::chars_format::fixed).ptr;
  std::string fixed(digits, fixed_end);
  return fixed.find('.') == std::string::npos ? fixed + ".0" : fixed;
}

std::string hex_escape(const char* format, uint32_t number) {
  char out[16];
  std::snprintf(out, sizeof out, format, number);
  return out;
}

template <typename Function>
std::string each_character(std::string_view bytes, Function&& function) {
  std::string out;
  while (!bytes.empty()) {
    const Utf8Unit unit = next_utf8(bytes);
    function(unit.code_point, bytes.substr(0, unit.length), &out);
    bytes.remove_prefix(unit.length);
  }
  return out;
}

Text repr(const Text& text) {
  const std::string& bytes = text.bytes();
  const bool doubled = bytes.find('\'') != std::string::npos && bytes.find('"') == std::string::npos;
  const char32_t quote = doubled ? '"' : '\'';
  const std::string mark(1, static_cast<char>(quote));
  const Text inside = text.mapped([&](std::string_view run) {
    return each_character(run, [&](char32_t c, std::string_view character, std::string* out) {
      if (c == '\n' || c == '\r' || c == '\t') {
        *out += c == '\n' ? "\\n" : c == '\r' ? "\\r" : "\\t";
      } else if (c < 0x20 || (c >= 0x7F && c <= 0xA0) || c == 0xAD) {
        *out += hex_escape("\\x%02x", c);
      } else {
        if (c == quote || c == '\\') *out += '\\';
        *out += character;
      }
    });
  });
  Text out(mark);
  out.append(inside);
  out.append(mark, Origin::kTemplate);
  return out;
}

// Appends texts of the template and of values.
class Printer {
 public:
  void value(const Value& value) {
    if (value.text()) return out_.append(repr(*value.text()));
    if (value.list()) return list(*value.list());
    if (value.dict()) return dict(*value.dict());
    word(value.is_undefined() ? "Undefined" : plain(value));
  }
  Text take() { return std::move(out_); }

  static std::string plain(const Value& value) {
    if (value.is_undefined()) return "";
    if (value.is_none()) return "None";
    if (value.boolean()) return *value.boolean() ? "True" : "False";
    if (value.integer()) return std::to_string(*value.integer());
    if (value.real()) return real_text(*value.real());
    return str("<", type_name(value), ">");
  }

 private:
  void word(std::string_view text) { out_.append(text, Origin::kTemplate); }
  void list(const List& list) {
    word(list.is_tuple ? "(" : "[");
    for (size_t i = 0; i < list.items.size(); ++i) {
      if (i > 0) word(", ");
      value(list.items[i]);
    }
    if (list.is_tuple && list.items.size() == 1) word(",");
    word(list.is_tuple ? ")" : "]");
  }
  void dict(const Dict& dict) {
    word("{");
    bool first = true;
    for (const auto& [key, member] : dict.entries) {
      if (!first) word(", ");
      first = false;
      value(key);
      word(": ");
      value(member);
    }
    word("}");
  }
  Text out_;
};

class JsonPrinter {
 public:
  JsonPrinter(Runtime& runtime, const JsonStyle& style) : runtime_(runtime), style_(style) {}

  void value(const Value& value, int64_t level) {
    if (value.text()) return string(*value.text());
    if (value.list()) return list(value.list()->items, level);
    if (value.dict()) return dict(*value.dict(), level);
    if (value.is_none()) return word("null");
    if (value.boolean()) return word(*value.boolean() ? "true" : "false");
    if (value.real() && std::isinf(*value.real())) return word(*value.real() < 0 ? "-Infinity" : "Infinity");
    if (value.real() && std::isnan(*value.real())) return word("NaN");
    if (value.real() || value.integer()) return word(Printer::plain(value));
    runtime_.fail(value.is_undefined() ? value.why_undefined()
                                       : str("tojson: JSON has no form for a ", type_name(value)));
  }
  Text take() { return std::move(out_); }

 private:
  void word(std::string_view text) { out_.append(text, Origin::kTemplate); }
  void marked(std::string_view separator) {
    runtime_.charge_bytes(separator.size());
    word(separator);
  }

  void string(const Text& text) {
    word("\"");
    out_.append(text.mapped([&](std::string_view run) {
      return each_character(run, [&](char32_t c, std::string_view character, std::string* out) {
        static constexpr std::string_view kEscaped = "\"\\\n\r\t\f\b", kLetters = "\"\\nrtfb";
        const size_t place = c < 0x80 ? kEscaped.find(static_cast<char>(c)) : std::string_view::npos;
        if (place != std::string_view::npos) {
          *out += {'\\', kLetters[place]};
        } else if (c < 0x20 || (style_.ascii && c >= 0x7F && c < 0x10000)) {
          *out += c == 0x7F ? "\x7F" : hex_escape("\\u%04x", c);
        } else if (style_.ascii && c >= 0x10000) {
          *out += hex_escape("\\u%04x", 0xD800 + ((c - 0x10000) >> 10));
          *out += hex_escape("\\u%04x", 0xDC00 + (c & 0x3FF));
        } else {
          *out += character;
        }
      });
    }));
    word("\"");
  }

  // A line of its own for a member, or for the closing bracket.
  void line(int64_t level) {
    if (style_.indent < 0) return;
    runtime_.charge_bytes(static_cast<uint64_t>(style_.indent * level));
    word("\n" + std::string(static_cast<size_t>(style_.indent * level), ' '));
  }
  void separator(bool first, int64_t level) {
    if (!first) marked(style_.item_separator);
    line(level);
  }

  void list(const std::vector<Value>& items, int64_t level) {
    if (items.empty()) return word("[]");
    word("[");
    for (size_t i = 0; i < items.size(); ++i) {
      separator(i == 0, level + 1);
      value(items[i], level + 1);
    }
    line(level);
    word("]");
  }

  void dict(const Dict& dict, int64_t level) {
    if (dict.entries.empty()) return word("{}");
    auto entries = dict.entries;
    if (style_.sort_keys)
      std::stable_sort(entries.begin(), entries.end(), [](const auto& a, const auto& b) {
        int order = 0;
        return compare(a.first, b.first, &order) && order < 0;
      });
    word("{");
    bool first = true;
    for (const auto& [key, member] : entries) {
      separator(first, level + 1);
      first = false;
      this->key(key);
      marked(style_.key_separator);
      value(member, level + 1);
    }
    line(level);
    word("}");
  }

  void key(const Value& key) {
    if (key.text()) return string(*key.text());
    if (key.list()) runtime_.fail("tojson: a tuple cannot be a key in JSON");
    word("\"");
    value(key, 0);
    word("\"");
  }

  Runtime& runtime_;
  const JsonStyle& style_;
  Text out_;
};

}  // namespace

Text printed(Runtime& runtime, const Value& value) {
  runtime.charge(value.weight());
  if (value.text()) return *value.text();
  return !value.list() && !value.dict() ? Text(Printer::plain(value)) : printed_repr(runtime, value);
}

Text printed_repr(Runtime& runtime, const Value& value) {
  runtime.charge(value.weight());
  Printer printer;
  printer.value(value);
  return printer.take();
}

std::string printed_real(double value) { return real_text(value); }

Text json_text(Runtime& runtime, const Value& value, const JsonStyle& style) {
  runtime.charge(value.weight());
  JsonPrinter printer(runtime, style);
  printer.value(value, 0);
  return printer.take();
}

}  // namespace headrace::jinja
