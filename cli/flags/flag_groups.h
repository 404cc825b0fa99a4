// The flags that several commands share, one table per heading of the help (flags.h describes a row). Each row sets a
// value through a pointer, which must outlive parsing. Thread: one.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "cli/flags/args.h"
#include "cli/flags/flags.h"
#include "runtime/model/weight_mixture.h"

namespace headrace {

// One value of a flag that some commands accept as a list.
SetFlag kv_value(KvMode* out);
SetFlag interval_value(int64_t* out);  // a number of tokens, or auto
SetFlag budget_value(int64_t* out);
SetFlag policy_value(WeightPolicy* out, const std::string& also = "");  // of --weights; `also`: as of choice_value

// `of_shape`: of a command that also accepts shapes, the types of their random weights; null: they are not quantised.
std::vector<Flag> model_flags(EngineOptions* o, const WeightMixture** of_shape = nullptr);
std::string weights_of_a_file(const std::string& name);  // the error for such a type with a file
std::vector<Flag> template_flags(EngineOptions* o);
std::vector<Flag> rope_flags(RopeOverrides* r);
Flag weights_place_flag(EngineOptions* o);
Flag weights_substitute_flag(EngineOptions* o);
std::vector<Flag> context_flags(EngineOptions* o);
Flag prefix_cache_flag(EngineOptions* o);
Flag devices_flag(std::vector<DeviceOptions>* out);  // a list; check_devices() checks it as a whole
std::vector<Flag> device_flags(DeviceOptions* o);
std::vector<Flag> memory_flags(EngineOptions* o);  // device_flags, the cache's data types and --spill
std::vector<Flag> draft_flags(DraftOptions* o);
std::vector<Flag> verify_flags(VerifyOptions* o);
std::vector<Flag> block_flags(VerifyOptions* o);
std::vector<Flag> sampling_flags(GenerateOptions* o);
Flag hide_thinking_flag(OutputArgs* o);
Flag quiet_flag(OutputArgs* o);
std::vector<Flag> output_flags(OutputArgs* o);  // with quiet_flag
Flag trace_flag(EngineOptions* o);

}  // namespace headrace
