// The tree as it is: its #includes are those that folders.txt lists, no type of ours is defined twice.
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <string>

#include "tests/layering/includes.h"
#include "tests/layering/types.h"

namespace headrace::layering {
namespace {

namespace fs = std::filesystem;

TEST(Tree, HasTheListedEdgesAndNoOther) {
  const Ladder ladder = read_ladder(HEADRACE_SOURCE_DIR);
  const TreeReport report = check_tree(HEADRACE_SOURCE_DIR, ladder);
  EXPECT_GE(ladder.size(), 10u);
  EXPECT_GE(report.files, 100);  // a checker that reads nothing finds nothing
  EXPECT_GE(report.edges, 100);
  for (const std::string& violation : report.violations) ADD_FAILURE() << violation;
}

// In one program a type has one definition: the product's, and that of what several test programs share.
TEST(Tree, DefinesEachTypeOnce) {
  std::vector<Source> sources;
  size_t types = 0;
  for (Source& source : read_sources(HEADRACE_SOURCE_DIR, read_ladder(HEADRACE_SOURCE_DIR))) {
    if (source.path.rfind("bench/", 0) == 0) continue;  // a program each
    if (source.path.rfind("tests/", 0) == 0 && source.path.rfind("tests/support/", 0) != 0) continue;
    types += defined_types(source.text).size();
    sources.push_back(std::move(source));
  }
  EXPECT_GE(types, 100u);
  for (const std::string& twice : types_defined_twice(sources)) ADD_FAILURE() << twice;
}

// clang checks what a mutex guards if the mutex is one of thread_annotations.h (-Wthread-safety, in the asan preset).
TEST(Tree, HasNoMutexThatClangCannotCheck) {
  constexpr const char* kUnchecked[] = {"std::mutex", "std::condition_variable", "std::lock_guard", "std::unique_lock",
                                        "std::scoped_lock"};
  size_t checked = 0;
  for (const Source& source : read_sources(HEADRACE_SOURCE_DIR, read_ladder(HEADRACE_SOURCE_DIR))) {
    if (source.path.rfind("tests/", 0) == 0 || source.path.rfind("bench/", 0) == 0) continue;
    if (source.path == "offload/host/thread_annotations.h") continue;
    checked += source.text.find("MutexLock") != std::string::npos;
    for (const char* name : kUnchecked) {
      EXPECT_EQ(source.text.find(name), std::string::npos)
          << source.path << " has " << name << ": use Mutex, MutexLock and CondVar of thread_annotations.h";
    }
  }
  EXPECT_GE(checked, 10u);
}

class PlantedTree : public ::testing::Test {
 protected:
  void SetUp() override {
    root_ = fs::temp_directory_path() / ("headrace_layering_" + std::to_string(::getpid()));
    write("cache/base.h", "#include <string>\n");
    write("kernels/cuda/a.h", "\n");
  }
  void TearDown() override { fs::remove_all(root_); }
  void write(const std::string& path, const std::string& text) {
    fs::create_directories((root_ / path).parent_path());
    std::ofstream(root_ / path) << text;
  }
  TreeReport check() const { return check_tree(root_.string(), ladder_); }

  const Ladder ladder_ = parse_ladder("kernels/cuda:\ncache:\n");
  fs::path root_;
};

TEST_F(PlantedTree, FindsABadEdgeInEveryKindOfFile) {
  write("cache/layout.h", "#include \"cache/base.h\"\n");
  write("kernels/cuda/b.h", "#include \"cache/layout.h\"\n");
  write("kernels/cuda/b.cc", "#include \"cache/layout.h\"\n");
  write("kernels/cuda/b.cu", "#include \"cache/layout.h\"\n");
  write("kernels/cuda/b.cuh", "#include \"cache/layout.h\"\n");
  const TreeReport report = check();
  EXPECT_EQ(report.files, 7);
  EXPECT_EQ(report.edges, 5);
  EXPECT_EQ(report.violations.size(), 4u);
}

TEST_F(PlantedTree, FindsANeedThatNothingUses) {
  const Ladder ladder = parse_ladder("kernels/cuda: cache\ncache:\n");
  write("cache/layout.h", "\n");
  write("kernels/cuda/b.h", "#include \"cache/base.h\"\n");  // which is open to everybody
  write("tests/kernels/cuda/b_test.cc", "#include \"cache/layout.h\"\n");
  const TreeReport unused = check_tree(root_.string(), ladder);
  ASSERT_EQ(unused.violations.size(), 1u);
  EXPECT_EQ(unused.violations[0], "kernels/cuda needs cache: nothing uses it");
  write("kernels/cuda/b.cuh", "#include \"cache/layout.h\"\n");
  EXPECT_TRUE(check_tree(root_.string(), ladder).violations.empty());
}

TEST_F(PlantedTree, FindsAFaultOfTheList) {
  write("cache/layout.h", "#include \"kernels/cuda/a.h\"\n");
  write("kernels/cuda/a.h", "#include \"cache/layout.h\"\n");
  const TreeReport report = check_tree(root_.string(), parse_ladder("kernels/cuda: cache\ncache: kernels/cuda\n"));
  ASSERT_EQ(report.violations.size(), 1u);
  EXPECT_EQ(report.violations[0], "a circle: cache -> kernels/cuda -> cache");
}

TEST_F(PlantedTree, FindsAnIncludeOfNoFile) {
  write("cache/layout.h", "#include \"cache/gone.h\"\n");
  const TreeReport report = check();
  ASSERT_EQ(report.violations.size(), 1u);
  EXPECT_EQ(report.violations[0], "cache/layout.h:1: no such file: cache/gone.h");
}

TEST_F(PlantedTree, FindsAFolderThatIsNotInTheList) {
  write("kernels/new/a.h", "\n");
  write("tests/kernels/cuda/a_test.cc", "#include \"kernels/cuda/a.h\"\n");
  write("tests/kernels/other/a_test.cc", "#include \"kernels/cuda/a.h\"\n");
  write("tests/support/a.h", "#include \"kernels/cuda/a.h\"\n");
  const TreeReport report = check();
  ASSERT_EQ(report.violations.size(), 2u);
  EXPECT_EQ(report.violations[0], "kernels/new: not a folder of tests/layering/folders.txt");
  EXPECT_EQ(report.violations[1], "tests/kernels/other: not a folder of tests/layering/folders.txt");
}

TEST_F(PlantedTree, FindsAListedFolderWithoutSources) {
  fs::remove(root_ / "kernels/cuda/a.h");
  const TreeReport report = check();
  ASSERT_EQ(report.violations.size(), 1u);
  EXPECT_EQ(report.violations[0], "kernels/cuda: in the list, but it has no sources");
}

TEST_F(PlantedTree, FindsAFolderThatIsTooLarge) {
  write("cache/a.h", std::string(kMaxFolderLines - 1, '\n'));  // and the base header's line
  EXPECT_TRUE(check().violations.empty());
  write("cache/b.h", "\n");
  EXPECT_EQ(check().violations.size(), 1u);
}

TEST_F(PlantedTree, FindsTooManyFilesBesideFolders) {
  const Ladder ladder = parse_ladder("kernels/cuda:\nkernels:\ncache:\n");
  for (const char* name : {"a", "b", "c"}) write(std::string("kernels/") + name + ".h", "\n");
  EXPECT_TRUE(check_tree(root_.string(), ladder).violations.empty());
  write("kernels/d.h", "\n");
  EXPECT_EQ(check_tree(root_.string(), ladder).violations.size(), 1u);
}

}  // namespace
}  // namespace headrace::layering
