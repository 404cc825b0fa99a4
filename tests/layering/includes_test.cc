// The checker itself: that it reads includes as the compiler does and finds a planted bad edge.
#include "tests/layering/includes.h"

#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

namespace headrace::layering {
namespace {

TEST(QuotedIncludes, FindsEverySpellingWithItsLine) {
  const auto found = quoted_includes(
      "#pragma once\n"
      "#include <vector>\n"
      "#include \"cache/layout.h\"\n"
      "  #  include\t\"offload/stream.h\"  // why\n"
      "#include\"kernels/view.h\"");
  ASSERT_EQ(found.size(), 3u);
  EXPECT_EQ(found[0].target, "cache/layout.h");
  EXPECT_EQ(found[0].line, 3);
  EXPECT_EQ(found[1].target, "offload/stream.h");
  EXPECT_EQ(found[1].line, 4);
  EXPECT_EQ(found[2].target, "kernels/view.h");
  EXPECT_EQ(found[2].line, 5);
}

TEST(QuotedIncludes, SkipsCommentsAndStrings) {
  EXPECT_TRUE(quoted_includes("// #include \"cli/args.h\"\n/*\n#include \"cli/args.h\"\n*/\n").empty());
  EXPECT_TRUE(quoted_includes("const char* s = \"#include \\\"cli/args.h\\\"\";\n").empty());
  // A slash pair inside a string opens no comment, and a digit separator opens no literal.
  EXPECT_EQ(quoted_includes("const char* s = \"http://x\"; int n = 1'000;\n#include \"cli/args.h\"\n").size(), 1u);
  EXPECT_EQ(quoted_includes("/* a */ #include \"cli/args.h\"\n").size(), 1u);
  EXPECT_TRUE(quoted_includes("#include \"unterminated\n/* open").empty());
}

TEST(Forbidden, AllowsTheTable) {
  const std::vector<std::pair<std::string, std::string>> edges = {
      {"cache/layout.cc", "cache/layout.h"},
      {"cache/layout.h", "cache/base.h"},
      {"offload/ring.cc", "offload/stream.h"},
      {"offload/ring.h", "cache/base.h"},
      {"kernels/view.h", "cache/base.h"},
      {"kernels/cpu/norm.cc", "kernels/norm.h"},
      {"kernels/cuda/norm.cu", "offload/stream.h"},
      {"runtime/engine.h", "cache/layout.h"},
      {"runtime/engine.h", "offload/buffer.h"},
      {"runtime/model/forward.cc", "kernels/norm.h"},
      {"cli/main.cc", "runtime/engine.h"},
      {"cli/main.cc", "cache/base.h"},
      {"cli/main.cc", "cli/args.h"},
      {"tests/cli/args_test.cc", "cli/args.h"},
      {"bench/link.cc", "offload/link.h"},
      {"tests/cache/layout_test.cc", "cache/layout.h"},
  };
  for (const auto& [from, to] : edges) EXPECT_EQ(forbidden(from, to), "") << from << " -> " << to;
}

TEST(Forbidden, RefusesEveryOtherEdge) {
  const std::vector<std::pair<std::string, std::string>> edges = {
      {"cache/plan.cc", "offload/stream.h"},
      {"cache/plan.cc", "kernels/view.h"},
      {"cache/plan.cc", "runtime/engine.h"},
      {"offload/ring.cc", "cache/layout.h"},
      {"offload/ring.cc", "kernels/view.h"},
      {"offload/ring.cc", "runtime/engine.h"},
      {"kernels/norm.h", "cache/layout.h"},
      {"kernels/norm.h", "runtime/engine.h"},
      {"kernels/norm.h", "cli/args.h"},
      {"runtime/engine.cc", "cli/args.h"},
      {"runtime/engine.cc", "tests/support/x.h"},
      {"runtime/engine.cc", "bench/x.h"},
      {"cli/main.cc", "cache/layout.h"},
      {"cli/main.cc", "offload/stream.h"},
      {"cli/main.cc", "kernels/norm.h"},
      {"cli/main.cc", "tests/support/x.h"},
      {"cli/main.cc", "bench/x.h"},
      {"cache/base.h", "cache/layout.h"},
      {"cache/base.h", "cache/base.h"},
      {"vendor/x.h", "cache/base.h"},
      // Not a path from the root, or one that climbs out of its folder.
      {"cache/plan.cc", "layout.h"},
      {"runtime/x.cc", "../cli/args.h"},
      {"runtime/x.cc", "runtime/../cli/args.h"},
  };
  for (const auto& [from, to] : edges) EXPECT_NE(forbidden(from, to), "") << from << " -> " << to;
}

TEST(Violations, NamesFileLineAndEdge) {
  const auto found =
      violations_in_text("cache/plan.cc", "#include \"cache/plan.h\"\n\n#include \"offload/stream.h\"\n");
  ASSERT_EQ(found.size(), 1u);
  EXPECT_EQ(found[0], "cache/plan.cc:3: cache may not include offload (\"offload/stream.h\")");
}

}  // namespace
}  // namespace headrace::layering
