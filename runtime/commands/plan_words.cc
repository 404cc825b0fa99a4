#include "runtime/commands/plan_words.h"

#include <algorithm>

#include "cache/gpu_specs.h"
#include "runtime/base/file_hints.h"
#include "runtime/base/input_file.h"
#include "runtime/base/nearest.h"
#include "runtime/model/files/shapes.h"

namespace headrace {
namespace {

bool is_listed(const std::string& word, const std::vector<std::string>& names) {
  return std::find(names.begin(), names.end(), word) != names.end();
}

std::string comma_list(const std::vector<std::string>& names) {
  std::string list;
  for (const std::string& name : names) list += (list.empty() ? "" : ", ") + name;
  return list;
}

bool is_config(const std::string& word) { return word.ends_with(".json"); }

}  // namespace

std::vector<std::string> card_names() {
  std::vector<std::string> names;
  for (const GpuSpec& card : known_gpus()) names.push_back(card.id);
  return names;
}

std::vector<std::string> shape_names() {
  std::vector<std::string> names;
  for (const Shape& shape : known_shapes()) names.push_back(shape.name);
  return names;
}

bool is_card_word(const std::string& word) { return is_gpu(word); }

PlanWord plan_word(const std::string& word) {
  if (is_gpu(word)) return PlanWord::kCard;
  std::vector<std::string> names = shape_names();
  if (is_listed(word, names) || is_config(word)) return PlanWord::kShape;
  if (is_there(word) || word.find('/') != std::string::npos || word.ends_with(".gguf")) return PlanWord::kModel;
  for (std::string& card : card_names()) names.push_back(std::move(card));
  throw_error(ExitCode::kUsage, "headrace plan",
              str("'", printable(word), "' is not a model, shape, card or number of tokens", did_you_mean(word, names)),
              "headrace bench --list-shapes prints the shapes; the cards are " + comma_list(card_names()));
}

void check_plan_names(const std::string& gpu, const std::string& shape) {
  if (!gpu.empty() && !is_gpu(gpu)) {
    throw_error(ExitCode::kUsage, "--gpu",
                str("'", printable(gpu), "' is not one of ", comma_list(card_names()), did_you_mean(gpu, card_names())),
                "Give its figures: --gpu vram=12GiB,bandwidth=360. Measure a card that is here: headrace profile.");
  }
  if (shape.empty() || is_config(shape) || shape.find('/') != std::string::npos) return;
  const std::vector<std::string> names = shape_names();
  if (is_listed(shape, names)) return;
  throw_error(ExitCode::kUsage, "--shape",
              str("'", printable(shape), "' is not one of ", comma_list(names), did_you_mean(shape, names)),
              "A path to a config.json is a shape, too.");
}

}  // namespace headrace
