// What sysfs says of a card's link, and what it says where it says nothing.
#include "offload/host/pcie.h"

#include <gtest/gtest.h>

#include <filesystem>

#include "tests/support/temporary_folder.h"

namespace headrace {
namespace {

class Pcie : public ::testing::Test {
 protected:
  const std::string port_ = "sys/devices/pci0000:00/0000:00:01.0", card_ = port_ + "/0000:3b:00.0";

  void write(const std::string& folder, const char* which, const char* speed, const char* width) {
    root_.write(folder + "/" + which + "_link_speed", std::string(speed) + "\n");
    root_.write(folder + "/" + which + "_link_width", std::string(width) + "\n");
  }
  void link_card() {
    std::filesystem::create_directories(root_ / "sys/bus/pci/devices");
    std::filesystem::create_directory_symlink("../../../devices/pci0000:00/0000:00:01.0/0000:3b:00.0",
                                              root_ / "sys/bus/pci/devices/0000:3b:00.0");
  }
  TemporaryFolder root_;
};

TEST_F(Pcie, ACardInAFullSlot) {
  write(card_, "current", "16.0 GT/s PCIe", "16");
  write(card_, "max", "16.0 GT/s PCIe", "16");
  write(port_, "max", "32.0 GT/s PCIe", "16");
  root_.write(card_ + "/numa_node", "1\n");
  link_card();
  const auto link = read_pcie("0000:3B:00.0", root_.path());
  ASSERT_TRUE(link);
  EXPECT_EQ(link->now, (PcieMode{4, 16}));
  EXPECT_EQ(link->card, (PcieMode{4, 16}));
  EXPECT_EQ(link->slot, (PcieMode{5, 16}));
  EXPECT_EQ(link->possible(), (PcieMode{4, 16}));
  EXPECT_FALSE(link->below_possible());
  EXPECT_EQ(link->numa_node, 1);
}

TEST_F(Pcie, ACardThatRunsBelowWhatBothCanDo) {
  write(card_, "current", "8.0 GT/s PCIe", "8");
  write(card_, "max", "16.0 GT/s PCIe", "16");
  write(port_, "max", "16.0 GT/s PCIe", "16");
  link_card();
  auto link = read_pcie("0000:3b:00.0", root_.path());
  ASSERT_TRUE(link);
  EXPECT_TRUE(link->below_possible());
  EXPECT_EQ(link->numa_node, -1);
  // A slot of eight lanes is all that there is to be had.
  write(port_, "max", "8.0 GT/s PCIe", "8");
  link = read_pcie("0000:3b:00.0", root_.path());
  EXPECT_FALSE(link->below_possible());
  EXPECT_EQ(link->possible(), (PcieMode{3, 8}));
}

TEST_F(Pcie, WhatIsNotThereOrMeansNothingIsUnknown) {
  EXPECT_FALSE(read_pcie("", root_.path()));
  EXPECT_FALSE(read_pcie("0000:3b:00.0", root_.path()));
  write(card_, "current", "Unknown speed", "63");
  root_.write(card_ + "/numa_node", "what\n");
  link_card();
  const auto link = read_pcie("0000:3b:00.0", root_.path());
  ASSERT_TRUE(link);
  EXPECT_FALSE(link->now.known());
  EXPECT_FALSE(link->below_possible());
  EXPECT_EQ(link->numa_node, -1);
}

TEST_F(Pcie, TheNodesOfThisProcess) {
  EXPECT_TRUE(read_numa_nodes(root_.path()).empty());
  root_.write("sys/devices/system/node/node0/cpulist", "0-7,16-23\n");
  root_.write("sys/devices/system/node/node1/cpulist", "8-15\n");
  root_.write("sys/devices/system/node/online", "0-1\n");
  root_.write("proc/self/status", "Name:\tx\nCpus_allowed:\tff\nCpus_allowed_list:\t16-17\n");
  EXPECT_EQ(read_numa_nodes(root_.path()), (std::vector<int>{0}));
  root_.write("proc/self/status", "Cpus_allowed_list:\t3,9-12\n");
  EXPECT_EQ(read_numa_nodes(root_.path()), (std::vector<int>{0, 1}));
  root_.write("proc/self/status", "Cpus_allowed_list:\t-3,x\n");
  EXPECT_TRUE(read_numa_nodes(root_.path()).empty());
}

}  // namespace
}  // namespace headrace
