// How far a model's card extends its context beyond the one that it was trained for, by RoPE scaling. Files do not have
// it: it is known for the families whose cards name one way for all of their sizes. Pure; any thread.
#pragma once

#include <optional>
#include <string>

#include "runtime/model/rope_overrides.h"

namespace headrace {

// Of a model's own config, without --rope-*. None: the card names no scaling, or the config has it already.
std::optional<RopeOverrides> card_rope(const ModelConfig& config);

// "--rope-scaling yarn --rope-scale 4 --yarn-orig-ctx 32768"
std::string rope_flags_text(const RopeOverrides& rope);

}  // namespace headrace
