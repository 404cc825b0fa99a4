#include "offload/host/machine.h"

#include <gtest/gtest.h>

#include "tests/support/temporary_folder.h"

namespace headrace {
namespace {

TEST(Machine, IsNamedByTheSystem) {
  TemporaryFolder root;
  root.write("proc/cpuinfo", "processor\t: 0\nvendor_id\t: x\nmodel name\t: Some CPU @ 3 GHz\nprocessor\t: 1\n");
  root.write("proc/meminfo", "MemTotal:       1024 kB\nMemAvailable:    512 kB\n");
  const Machine machine = read_machine(root.path());
  EXPECT_EQ(machine.cpu, "Some CPU @ 3 GHz");
  EXPECT_EQ(machine.memory_bytes, uint64_t{1} << 20);
  EXPECT_GE(machine.cores, 1);
  root.write("proc/cpuinfo", "processor\t: 0\nmodel name\n");
  EXPECT_EQ(read_machine(root.path()).cpu, "unknown");
}

TEST(Machine, IsThisOne) {
  const Machine machine = read_machine();
  EXPECT_FALSE(machine.cpu.empty());
  EXPECT_GT(machine.memory_bytes, uint64_t{64} << 20);
}

}  // namespace
}  // namespace headrace
