// What a server says about its model without running it: /v1/models and /tokenize. Borrows the engine. Thread: any.
#pragma once

#include <string>

#include "runtime/engine/engine.h"

namespace headrace {

class ModelAnswers {
 public:
  explicit ModelAnswers(const Engine& engine);

  const std::string& name() const { return name_; }  // of the file or folder, without .gguf
  std::string list() const;                          // {"object": "list", "data": [the model]}
  std::string one() const;
  // {"content", "add_special", "with_pieces"} -> {"tokens": [ids, or {"id", "piece"}]}, as llama-server has it. Text
  // never becomes a special token. Throws Error(kBadInput) that names the field.
  std::string tokenize(const std::string& body) const;

 private:
  const Engine& engine_;
  const std::string name_;
  const int64_t created_;
};

}  // namespace headrace
