// The engine of the tests of saved prefixes: a tiny model in f32 on the CPU, its prefixes in a folder; and one run.
#pragma once

#include <string>

#include "runtime/engine/engine.h"
#include "runtime/prefix/run.h"
#include "tests/support/session_fixture.h"

namespace headrace::testing {

inline EngineOptions tiny(const std::string& cache, const std::string& name = "llama31") {
  EngineOptions options;
  options.model = tiny_model(name);
  options.device = {.choice = DeviceChoice::kCpu, .threads = 2};
  options.want_tokenizer = false;
  options.dtype = DType::kF32;
  options.prefix_cache.folder = cache;
  return options;
}

inline const GenerateOptions kRun{.max_tokens = 16, .sampling = {.temperature = 1, .seed = 5}, .ignore_eos = true};

}  // namespace headrace::testing
