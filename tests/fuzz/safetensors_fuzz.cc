// libFuzzer: any bytes as a safetensors file. What the parser lets through must lie within the bytes.
#include "cache/base.h"
#include "runtime/model/files/safetensors.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view file(reinterpret_cast<const char*>(data), size);
  try {
    for (const headrace::StoredTensor& entry : headrace::parse_safetensors(headrace::MemoryBytes(file, "fuzz")))
      CHECK(entry.begin <= size && entry.bytes <= size - entry.begin, entry.begin, " ", entry.bytes, " of ", size);
  } catch (const headrace::Error& error) {
    CHECK(error.code() == headrace::ExitCode::kBadInput, error.what());
  }
  return 0;
}
