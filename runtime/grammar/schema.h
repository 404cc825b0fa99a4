// From a JSON schema to the grammar of answers that are valid by it. Pure; any thread.
//
// The grammar has a part of all valid texts, so each of its texts is valid, and not the other way round: properties
// come in the schema's order; those that it does not name only where additionalProperties is given, or no property is;
// items behind prefixItems only where items is given; a schema without `type` has the types of its keywords; numbers
// with bounds or multipleOf have no exponent, and none has more than some 18 digits. A oneOf must have schemas of which
// the grammar's answers can be told apart: by type, by a const, or by required properties. What a keyword asks for and
// this does not do is an error that names it.
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "runtime/grammar/grammar.h"

namespace headrace {

constexpr size_t kMaxSchemaBytes = size_t{1} << 20;

// `source` names the schema in errors ("schema.json", or the field of a request). Throws Error(kBadInput).
std::shared_ptr<const Grammar> schema_grammar(std::string_view json, const std::string& source);
// Any JSON object.
std::shared_ptr<const Grammar> json_object_grammar();

}  // namespace headrace
