// A small target that is right for every token but one, and a draft that proposes that one all the time. Writes files;
// one thread at a time.
#pragma once

#include <cstdint>
#include <string>

namespace headrace::testing_support {

constexpr int32_t kOverflowingToken = 0;
constexpr int32_t kOverflowingVocab = 16;

// The token's value in the first layer overflows to infinity: its own states, and those of all that attend to it, are
// not finite from there on. No weight is. The target never samples it where nothing of it is seen. Hidden 64, 3 layers,
// F32.
void write_overflowing_target(const std::string& folder);
// To it all tokens are equally likely, and so the first one, that one, comes first.
void write_overflowing_draft(const std::string& folder);

}  // namespace headrace::testing_support
