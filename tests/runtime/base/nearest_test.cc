#include "runtime/base/nearest.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace headrace {
namespace {

TEST(NearestWord, IsTheOneWithTheFewestSlips) {
  const std::vector<std::string> words = {"lossless", "approximate", "full", "rtx4090", "rtx4080", "--ctx-size"};
  EXPECT_EQ(nearest_word("losless", words), "lossless");       // a letter missing
  EXPECT_EQ(nearest_word("losslesss", words), "lossless");     // one too many
  EXPECT_EQ(nearest_word("aproximte", words), "approximate");  // two missing
  EXPECT_EQ(nearest_word("fulk", words), "full");              // another one
  EXPECT_EQ(nearest_word("flul", words), "full");              // two swapped: one slip of four letters
  EXPECT_EQ(nearest_word("FULL", words), "full");
  EXPECT_EQ(nearest_word("rtx4089", words), "rtx4080");
  EXPECT_EQ(nearest_word("rtx409", words), "rtx4090");
  EXPECT_EQ(nearest_word("--ctx_size", words), "--ctx-size");
}

TEST(NearestWord, IsNoneIfTooManyLettersDiffer) {
  const std::vector<std::string> words = {"lossless", "full", std::string(100, 'x')};
  for (const std::string typed : {"", "x", "ful", "fxyl", "perfect", "loss"}) {
    EXPECT_EQ(nearest_word(typed, words), typed == "ful" ? "full" : "") << typed;
  }
  EXPECT_EQ(nearest_word(std::string(100, 'x'), words), "");  // longer than what is compared
  EXPECT_EQ(nearest_word("full", {}), "");
  EXPECT_EQ(did_you_mean("perfect", words), "");
  EXPECT_EQ(did_you_mean("ful", words), "; did you mean 'full'?");
}

}  // namespace
}  // namespace headrace
