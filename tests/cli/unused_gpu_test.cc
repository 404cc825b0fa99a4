#include "cli/unused_gpu.h"

#include <gtest/gtest.h>

#include <string>

#include "tests/cli/flags/args_fixture.h"
#include "tests/support/temporary_folder.h"

namespace headrace {
namespace {

TEST(UnusedGpu, IsNamedByAProgramWithoutCuda) {
  const TemporaryFolder devices;
  EXPECT_EQ(unused_gpu(devices.path()), "");
  devices.write("nvidia0", "");
  const bool cuda = std::get<HelpArgs>(parse_args({"--version"})).text.find("without CUDA") == std::string::npos;
  EXPECT_EQ(unused_gpu(devices.path()).find("built for the CPU only") == std::string::npos, cuda);
}

}  // namespace
}  // namespace headrace
