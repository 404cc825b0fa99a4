// Which device the program takes, and what it says of it.
#include <gtest/gtest.h>

#include <cstdlib>
#include <sstream>
#include <string>
#include <vector>

#include "offload/device/backends.h"
#include "tests/cli/program_fixture.h"
#include "tests/support/temporary_folder.h"

namespace headrace {
namespace {

TEST_F(ProgramTest, ListsDevices) {
  const Finished list = run_program({"--list-devices"});
  EXPECT_EQ(list.exit_code, 0) << list.err;
  EXPECT_NE(list.out.find("\ncpu "), std::string::npos) << list.out;
  EXPECT_EQ(list.out.find("cuda"), 0u) << list.out;  // one, or why there is none
}

TEST_F(ProgramTest, SaysWhyAutoTakesTheCpu) {
  bool gpu = false;
  std::istringstream devices(run_program({"--list-devices"}).out);
  for (std::string device; std::getline(devices, device);) {
    gpu = gpu || (device.starts_with("cuda:") && device.find("cannot be used") == std::string::npos);
  }
  const std::string line = "--device auto uses the CPU: ";
  EXPECT_EQ(run("generate", {"-p", "Hello", "--device", "auto"}).err.find(line) == std::string::npos, gpu);
  EXPECT_EQ(run("generate", {"-p", "Hello", "--device", "cpu"}).err.find(line), std::string::npos);
  EXPECT_EQ(run("generate", {"-p", "Hello", "--device", "auto", "-q"}).err, "");
}

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
  EXPECT_NE(automatic.err.find("--device auto uses the CPU: "), std::string::npos) << automatic.err;
  EXPECT_EQ(cuda.exit_code, 2) << cuda.err;
  EXPECT_NE(cuda.err.find("error: --device: cuda: "), std::string::npos) << cuda.err;
  if (!cuda_usable()) return;
  const std::string why = "cuBLASLt cannot be used: " + (folder / "libcublasLt.so.");
  EXPECT_NE(automatic.err.find(why), std::string::npos) << automatic.err;
  EXPECT_NE(cuda.err.find(why), std::string::npos) << cuda.err;
}

}  // namespace
}  // namespace headrace
