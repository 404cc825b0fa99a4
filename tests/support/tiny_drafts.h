// Drafts for tests/data/tiny/llama31 (4 layers, hidden 64, 512 ids) that are sometimes correct. Plain builders; one
// thread at a time.
#pragma once

#include "tests/support/draft_files.h"

namespace headrace::testing_support {

DraftFiles tiny_eagle3_head();
DraftFiles tiny_longspec_layer();

}  // namespace headrace::testing_support
