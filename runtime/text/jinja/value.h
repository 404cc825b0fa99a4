// The values of a template: immutable, except namespaces, and shared by pointer. Lists and dictionaries hold data only
// (no functions, namespaces or loops) and have a bounded depth, so no value can contain itself. Thread: one.
#pragma once

#include <cstdint>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "runtime/text/jinja/text.h"

namespace headrace::jinja {

constexpr int kMaxValueDepth = 100;  // of lists and dictionaries within each other
constexpr uint64_t kBytesPerWeight = 16;
constexpr uint64_t kMaxWeight = uint64_t{1} << 60;  // shared members count each time, so weights can grow without end

struct Undefined {
  std::shared_ptr<const std::string> why;  // "'x' is undefined"
};
struct None {};
struct List;
struct Dict;
struct Namespace;
struct Callable;
struct Loop;

class Value {
 public:
  using TextPtr = std::shared_ptr<const Text>;
  using ListPtr = std::shared_ptr<const List>;
  using DictPtr = std::shared_ptr<const Dict>;
  using NamespacePtr = std::shared_ptr<Namespace>;
  using CallablePtr = std::shared_ptr<const Callable>;
  using LoopPtr = std::shared_ptr<const Loop>;

  Value() = default;
  Value(None none) : data_(none) {}
  Value(bool value) : data_(value) {}
  Value(int64_t value) : data_(value) {}
  Value(double value) : data_(value) {}
  Value(Text text) : data_(std::make_shared<const Text>(std::move(text))) {}
  Value(List list);
  Value(Dict dict);
  Value(NamespacePtr value) : data_(std::move(value)) {}
  Value(CallablePtr value) : data_(std::move(value)) {}
  Value(LoopPtr value) : data_(std::move(value)) {}
  Value(const char*) = delete;  // would become a bool
  static Value undefined(std::string why);
  static Value text(std::string_view bytes) { return Text(std::string(bytes)); }

  bool is_undefined() const { return std::holds_alternative<Undefined>(data_); }
  bool is_none() const { return std::holds_alternative<None>(data_); }
  const bool* boolean() const { return std::get_if<bool>(&data_); }
  const int64_t* integer() const { return std::get_if<int64_t>(&data_); }
  const double* real() const { return std::get_if<double>(&data_); }
  const Text* text() const { return pointer<TextPtr>(); }
  const List* list() const { return pointer<ListPtr>(); }
  const Dict* dict() const { return pointer<DictPtr>(); }
  Namespace* space() const { return pointer<NamespacePtr>(); }
  const Callable* callable() const { return pointer<CallablePtr>(); }
  const Loop* loop() const { return pointer<LoopPtr>(); }
  std::string why_undefined() const;  // empty unless it is

  bool is_data() const { return !space() && !callable() && !loop(); }
  int depth() const;               // of lists and dictionaries: 1 or more; of other values 0
  uint64_t weight() const;         // the steps to read all of it: 1 a value, 1 more for kBytesPerWeight bytes of text
  bool number(double* out) const;  // of an int, float or bool
  bool whole(int64_t* out) const;  // of an int or bool
  bool is_whole() const { return integer() || boolean(); }

 private:
  template <typename Pointer>
  auto pointer() const -> typename Pointer::element_type* {
    const Pointer* found = std::get_if<Pointer>(&data_);
    return found ? found->get() : nullptr;
  }
  std::variant<Undefined, None, bool, int64_t, double, TextPtr, ListPtr, DictPtr, NamespacePtr, CallablePtr, LoopPtr>
      data_;
};

struct List {
  std::vector<Value> items;
  bool is_tuple = false;
  int depth = 1;
  uint64_t weight = 1;
};

struct Dict {
  std::vector<std::pair<Value, Value>> entries;  // in order of insertion; keys differ
  int depth = 1;
  uint64_t weight = 1;
  const Value* find(const Value& key) const;
  const Value* find(std::string_view key) const;
  void set(Value key, Value value);  // the caller charges for the search
};

struct Namespace {
  std::vector<std::pair<std::string, Value>> attributes;
  Value* find(std::string_view name);
};

const char* type_name(const Value& value);  // as Python has it: "str", "NoneType"
bool truthy(const Value& value);
bool equal_values(const Value& a, const Value& b);  // Runtime::equal charges for it
// -1, 0 or 1 in *order; false if the two have no order.
bool compare(const Value& a, const Value& b, int* order);

// Texts of the value have this origin. Throws Error(kBadInput) at `source` if it is deeper than kMaxValueDepth.
// Invalid UTF-8 becomes U+FFFD.
Value from_json(const nlohmann::ordered_json& json, Origin origin, const std::string& source);

}  // namespace headrace::jinja
