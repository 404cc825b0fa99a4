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
      "Where the layers' weights are stored: auto (on the device; if they do not fit, or the run is predicted to be "
      "faster so, some in host memory, from which every pass copies them to the device; of a mixture of experts, the "
      "experts alone, of which a step copies those that the device lacks), device or host [auto]"};
}

Flag weights_substitute_flag(EngineOptions* o) {
  return {"--weights-substitute", "TYPE",
          choice_value<SubstituteOptions>(&o->substitute, {{"auto", {}},
                                                           {"none", {.automatic = false}},
                                                           {"q8_0", {.automatic = false, .type = WeightType::kQ8_0}},
                                                           {"q6_k", {.automatic = false, .type = WeightType::kQ6K}},
                                                           {"q5_k", {.automatic = false, .type = WeightType::kQ5K}},
                                                           {"q4_k", {.automatic = false, .type = WeightType::kQ4K}}}),
          "What the device has of layers whose weights are in host memory: a copy in fewer bits (q8_0, q6_k, q5_k or "
          "q4_k), by which provisional steps guess tokens without the link, before one pass with the exact weights "
          "verifies all of them (the text is the same); none (every step waits for the link); or auto (what is "
          "predicted to be fastest) [auto]"};
}

std::vector<Flag> context_flags(EngineOptions* o) {
  return {
      {"-c,--ctx-size", "TOKENS", tokens_value(&o->ctx_size),
       "Maximum number of tokens, prompt and output together; 128K is 131072 [the model's]"},
      {"--kv", "MODE", kv_value(&o->kv),
       "Where the KV cache is stored: auto (on the device as far as it fits), device or host [auto]"},
      weights_place_flag(o),
      weights_substitute_flag(o),
  };
}

}  // namespace headrace
