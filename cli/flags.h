// One flag as a row of a table: its names, its help, and what its value sets. The tables are in flag_groups.cc and
// parser*.cc.
// Thread: one.
#pragma once

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "cache/base.h"

namespace headrace {

// Takes the value, or says what is wrong with it.
using SetFlag = std::function<std::string(const std::string& value)>;

struct Flag {
  std::string names;  // "-c,--ctx-size": the environment variable is named after the first long one
  std::string value;  // "TOKENS", for the help
  SetFlag set;        // null: a switch
  bool* on = nullptr;
  std::string help;
  std::string variable{};  // of the environment; empty: environment_name(names)
};

// Adds the rows to a command, under a heading of its help.
void add_flags(CLI::App& app, const std::string& heading, const std::vector<Flag>& flags);
// "-c,--ctx-size" -> "HEADRACE_CTX_SIZE"
std::string environment_name(const std::string& names);

// What a value may be.
SetFlag text_value(std::string* out);
SetFlag utf8_value(std::string* out);  // text for the model: refused where it is not UTF-8
SetFlag tokens_value(int64_t* out);    // 128K; at least 1
SetFlag bytes_value(uint64_t* out);    // 24GiB; at least 1
// /mnt/nvme:200GiB; the size may be left out. What follows a last colon and is no size is refused, unless there is a
// folder of the whole name, or a / behind it.
SetFlag folder_value(std::string* out, uint64_t* limit);
SetFlag int_value(int64_t* out, int64_t low, int64_t high);  // both included
SetFlag seed_value(uint64_t* out);
SetFlag float_value(float* out, float low, float high);
SetFlag double_value(double* out, double low, double high);  // both included
SetFlag dtype_value(std::optional<DType>* out, const std::vector<std::string>& names);

template <typename T>
SetFlag choice_value(T* out, std::vector<std::pair<std::string, T>> choices) {
  return [out, choices = std::move(choices)](const std::string& value) {
    std::string names;
    for (const auto& [name, choice] : choices) {
      if (value == name) {
        *out = choice;
        return std::string();
      }
      names += (names.empty() ? "" : ", ") + name;
    }
    return "'" + value + "' is none of " + names;
  };
}

// Values behind one another, with commas between: "16K,61440". `item` makes what sets one.
template <typename T>
SetFlag list_value(std::vector<T>* out, std::function<SetFlag(T*)> item) {
  return [out, item = std::move(item)](const std::string& value) {
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
}

}  // namespace headrace
