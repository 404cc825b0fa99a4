// The tree as it is: no #include of ours is outside the table of DESIGN section 4.
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <string>

#include "tests/layering/includes.h"

namespace headrace::layering {
namespace {

namespace fs = std::filesystem;

TEST(Tree, HasOnlyAllowedEdges) {
  const TreeReport report = check_tree(HEADRACE_SOURCE_DIR);
  EXPECT_GE(report.files, 10);  // a checker that reads nothing finds nothing
  EXPECT_GE(report.edges, 10);
  for (const std::string& violation : report.violations) ADD_FAILURE() << violation;
}

class PlantedTree : public ::testing::Test {
 protected:
  void SetUp() override {
    root_ = fs::temp_directory_path() / ("headrace_layering_" + std::to_string(::getpid()));
    fs::create_directories(root_ / "cache");
    fs::create_directories(root_ / "kernels" / "cuda");
  }
  void TearDown() override { fs::remove_all(root_); }
  void write(const std::string& path, const std::string& text) { std::ofstream(root_ / path) << text; }

  fs::path root_;
};

TEST_F(PlantedTree, FindsABadEdgeInEveryKindOfFile) {
  write("cache/base.h", "#include <string>\n");
  write("cache/layout.h", "#include \"cache/base.h\"\n");
  write("kernels/a.h", "#include \"cache/layout.h\"\n");
  write("kernels/a.cc", "#include \"cache/layout.h\"\n");
  write("kernels/cuda/a.cu", "#include \"cache/layout.h\"\n");
  write("kernels/cuda/a.cuh", "#include \"cache/layout.h\"\n");
  const TreeReport report = check_tree(root_.string());
  EXPECT_EQ(report.files, 6);
  EXPECT_EQ(report.edges, 5);
  EXPECT_EQ(report.violations.size(), 4u);
}

TEST_F(PlantedTree, FindsAnIncludeOfNoFile) {
  write("cache/layout.h", "#include \"cache/gone.h\"\n");
  const TreeReport report = check_tree(root_.string());
  ASSERT_EQ(report.violations.size(), 1u);
  EXPECT_EQ(report.violations[0], "cache/layout.h:1: no such file: cache/gone.h");
}

}  // namespace
}  // namespace headrace::layering
