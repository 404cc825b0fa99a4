// The flags that several commands have, a table for each heading of the help; what a row is says flags.h. Each sets the
// values behind the pointers it is given, which must outlive the parsing. Thread: one.
#pragma once

#include <cstdint>
#include <vector>

#include "cli/args.h"
#include "cli/flags.h"

namespace headrace {

// What one flag may be, where another command takes a list of them.
SetFlag kv_value(KvMode* out);
SetFlag interval_value(int64_t* out);  // a number of tokens, or auto
SetFlag budget_value(int64_t* out);

std::vector<Flag> model_flags(EngineOptions* o);
std::vector<Flag> template_flags(EngineOptions* o);
std::vector<Flag> rope_flags(RopeOverrides* r);
std::vector<Flag> context_flags(EngineOptions* o);
Flag prefix_cache_flag(EngineOptions* o);
std::vector<Flag> device_flags(DeviceOptions* o, int64_t* threads);
std::vector<Flag> memory_flags(EngineOptions* o, int64_t* threads);  // device_flags and what the cache is kept in
std::vector<Flag> draft_flags(DraftOptions* o, int64_t* n_max);
std::vector<Flag> verify_flags(VerifyOptions* o);
std::vector<Flag> block_flags(VerifyOptions* o);
std::vector<Flag> sampling_flags(GenerateOptions* o, int64_t* top_k);
std::vector<Flag> output_flags(OutputArgs* o);
Flag trace_flag(EngineOptions* o);

}  // namespace headrace
