// The checker of includes itself: that it reads them as the compiler does and finds a planted bad edge.
#include "tests/layering/includes.h"

#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

namespace headrace::layering {
namespace {

const Ladder& ladder() {
  static const Ladder kLadder = parse_ladder(
      "# from the top\n"
      "cli: cli/print\n"
      "  runtime/model\n"
      "cli/print: runtime/model\n"
      "runtime/model/files: runtime/model runtime/base\n"
      "runtime/model: runtime/base kernels/sample offload/device\n"
      "\n"
      "runtime/base: cache\n"
      "kernels/sample: kernels/cpu offload/device/cuda offload/device\n"
      "kernels/cpu:\n"
      "offload/device/cuda: offload/device\n"
      "offload/device: offload/host\n"
      "offload/host:\n"
      "cache:\n");
  return kLadder;
}

TEST(ParseLadder, ReadsFoldersAndNeedsInOrder) {
  ASSERT_EQ(ladder().size(), 11u);
  EXPECT_EQ(ladder()[0].path, "cli");
  EXPECT_EQ(ladder()[0].needs, (std::vector<std::string>{"cli/print", "runtime/model"}));
  EXPECT_EQ(ladder()[5].path, "kernels/sample");
  EXPECT_EQ(ladder()[5].needs, (std::vector<std::string>{"kernels/cpu", "offload/device/cuda", "offload/device"}));
  EXPECT_TRUE(ladder()[10].needs.empty());
}

TEST(Faults, HasNoneForAnOrderedList) { EXPECT_TRUE(faults(ladder()).empty()); }

TEST(Faults, NamesEachKind) {
  using Texts = std::vector<std::string>;
  EXPECT_EQ(faults(parse_ladder("a: b\nb:\na:\n")), Texts{"a: listed twice"});
  EXPECT_EQ(faults(parse_ladder("a: b c\nb:\n")), Texts{"a needs c, which is not in the list"});
  EXPECT_EQ(faults(parse_ladder("a:\nb: a\n")), Texts{"b needs a, which stands above it"});
  EXPECT_EQ(faults(parse_ladder("a: c b\nb:\nc:\n")), Texts{"a needs b, which is listed twice or out of order"});
  EXPECT_EQ(faults(parse_ladder("a: b b\nb:\n")), Texts{"a needs b, which is listed twice or out of order"});
}

TEST(Faults, NamesTheFoldersOfACircle) {
  using Texts = std::vector<std::string>;
  EXPECT_EQ(faults(parse_ladder("a: a\n")), Texts{"a circle: a -> a"});
  EXPECT_EQ(faults(parse_ladder("a: b\nb: a\n")), Texts{"a circle: b -> a -> b"});
  EXPECT_EQ(faults(parse_ladder("a: b d\nb: c d\nc: a d\nd:\n")), Texts{"a circle: c -> a -> b -> c"});
}

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

TEST(Forbidden, AllowsWhatIsListed) {
  const std::vector<std::pair<std::string, std::string>> edges = {
      {"cache/layout.cc", "cache/layout.h"},
      {"cache/layout.h", "cache/base.h"},
      {"offload/host/pages.cc", "cache/base.h"},
      {"offload/device/ring.cc", "offload/host/pages.h"},
      {"offload/device/cuda/graph.cc", "offload/device/graph.h"},
      {"kernels/sample/cuda.cu", "offload/device/cuda/check.h"},
      {"kernels/sample/cpu.cc", "kernels/cpu/isa.h"},
      {"runtime/base/json_file.h", "cache/layout.h"},
      {"runtime/model/files/gguf.h", "runtime/model/config.h"},
      {"cli/main.cc", "cli/print/table.h"},
      {"cli/main.cc", "cache/base.h"},
      {"tests/cli/main_test.cc", "cli/main.h"},
      {"tests/support/x.h", "kernels/cpu/isa.h"},
      {"bench/link.cc", "offload/device/link.h"},
      {"bench/link.cc", "tests/support/x.h"},
  };
  for (const auto& [from, to] : edges) EXPECT_EQ(forbidden(ladder(), from, to), "") << from << " -> " << to;
}

TEST(Forbidden, RefusesEveryOtherEdge) {
  const std::vector<std::pair<std::string, std::string>> edges = {
      // Above: in another folder at the top, beside it, in its own sub-folder, in the folder that it is in.
      {"cache/plan.cc", "runtime/base/json_file.h"},
      {"offload/host/pages.cc", "offload/device/ring.h"},
      {"offload/device/ring.cc", "offload/device/cuda/check.h"},
      {"runtime/model/weights.cc", "runtime/model/files/gguf.h"},
      {"cli/print/table.cc", "cli/main.h"},
      {"runtime/base/x.cc", "runtime/model/config.h"},
      // Below, but not listed; what a listed folder lists is not enough, nor are its sub-folders.
      {"offload/device/ring.cc", "cache/layout.h"},
      {"kernels/sample/op.cc", "offload/host/pages.h"},
      {"cli/main.cc", "runtime/base/x.h"},
      {"cli/main.cc", "runtime/model/files/gguf.h"},
      {"runtime/model/x.cc", "offload/device/cuda/check.h"},
      {"runtime/model/x.cc", "cache/layout.h"},
      // Nobody includes tests or bench but themselves.
      {"runtime/model/x.cc", "tests/support/x.h"},
      {"cli/main.cc", "bench/x.h"},
      // The base header includes nothing.
      {"cache/base.h", "cache/layout.h"},
      {"cache/base.h", "cache/base.h"},
      // Not in the list: as who includes, as what is included.
      {"vendor/x.h", "cache/base.h"},
      {"runtime/x.cc", "cache/base.h"},
      {"runtime/model/x.cc", "runtime/x.h"},
      // Not a path from the root, or one that climbs out of its folder.
      {"cache/plan.cc", "layout.h"},
      {"tests/cache/plan_test.cc", "layout.h"},
      {"runtime/model/x.cc", "../cli/args.h"},
      {"runtime/model/x.cc", "runtime/../cli/args.h"},
  };
  for (const auto& [from, to] : edges) EXPECT_NE(forbidden(ladder(), from, to), "") << from << " -> " << to;
}

TEST(Violations, NamesFileLineAndEdge) {
  const auto found = violations_in_text(ladder(), "cache/plan.cc",
                                        "#include \"cache/plan.h\"\n\n#include \"offload/device/stream.h\"\n");
  ASSERT_EQ(found.size(), 1u);
  EXPECT_EQ(
      found[0],
      "cache/plan.cc:3: cache may not include offload/device (\"offload/device/stream.h\"): the list has no such need");
}

}  // namespace
}  // namespace headrace::layering
