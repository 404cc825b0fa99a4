// Prompts about a document, cut to a length, and a number hidden in it by a sentence (a needle), for headrace bench
// quality. Thread: any.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/engine/engine.h"

namespace headrace {

constexpr double kNeedleDepths[] = {0.1, 0.5, 0.9};
constexpr const char* kNeedleQuestion =
    "What is the secret number of the lighthouse keeper? Answer with the number alone.";

constexpr int64_t kNeedleSlack = 8;  // a sentence may take a few more tokens inside a text than after it

// Throws Error(kUsage) if the context has no room for so many tokens of a prompt and those `behind` it.
void check_prompt_tokens(const Engine& engine, int64_t prompt_tokens, int64_t behind);
// A text and, after an empty line, a request, by the engine's chat template.
std::vector<int32_t> document_prompt(const Engine& engine, std::string_view text, std::string_view request);
// The beginning of `text`, as much as fits with the request into `tokens`. Throws Error(kUsage) that names `file` if
// the request alone does not fit.
std::string cut_document(const Engine& engine, const std::string& file, std::string_view text, std::string_view request,
                         int64_t tokens);

// A number of seven digits; `index`: of the needle in the run.
std::string needle_number(uint64_t seed, size_t index);
std::string needle_sentence(std::string_view number);
// `text` with a sentence inserted after the end of a sentence, or at white space, at or after `depth`.
std::string with_needle(std::string_view text, double depth, std::string_view sentence);
// Whether an answer contains the number, with any digit grouping.
bool has_number(std::string_view answer, std::string_view number);

}  // namespace headrace
