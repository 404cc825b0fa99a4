// Drafts that are sometimes correct, by default for tests/data/tiny/llama31 (4 layers, hidden 64, 512 ids). Plain
// builders; one thread at a time.
#pragma once

#include "tests/support/draft_files.h"

namespace headrace::testing_support {

struct TinyTarget {  // of 4 heads and 2 KV heads
  int64_t hidden = 64, vocab = 512;
  std::vector<int64_t> tapped_layers = {1, 2, 3};
};
DraftFiles tiny_eagle3_head(const TinyTarget& target = {});
DraftFiles tiny_longspec_layer(const TinyTarget& target = {});
// A model of the size of tests/data/tiny/llama31 with an MTP block: of Qwen3.5, but with attention in every layer.
DraftFiles tiny_mtp_model();

}  // namespace headrace::testing_support
