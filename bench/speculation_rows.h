// What the programs that run drafts on real texts share: flags, the prompt made of a text, and a run's row of figures.
// Thread: any.
#pragma once

#include <CLI/CLI.hpp>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "runtime/engine/engine.h"

namespace headrace::bench {

constexpr const char* kSummarise = "Write a short summary of the text above.";

// Which texts are run, and where; each list is a dimension of the table.
struct TextArgs {
  std::string model, instruction = kSummarise;  // the instruction follows each text
  std::vector<std::string> texts, kv = {"device"};
  std::vector<int64_t> tokens = {4096};
  std::vector<float> temperatures = {0.0f};
  int64_t new_tokens = 128;
  DeviceChoice device = DeviceChoice::kAuto;
};
// All but the model; the texts are the last positional arguments. `args` outlives parsing.
void add_text_flags(CLI::App& app, TextArgs& args);
EngineOptions engine_options(const TextArgs& args);  // bf16

KvMode kv_mode(const std::string& name);  // "device", "host"; others: auto

// The text's beginning and the instruction: at most `tokens` in all, or the whole text. Throws Error.
std::vector<int32_t> prompt_of(const Engine& engine, const std::string& path, int64_t tokens,
                               const std::string& instruction = kSummarise);

// Speed, and with a draft or partial verification what it accepted and what steps took.
nlohmann::ordered_json row_of(const GenerateResult& result);

}  // namespace headrace::bench
