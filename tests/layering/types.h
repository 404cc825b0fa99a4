// Finds two definitions of one type in namespace headrace: with external linkage they are one type to the linker, which
// keeps one copy of each inline function of theirs. A reader of C++ that knows namespaces and braces, no more. Pure.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "tests/layering/includes.h"

namespace headrace::layering {

struct TypeDefinition {
  std::string name;  // "headrace::cuda::Check"
  int line = 0;      // 1-based
};

// Every class, struct, union, enum and alias (using X = ...) that a source defines at the top level of a named
// namespace; none in an anonymous one, none inside a class or a function. Templates' specialisations are left out.
std::vector<TypeDefinition> defined_types(std::string_view source);

// One line for each type of headrace that a second file defines.
std::vector<std::string> types_defined_twice(const std::vector<Source>& sources);

}  // namespace headrace::layering
