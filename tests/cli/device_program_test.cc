// The program on a machine that lacks a part of CUDA.
#include <gtest/gtest.h>

#include <cstdlib>
#include <string>
#include <vector>

#include "offload/backends.h"
#include "tests/cli/process.h"
#include "tests/cli/tiny_model.h"
#include "tests/support/temporary_folder.h"

namespace headrace {
namespace {

// A file that the loader takes for cuBLASLt and cannot open: on a GPU, auto says so and takes the CPU.
TEST(DeviceProgram, RunsOnTheCpuWithoutCublasLt) {
  const TemporaryFolder folder;
  write_tiny_model(folder / "model");
  for (const char* const version : {"12", "13", "14"}) folder.write(str("libcublasLt.so.", version), "no library");
  const char* const path = std::getenv("LD_LIBRARY_PATH");  // the program may need others there
  const RunOptions without{.input = {},
                           .environment = {{"LD_LIBRARY_PATH", folder.path() + (path ? str(":", path) : "")}},
                           .stdout_path = {}};
  const std::vector<std::string> generate = {"generate", "-m", folder / "model", "-p", "Hello", "-n", "4"};
  const auto on = [&](const std::string& device) {
    std::vector<std::string> args = generate;
    args.insert(args.end(), {"--device", device});
    return run_program(args, without);
  };
  EXPECT_EQ(run_program({"--help"}, without).exit_code, 0);
  const Finished cpu = on("cpu"), automatic = on("auto"), cuda = on("cuda");
  EXPECT_EQ(cpu.exit_code, 0) << cpu.err;
  EXPECT_NE(cpu.out, "");
  EXPECT_EQ(automatic.exit_code, 0) << automatic.err;
  EXPECT_EQ(automatic.out, cpu.out);
  EXPECT_NE(automatic.err.find("--device auto takes the CPU: "), std::string::npos) << automatic.err;
  EXPECT_EQ(cuda.exit_code, 2) << cuda.err;
  EXPECT_NE(cuda.err.find("error: --device: cuda: "), std::string::npos) << cuda.err;
  if (!cuda_usable()) return;
  const std::string why = "cuBLASLt cannot be used: " + (folder / "libcublasLt.so.");
  EXPECT_NE(automatic.err.find(why), std::string::npos) << automatic.err;
  EXPECT_NE(cuda.err.find(why), std::string::npos) << cuda.err;
}

}  // namespace
}  // namespace headrace
