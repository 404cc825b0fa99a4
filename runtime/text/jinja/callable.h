// Functions, macros, methods and loops as values, and the arguments of a call. Thread: one.
#pragma once

#include <initializer_list>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "runtime/text/jinja/value.h"

namespace headrace::jinja {

class Runtime;
struct Scope;
struct Stmt;

struct Arguments {
  std::vector<Value> positional;  // of a filter or a test: its value first
  std::vector<std::pair<std::string, Value>> named;
};

using Builtin = Value (*)(Runtime& runtime, const Arguments& arguments);

// One of: a built-in function; a method `name` of `receiver`; a macro with the scope that it was defined in.
struct Callable {
  std::string name;
  Builtin builtin = nullptr;
  Value receiver;
  const Stmt* macro = nullptr;
  std::weak_ptr<Scope> scope;
};

// The variable `loop` at one iteration.
struct Loop {
  std::shared_ptr<const std::vector<Value>> items;
  size_t index = 0;
  int64_t depth = 1;
  const Stmt* statement = nullptr;  // not null: recursive, `loop(items)` runs it
  std::weak_ptr<Scope> scope;       // of the statement
};

// The arguments of a call by parameter, positional ones first; null where none is given. Fails at the runtime's line
// on too many, missing, unknown or repeated ones; `what` names the function.
std::vector<const Value*> bound(const Runtime& runtime, const Arguments& arguments, std::string_view what,
                                std::initializer_list<std::string_view> names, size_t required);

}  // namespace headrace::jinja
