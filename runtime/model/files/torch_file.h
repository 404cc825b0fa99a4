// PyTorch's own weight files (torch.save of a state_dict, "pytorch_model.bin"): a zip archive of stored entries, of
// which one is a pickle that describes the tensors. Nothing in the pickle is executed (pickle.h). Pure: it borrows
// nothing and reads only the descriptions.
#pragma once

#include <vector>

#include "runtime/base/input_file.h"
#include "runtime/model/files/stored_tensor.h"

namespace headrace {

// In the state_dict's order; tensors may share bytes. Throws Error(kBadInput), for a tensor that is not contiguous too.
std::vector<StoredTensor> parse_torch_file(const ByteSource& file);

}  // namespace headrace
