// The finder of types that are defined twice, on small sources.
#include "tests/layering/types.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace headrace::layering {
namespace {

std::vector<std::string> names(const std::string& source) {
  std::vector<std::string> out;
  for (const TypeDefinition& type : defined_types(source)) out.push_back(type.name);
  return out;
}
using Names = std::vector<std::string>;

TEST(DefinedTypes, FindsEveryKind) {
  EXPECT_EQ(names("namespace headrace {\n"
                  "class A { int x; };\n"
                  "struct B final : public A { void f() { struct Inner {}; } };\n"
                  "enum class C : int { kOne, kTwo };\n"
                  "enum D { kThree };\n"
                  "union E { int i; float f; };\n"
                  "using F = std::vector<int>;\n"
                  "template <typename T, int n = (1 > 0)>\n"
                  "class G { T t; };\n"
                  "class alignas(64) H {};\n"
                  "struct [[nodiscard]] I {};\n"
                  "}  // namespace headrace\n"),
            (Names{"headrace::A", "headrace::B", "headrace::C", "headrace::D", "headrace::E", "headrace::F",
                   "headrace::G", "headrace::H", "headrace::I"}));
}

TEST(DefinedTypes, KnowsNamespacesAndLines) {
  const auto found = defined_types(
      "struct Outside {};\n"
      "namespace headrace::kernels {\n"
      "inline namespace v1 { struct A {}; }\n"
      "struct B {};\n"
      "}\n"
      "namespace headrace { namespace cpu {\n"
      "struct C {};\n"
      "} struct D {}; }\n");
  ASSERT_EQ(found.size(), 5u);
  EXPECT_EQ(found[0].name, "Outside");
  EXPECT_EQ(found[1].name, "headrace::kernels::v1::A");
  EXPECT_EQ(found[2].name, "headrace::kernels::B");
  EXPECT_EQ(found[3].name, "headrace::cpu::C");
  EXPECT_EQ(found[3].line, 7);
  EXPECT_EQ(found[4].name, "headrace::D");
}

TEST(DefinedTypes, LeavesOutWhatDefinesNothing) {
  EXPECT_EQ(names("namespace headrace {\n"
                  "namespace { struct Hidden {}; }\n"
                  "class Forward;\n"
                  "enum class Opaque : int;\n"
                  "// struct InAComment {};\n"
                  "const char* text = \"struct InAString {};\";\n"
                  "#define MACRO struct InAMacro \\\n"
                  "  {}\n"
                  "struct stat status = {};\n"
                  "struct stat look(int n) { return {}; }\n"
                  "template <> struct Special<int> {};\n"
                  "void f(const std::vector<int>& v = {}) { struct Local {}; }\n"
                  "int g() { return 1'000; }\n"
                  "struct Pair (*h)(int);\n"
                  "namespace fs = std::filesystem;\n"
                  "const int numbers[] = {1, 2, 3};\n"
                  "constexpr auto lambda = [](int x) { struct In {}; return x; };\n"
                  "Thing::Thing(int x) : x_{x}, y_(2) { struct In {}; }\n"
                  "class Last {};\n"
                  "}\n"),
            (Names{"headrace::Last"}));
}

TEST(TypesDefinedTwice, NamesBothPlaces) {
  const std::vector<Source> sources = {
      {"runtime/base/progress.h", "namespace headrace {\n\nclass Progress {};\n}\n"},
      {"offload/device/cpu/progress.h", "namespace headrace {\nclass Progress {\n};\n}\n"},
  };
  const auto twice = types_defined_twice(sources);
  ASSERT_EQ(twice.size(), 1u);
  EXPECT_EQ(twice[0],
            "offload/device/cpu/progress.h:2: headrace::Progress is defined in runtime/base/progress.h:3 too");
}

TEST(TypesDefinedTwice, AllowsWhatTheLinkerKeepsApart) {
  EXPECT_TRUE(types_defined_twice(
                  {
                      {"a.h", "namespace headrace { class A; struct B {}; }"},
                      {"a.cc", "namespace headrace { class A {}; namespace { struct B {}; } }"},
                      {"b.cc", "namespace headrace::cpu { class A {}; } namespace other { struct B {}; }"},
                      {"c.h", "namespace headrace {\n#if X\nstruct C {};\n#else\nstruct C { int x; };\n#endif\n}"},
                  })
                  .empty());
}

}  // namespace
}  // namespace headrace::layering
