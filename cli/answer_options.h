// What an answer depends on beside its document, as a text: part of the key of its line in a batch. Pure; any thread.
#pragma once

#include <string>
#include <vector>

#include "runtime/engine/engine.h"

namespace headrace {

// Everything that may change an answer, and nothing else: memory placement and the number of threads change no bit.
// `prompt`: what surrounds the documents. Reads --chat-template-file.
std::string answer_options(const EngineOptions& asked, const GenerateOptions& generate, const Engine& engine,
                           const std::vector<std::string>& prompt);

}  // namespace headrace
