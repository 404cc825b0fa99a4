// A small target that is correct for every token except one, and a draft that always proposes that one. Writes files;
// one thread at a time.
#pragma once

#include <cstdint>
#include <string>

namespace headrace::testing_support {

constexpr int32_t kOverflowingToken = 0;
constexpr int32_t kOverflowingVocab = 16;

// The token's value in the first layer overflows to infinity: its states, and those of all tokens that attend to it,
// are not finite from there on. All weights are finite. The target never samples the token from finite states. Hidden
// 64, 3 layers, F32.
void write_overflowing_target(const std::string& folder);
// To the draft all tokens are equally likely, so the first one comes first: the overflowing one.
void write_overflowing_draft(const std::string& folder);

}  // namespace headrace::testing_support
