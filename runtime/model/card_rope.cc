#include "runtime/model/card_rope.h"

#include "cache/base.h"

namespace headrace {
namespace {

struct CardRow {
  const char* family;
  int64_t positions;   // of the config
  int64_t min_hidden;  // smaller models of the family are not made for more
  double factor;
  int64_t original;
};

// As the cards of Qwen2.5 (7B and larger), Qwen3 (4B and larger) and Qwen3.5 to 3.8 have it, all with YaRN.
constexpr CardRow kCards[] = {{"qwen2", 32768, 2049, 4, 32768},
                              {"qwen3", 40960, 2049, 4, 32768},
                              {"qwen35", 262144, 0, 4, 262144},
                              {"qwen35moe", 262144, 0, 4, 262144}};

}  // namespace

std::optional<RopeOverrides> card_rope(const ModelConfig& config) {
  if (config.rope.scaling != RopeScaling::kNone) return std::nullopt;
  for (const CardRow& row : kCards) {
    if (config.family != row.family || config.max_positions != row.positions) continue;
    if (config.hidden < row.min_hidden) continue;
    return RopeOverrides{
        .scaling = RopeScaling::kYarn, .factor = row.factor, .theta = 0, .original_positions = row.original};
  }
  return std::nullopt;
}

std::string rope_flags_text(const RopeOverrides& rope) {
  std::string text = str("--rope-scaling ", rope_scaling_name(rope.scaling.value_or(RopeScaling::kNone)));
  if (rope.factor > 0) text += str(" --rope-scale ", rope.factor);
  if (rope.original_positions > 0) text += str(" --yarn-orig-ctx ", rope.original_positions);
  return text;
}

}  // namespace headrace
