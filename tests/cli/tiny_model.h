// A model small enough to load in milliseconds, with a tokenizer of bytes beside it, for tests that run the program.
// Writes files only. Thread: one.
#pragma once

#include <string>

namespace headrace {

// A copy of tests/data/tiny/llama2 in `folder`, its context raised to 1,000,000 positions, with a tokenizer.json whose
// ids 0 to 255 are bytes and 510 and 511 ChatML's marks. Random weights: its text is noise, but always the same noise.
void write_tiny_model(const std::string& folder);
// The same of tests/data/tiny/qwen35, most of whose layers have a recurrent state: its marks are ids 318 and 319.
void write_tiny_hybrid(const std::string& folder);

}  // namespace headrace
