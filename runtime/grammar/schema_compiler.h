// Compiles a JSON schema to a grammar (schema.h). Included by .cc files only.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "runtime/grammar/schema_reader.h"
#include "runtime/grammar/text_body.h"

namespace headrace {

class SchemaCompiler {
 public:
  explicit SchemaCompiler(const SchemaReader& reader) : reader_(reader) {}

  Grammar grammar();

 private:
  // Each adds the nodes of a value before `next`.
  int32_t value_of(SchemaPlace at, int32_t next);
  int32_t one_value(const SchemaPlace& at, int32_t next);
  int32_t plain(const SchemaPlace& at, int32_t next);
  int32_t constant(const SchemaPlace& at, const std::vector<SchemaJson>& values, int32_t next);
  int32_t typed(const SchemaPlace& at, JsonTypes types, int32_t next);
  int32_t text(const SchemaPlace& at, int32_t next);
  int32_t number(const SchemaPlace& at, bool whole, int32_t next);
  int32_t list(const SchemaPlace& at, int32_t next);
  int32_t object(const SchemaPlace& at, int32_t next);

  TextRules text_rules(const SchemaPlace& at) const;

  int32_t tuple(const SchemaPlace& at, size_t own, int32_t min, int32_t max, int32_t next);
  int32_t unique_list(const SchemaPlace& at, int32_t min, int32_t max, int32_t next);

  // A member's name and value, up to kReturn.
  struct Property {
    std::string name;
    int32_t member;
    bool required;
  };
  struct Counts {
    bool none = false, some = false;  // no object is valid; an object has a member
    int32_t max_others = -1;          // members without a name in the schema; -1: any number
  };
  std::vector<Property> properties(const SchemaPlace& at);
  std::optional<int32_t> other_member(const SchemaPlace& at, const std::vector<Property>& named);
  SchemaPlace name_place(const SchemaPlace& at) const;
  std::optional<std::vector<std::string>> allowed_names(const SchemaPlace& at) const;
  Counts counts(const SchemaPlace& at, std::vector<Property>* all, bool others) const;
  AnyJson any();

  const SchemaReader& reader_;
  Grammar g_;
  std::optional<AnyJson> any_;
  std::map<SchemaList, int32_t> rules_;  // of places that may recur
  size_t states_left_ = kMaxTextStates;
  int depth_ = 0;
};

}  // namespace headrace
