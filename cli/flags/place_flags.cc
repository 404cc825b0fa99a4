// The flags of where a run has its rows and weights.
#include "cli/flags/flag_groups.h"

namespace headrace {

SetFlag kv_value(KvMode* out) {
  return choice_value<KvMode>(out, {{"auto", KvMode::kAuto}, {"device", KvMode::kDevice}, {"host", KvMode::kHost}});
}

Flag weights_place_flag(EngineOptions* o) {
  return {
      "--weights-place", "PLACE",
      choice_value<WeightsPlace>(
          &o->weights_place,
          {{"auto", WeightsPlace::kAuto}, {"device", WeightsPlace::kDevice}, {"host", WeightsPlace::kHost}}),
      "Where the layers' weights are stored: auto (on the device; if they do not fit, some in host memory, from which "
      "every pass copies them to the device), device or host [auto]"};
}

std::vector<Flag> context_flags(EngineOptions* o) {
  return {
      {"-c,--ctx-size", "TOKENS", tokens_value(&o->ctx_size),
       "Maximum number of tokens, prompt and output together; 128K is 131072 [the model's]"},
      {"--kv", "MODE", kv_value(&o->kv),
       "Where the KV cache is stored: auto (on the device as far as it fits), device or host [auto]"},
      weights_place_flag(o),
  };
}

}  // namespace headrace
