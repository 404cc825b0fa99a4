// SmolLM2-64K from SmolLM2-135M-Instruct: the long-context update of tests/data/smollm2-64k merged into the GGUF file.
//   make_smollm2_64k SMOLLM2.gguf UPDATE.npz OUT.gguf
// tests/smollm2_64k.sh calls it once and keeps the result.
#include <cstdio>
#include <fstream>

#include "cache/base.h"
#include "tests/support/low_rank.h"

int main(int argc, char** argv) {
  if (argc != 4) {
    std::fprintf(stderr, "usage: make_smollm2_64k SMOLLM2.gguf UPDATE.npz OUT.gguf\n");
    return static_cast<int>(headrace::ExitCode::kUsage);
  }
  try {
    const std::string model = headrace::testing_support::merge_low_rank(
        argv[1], argv[2], {.name = "SmolLM2 135M Instruct 64K", .max_positions = 65536});
    std::ofstream out(argv[3], std::ios::binary);
    out << model;
    out.close();
    if (!out) headrace::throw_error(headrace::ExitCode::kStorage, argv[3], "could not be written whole");
  } catch (const headrace::Error& error) {
    std::fprintf(stderr, "make_smollm2_64k: %s\n", error.what());
    return static_cast<int>(error.code());
  }
  return 0;
}
