// Python's pickles as far as PyTorch writes them for a state_dict. Nothing is executed: a few opcodes build plain
// values, a few globals are names for them, and everything else is an error that says what was asked for. Pure.
#pragma once

#include <cstdint>
#include <deque>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace headrace {

struct PickleValue {
  enum class Kind { kNone, kBool, kInt, kString, kGlobal, kTuple, kDict, kPersistent, kTensor };

  Kind kind = Kind::kNone;
  int64_t number = 0;                     // kBool, kInt
  std::string text;                       // kString; kGlobal: "torch FloatStorage"
  std::vector<const PickleValue*> items;  // kTuple; kPersistent: its id, a tuple; kTensor: its arguments, a tuple
  std::vector<std::pair<const PickleValue*, const PickleValue*>> dict;  // kDict, in the order of writing
};

// Owns all values, which may hold one another in any way, in circles too.
struct Pickle {
  std::deque<PickleValue> values;
  const PickleValue* root = nullptr;
};

// `source` names the file in errors. Throws Error(kBadInput).
Pickle parse_pickle(std::string_view bytes, const std::string& source);

}  // namespace headrace
