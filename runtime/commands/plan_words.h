// What the words of `headrace plan qwen3-14b rtx4090` name: a shape, a card, or a model's files. Reads the file system
// to know a path from a typing error. Thread: one.
#pragma once

#include <string>
#include <vector>

#include "runtime/commands/plan.h"

namespace headrace {

enum class PlanWord { kCard, kShape, kModel };
// A card by its id, with or without "rtx", or by figures (cache/gpu_specs.h); a shape's name or a config.json; else the
// name of a directory, file or hub model. Throws Error(kUsage) for what is none of them, with the name that is spelled
// most like it.
PlanWord plan_word(const std::string& word);
bool is_card_word(const std::string& word);
std::vector<std::string> card_names();  // ids
std::vector<std::string> shape_names();
// Throws Error(kUsage) with such a name if --gpu or --shape are of no card or shape. Empty: not given.
void check_plan_names(const std::string& gpu, const std::string& shape);

}  // namespace headrace
