// Tensors of the model's own layers that nothing computes with: a model that has them is of another kind.
#include <gtest/gtest.h>

#include "offload/device/device.h"
#include "runtime/model/files/open_checkpoint.h"
#include "runtime/model/weights.h"
#include "tests/runtime/model/files/model_files.h"
#include "tests/support/refusal.h"
#include "tests/support/temporary_folder.h"

namespace headrace {
namespace {

using testing_support::GgufWriter;

void load_with(const std::string& arch, const std::vector<std::string>& extra) {
  GgufWriter file = testing_support::small_gguf(arch);
  for (const std::string& name : extra)
    file.add_tensor({name, {16}, 0, std::string(16 * sizeof(float), '\0'), std::nullopt, std::nullopt});
  const TemporaryFolder folder;
  const std::string path = folder.write("m.gguf", file.finish());
  const auto checkpoint = open_checkpoint(path);
  const auto device = open_device({.choice = DeviceChoice::kCpu, .threads = 1});
  Weights::reserve(*checkpoint, *device, {DType::kF32});
}

TEST(UnusedWeights, OfALayerAreRefusedByName) {
  for (const char* name :
       {"blk.0.attn_q_norm.weight", "blk.0.ffn_gate_inp.weight", "blk.0.attn_sinks.weight", "output_norm.bias",
        "token_embd_norm.weight", "position_embd.weight", "model.embed_positions.weight"}) {
    SCOPED_TRACE(name);
    testing_support::expect_error(ExitCode::kBadInput, "", {name, "llama"}, [&] { load_with("llama", {name}); });
  }
  testing_support::expect_error(
      ExitCode::kBadInput, "", {"blk.0.a.weight, blk.0.b.weight, blk.0.c.weight and 1 more"}, [] {
        load_with("llama", {"blk.0.a.weight", "blk.0.b.weight", "blk.0.c.weight", "blk.0.d.weight"});
      });
}

TEST(UnusedWeights, ThatChangeNothingAreNot) {
  load_with("llama", {"blk.0.attn_rot_embd.weight", "blk.0.attn.masked_bias", "blk.1.ffn_up.weight", "v.patch.weight"});
  load_with("qwen3", {"blk.0.self_attn.rotary_emb.inv_freq"});
}

}  // namespace
}  // namespace headrace
