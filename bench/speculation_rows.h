// What the programs that run drafts on real texts share: the prompt made of a text, and a run's row of figures.
// Thread: any.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "runtime/engine/engine.h"

namespace headrace::bench {

KvMode kv_mode(const std::string& name);  // "device", "host"; others: auto

constexpr const char* kSummarise = "Write a short summary of the text above.";
// The text's beginning and the instruction: at most `tokens` in all, or the whole text. Throws Error.
std::vector<int32_t> prompt_of(const Engine& engine, const std::string& path, int64_t tokens,
                               const std::string& instruction = kSummarise);

// Speed, and with a draft or partial verification what it accepted and what steps took.
nlohmann::ordered_json row_of(const GenerateResult& result);

}  // namespace headrace::bench
