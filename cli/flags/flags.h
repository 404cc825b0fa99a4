// One flag as a row of a table: names, help text, and the function that sets its value. The tables are in
// flag_groups.cc and parser*.cc; parsing, help, man page and shell completion derive from them. The functions are
// stricter than CLI11's conversions, which read 010 as eight and --kv 1 as the second choice. Thread: one.
#pragma once

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "cache/base.h"

namespace headrace {

// Sets the value, or returns the error. `words`: values that a shell offers; others may be valid, too.
class SetFlag {
 public:
  SetFlag() = default;
  template <typename F>
  requires std::is_invocable_r_v<std::string, F, const std::string&> SetFlag(
      F set, std::vector<std::string> words = {})  // NOLINT: a function is one without words
      : set_(std::move(set)), words_(std::move(words)) {}

  explicit operator bool() const { return static_cast<bool>(set_); }
  std::string operator()(const std::string& value) const { return set_(value); }
  const std::vector<std::string>& words() const { return words_; }

 private:
  std::function<std::string(const std::string& value)> set_;
  std::vector<std::string> words_;
};

struct Flag {
  Flag(std::string flag_names, std::string value_name, SetFlag set_value, std::string text, std::string env_name = "")
      : names(std::move(flag_names)),
        value(std::move(value_name)),
        set(std::move(set_value)),
        help(std::move(text)),
        variable(std::move(env_name)) {}
  Flag(std::string flag_names, std::function<void()> turn_on, std::string text)
      : names(std::move(flag_names)), on(std::move(turn_on)), help(std::move(text)) {}
  Flag(std::string flag_names, bool* on_off, std::string text)
      : Flag(
            std::move(flag_names), [on_off] { *on_off = true; }, std::move(text)) {}

  std::string names;         // "-c,--ctx-size"
  std::string value;         // "TOKENS", for the help
  SetFlag set;               // null: a switch
  std::function<void()> on;  // of a switch
  std::string help;
  std::string variable;  // of the environment; empty: environment_name(names)
};

// Adds the rows to a command, under a heading of its help.
void add_flags(CLI::App& app, const std::string& heading, const std::vector<Flag>& flags);
// The values that a shell offers for an option, "auto device host". CLI11 has no place for them: they stand in that of
// a default's text, which no help of this program prints.
void offer_words(CLI::Option* option, const std::vector<std::string>& words);
std::vector<std::string> offered_words(const CLI::Option& option);
// "-c,--ctx-size" -> "HEADRACE_CTX_SIZE"
std::string environment_name(const std::string& names);

// Values.
SetFlag text_value(std::string* out);
SetFlag utf8_value(std::string* out);  // text for the model, which must be UTF-8
SetFlag tokens_value(int64_t* out);    // 128K; at least 1
SetFlag bytes_value(uint64_t* out);    // 24GiB; at least 1
// /mnt/nvme:200GiB; the size is optional. Text after the last colon that is not a size is an error, unless a folder
// with the whole name exists or the text contains a slash.
SetFlag folder_value(std::string* out, uint64_t* limit);
SetFlag seed_value(uint64_t* out);
SetFlag float_value(float* out, float low, float high);      // inclusive
SetFlag double_value(double* out, double low, double high);  // inclusive
std::string parse_int(const std::string& value, int64_t low, int64_t high, int64_t* out);
SetFlag dtype_value(std::optional<DType>* out, const std::vector<std::string>& names);
SetFlag cache_type_value(std::optional<DType>* out);  // of K or V in the cache; q8_0 is int8

template <typename T>
SetFlag int_value(T* out, int64_t low, int64_t high) {  // inclusive
  return [=](const std::string& value) {
    int64_t number = 0;
    const std::string wrong = parse_int(value, low, high, &number);
    if (wrong.empty()) *out = static_cast<T>(number);
    return wrong;
  };
}

// "'x' is not one of a, b" and `also`, with the one that is spelled most like it.
std::string not_one_of(const std::string& value, const std::vector<std::string>& names, const std::string& also = "");

// `also`: follows the list of the choices in the error.
template <typename T>
SetFlag choice_value(T* out, std::vector<std::pair<std::string, T>> choices, const std::string& also = "") {
  std::vector<std::string> names;
  for (const auto& [name, choice] : choices) names.push_back(name);
  const auto set = [out, also, names, choices = std::move(choices)](const std::string& value) {
    for (const auto& [name, choice] : choices) {
      if (value != name) continue;
      *out = choice;
      return std::string();
    }
    return not_one_of(value, names, also);
  };
  return {set, names};
}

// Comma-separated values: "16K,61440". `item` returns the function that sets one of them.
template <typename T>
SetFlag list_value(std::vector<T>* out, std::function<SetFlag(T*)> item) {
  T any{};
  const std::vector<std::string> words = item(&any).words();
  const auto set = [out, item = std::move(item)](const std::string& value) {
    std::vector<T> list;
    for (size_t begin = 0; begin <= value.size();) {
      const size_t end = std::min(value.find(',', begin), value.size());
      T one{};
      const std::string wrong = item(&one)(value.substr(begin, end - begin));
      if (!wrong.empty()) return wrong;
      list.push_back(std::move(one));
      begin = end + 1;
    }
    *out = std::move(list);
    return std::string();
  };
  return {set, words};
}

}  // namespace headrace
