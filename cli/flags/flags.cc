#include "cli/flags/flags.h"

#include <charconv>
#include <filesystem>
#include <iterator>
#include <sstream>
#include <system_error>

#include "cli/print/format.h"
#include "runtime/base/nearest.h"
#include "runtime/text/document.h"

namespace headrace {
namespace {

template <typename T>
bool parse_number(const std::string& text, T* out) {
  const char* end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, *out);
  return error == std::errc() && stop == end;
}

void add_flag(CLI::App& app, const std::string& heading, const Flag& flag) {
  CLI::Option* option = nullptr;
  if (flag.set) {
    const auto set = [names = flag.names, set_value = flag.set](const std::string& value) {
      const std::string wrong = set_value(value);
      if (!wrong.empty()) throw CLI::ValidationError(names, wrong);
    };
    option = app.add_option_function<std::string>(flag.names, set, flag.help)->type_name(flag.value);
    option->take_last();
    offer_words(option, flag.set.words());
  } else {
    option = app.add_flag_callback(flag.names, flag.on, flag.help);
  }
  option->envname(flag.variable.empty() ? environment_name(flag.names) : flag.variable)->group(heading);
}

}  // namespace

void offer_words(CLI::Option* option, const std::vector<std::string>& words) {
  std::string text;
  for (const std::string& word : words) text += (text.empty() ? "" : " ") + word;
  option->default_str(text);
}

std::vector<std::string> offered_words(const CLI::Option& option) {
  std::istringstream text(option.get_default_str());
  return {std::istream_iterator<std::string>(text), {}};
}

std::string environment_name(const std::string& names) {
  const size_t begin = names.find("--");
  CHECK(begin != std::string::npos, "names=", names);
  std::string name = "HEADRACE_";
  for (char c : names.substr(begin + 2, names.find(',', begin) - begin - 2)) {
    name += c == '-' ? '_' : static_cast<char>(c >= 'a' && c <= 'z' ? c - 'a' + 'A' : c);
  }
  return name;
}

void add_flags(CLI::App& app, const std::string& heading, const std::vector<Flag>& flags) {
  for (const Flag& flag : flags) add_flag(app, heading, flag);
}

SetFlag text_value(std::string* out) {
  return [out](const std::string& value) {
    *out = value;
    return std::string();
  };
}

SetFlag utf8_value(std::string* out) {
  return [out](const std::string& value) {
    if (const std::optional<size_t> bad = first_bad_utf8(value)) return str("is not UTF-8 text at byte ", *bad);
    *out = value;
    return std::string();
  };
}

SetFlag tokens_value(int64_t* out) {
  return [out](const std::string& value) {
    int64_t tokens = 0;
    if (!parse_tokens(value, &tokens) || tokens < 1)
      return "'" + value + "' is not a number of tokens such as 8192 or 128K";
    *out = tokens;
    return std::string();
  };
}

SetFlag bytes_value(uint64_t* out) {
  return [out](const std::string& value) {
    uint64_t bytes = 0;
    if (!parse_bytes(value, &bytes) || bytes < 1) return "'" + value + "' is not a size such as 24GiB or 512MB";
    *out = bytes;
    return std::string();
  };
}

// If the folder's own name ends in a colon and a size, add another size: "/mnt/a:1G:200GiB".
SetFlag folder_value(std::string* out, uint64_t* limit) {
  return [=](const std::string& value) {
    const size_t colon = value.rfind(':');
    uint64_t bytes = 0;
    const std::string size = colon == std::string::npos ? "" : value.substr(colon + 1);
    const bool sized = parse_bytes(size, &bytes);
    std::error_code unknown;
    if (!sized && colon != std::string::npos && size.find('/') == std::string::npos &&
        !std::filesystem::is_directory(value, unknown)) {
      return str("'", value, "': '", size, "' is not a size such as 24GiB, and no folder of the whole name exists");
    }
    *out = sized ? value.substr(0, colon) : value;
    *limit = bytes;
    if (out->empty()) return "'" + value + "' names no folder";
    if (sized && bytes == 0) return "'" + value + "' leaves no room: the size is 0";
    return std::string();
  };
}

std::string not_one_of(const std::string& value, const std::vector<std::string>& names, const std::string& also) {
  std::string list;
  for (const std::string& name : names) list += (list.empty() ? "" : ", ") + name;
  return "'" + value + "' is not one of " + list + also + did_you_mean(value, names);
}

std::string parse_int(const std::string& value, int64_t low, int64_t high, int64_t* out) {
  if (parse_number(value, out) && *out >= low && *out <= high) return "";
  return str("'", value, "' is not a whole number from ", low, " to ", high);
}

SetFlag seed_value(uint64_t* out) {
  return [out](const std::string& value) {
    uint64_t number = 0;
    if (!parse_number(value, &number)) return "'" + value + "' is not a whole number from 0 to 2^64 - 1";
    *out = number;
    return std::string();
  };
}

namespace {

template <typename T>
SetFlag real_value(T* out, T low, T high) {
  return [=](const std::string& value) {
    T number = 0;
    if (!parse_number(value, &number) || !(number >= low && number <= high)) {
      return str("'", value, "' is not a number from ", low, " to ", high);
    }
    *out = number;
    return std::string();
  };
}

}  // namespace

SetFlag float_value(float* out, float low, float high) { return real_value(out, low, high); }
SetFlag double_value(double* out, double low, double high) { return real_value(out, low, high); }

SetFlag dtype_value(std::optional<DType>* out, const std::vector<std::string>& names) {
  std::vector<std::pair<std::string, std::optional<DType>>> choices;
  for (const std::string& name : names) {
    DType type;
    choices.emplace_back(name, parse_dtype(name, &type) ? std::optional<DType>(type) : std::nullopt);
  }
  return choice_value(out, std::move(choices));
}

SetFlag cache_type_value(std::optional<DType>* out) {
  return choice_value<std::optional<DType>>(out, {{"bf16", DType::kBF16},
                                                  {"f16", DType::kF16},
                                                  {"f32", DType::kF32},
                                                  {"int8", DType::kInt8},
                                                  {"q8_0", DType::kInt8}});
}

}  // namespace headrace
