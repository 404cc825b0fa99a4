// libFuzzer: any bytes as a PyTorch file, and as a pickle. What the parser lets through must lie within the bytes.
#include "cache/base.h"
#include "runtime/model/files/pickle.h"
#include "runtime/model/files/torch_file.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view file(reinterpret_cast<const char*>(data), size);
  try {
    for (const headrace::StoredTensor& tensor : headrace::parse_torch_file(headrace::MemoryBytes(file, "fuzz")))
      CHECK(tensor.begin <= size && tensor.bytes <= size - tensor.begin, tensor.begin, " ", tensor.bytes, " of ", size);
  } catch (const headrace::Error& error) {
    CHECK(error.code() == headrace::ExitCode::kBadInput, error.what());
  }
  try {
    headrace::parse_pickle(file, "fuzz");
  } catch (const headrace::Error& error) {
    CHECK(error.code() == headrace::ExitCode::kBadInput, error.what());
  }
  return 0;
}
