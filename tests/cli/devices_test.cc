#include "cli/devices.h"

#include <gtest/gtest.h>

namespace headrace {
namespace {

TEST(Devices, ALineEach) {
  EXPECT_EQ(format_devices({{"cuda:0", "Tesla T4, 15.00 GiB", "it is too old"}, {"cpu", "2 cores", ""}}),
            "cuda:0  Tesla T4, 15.00 GiB (cannot be used: it is too old)\n"
            "cpu     2 cores\n");
}

}  // namespace
}  // namespace headrace
