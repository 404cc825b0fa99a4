// Reads JSON of untrusted origin as nlohmann's values: in linear time whatever its keys and lists are, with bounds on
// depth and on the number of values. Pure; any thread. Included by .cc files only, through runtime/base/json_file.h.
#pragma once

#include <cstddef>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <unordered_map>

#include "cache/base.h"
#include "runtime/base/json_file.h"

namespace headrace {

// A text's bytes and the place in it. The functions that read a token end behind it.
class JsonText {
 public:
  JsonText(std::string_view text, const std::string& source, JsonOrigin origin);

  char peek();  // the next byte that is no white space; '\0' at the end
  void expect(char c);
  bool take(char c);  // skips it if it is next
  void literal(std::string_view word);
  std::string string();
  std::string_view number(bool* whole);  // its text; `whole`: neither fraction nor exponent
  void end();                            // only white space is left
  void count_value(int depth);           // throws beyond either bound
  [[noreturn]] void refuse(const std::string& why) const;

  JsonOrigin origin() const { return origin_; }
  const std::string& source() const { return source_; }

 private:
  void digits();
  void escape(std::string* out);
  char32_t unit();  // of \uXXXX, behind the u
  char32_t surrogate(char32_t high);

  const std::string_view text_;
  const std::string& source_;
  const JsonOrigin origin_;
  size_t at_ = 0;
  uint64_t values_ = 0;
};

// A number's value: an integer if it is whole and fits one of 64 bits, else a double.
template <typename Json>
Json json_number(JsonText* text);

// Json: nlohmann::json, or nlohmann::ordered_json, whose objects have no index of their own.
template <typename Json>
class JsonReader {
 public:
  JsonReader(JsonText* text, DuplicateKeys duplicates) : text_(*text), duplicates_(duplicates) {}

  Json document() {
    Json value = read(0);
    text_.end();
    return value;
  }

 private:
  Json read(int depth) {
    text_.count_value(depth);
    switch (text_.peek()) {
      case '{':
        return object(depth);
      case '[':
        return array(depth);
      case '"':
        return text_.string();
      case 't':
        return text_.literal("true"), true;
      case 'f':
        return text_.literal("false"), false;
      case 'n':
        return text_.literal("null"), nullptr;
      default:
        return json_number<Json>(&text_);
    }
  }

  Json array(int depth) {
    Json list = Json::array();
    auto& items = list.template get_ref<typename Json::array_t&>();
    text_.expect('[');
    if (text_.take(']')) return list;
    do items.push_back(read(depth + 1));
    while (text_.take(','));
    text_.expect(']');
    return list;
  }

  Json object(int depth) {
    Json out = Json::object();
    auto& members = out.template get_ref<typename Json::object_t&>();
    std::unordered_map<std::string, size_t> places;  // of an ordered object
    text_.expect('{');
    if (text_.take('}')) return out;
    do {
      if (text_.peek() != '"') text_.refuse("a key must be a string");
      std::string key = text_.string();
      text_.expect(':');
      Json value = read(depth + 1);
      member(&members, &places, key) = std::move(value);
    } while (text_.take(','));
    text_.expect('}');
    return out;
  }

  template <typename Members>
  Json& member(Members* members, std::unordered_map<std::string, size_t>* places, const std::string& key) {
    if constexpr (requires { members->try_emplace(key); }) {
      const auto [found, added] = members->try_emplace(key);
      check_new(added, key);
      return found->second;
    } else {
      const auto [place, added] = places->try_emplace(key, members->size());
      check_new(added, key);
      if (added) members->emplace_back(key, nullptr);
      return (members->begin() + static_cast<std::ptrdiff_t>(place->second))->second;
    }
  }

  void check_new(bool added, const std::string& key) const {
    if (added || duplicates_ == DuplicateKeys::kLastWins) return;
    throw_error(ExitCode::kBadInput, text_.source(), str("the key ", shown(key), " occurs twice in one object"));
  }

  JsonText& text_;
  const DuplicateKeys duplicates_;
};

}  // namespace headrace
