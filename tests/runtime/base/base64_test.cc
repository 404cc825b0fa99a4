#include "runtime/base/base64.h"

#include <gtest/gtest.h>

#include <string>

namespace headrace {
namespace {

using namespace std::string_literals;

// The examples of RFC 4648.
TEST(Base64, ReadsWhatTheStandardGives) {
  const std::pair<const char*, const char*> examples[] = {{"", ""},
                                                          {"Zg==", "f"},
                                                          {"Zm8=", "fo"},
                                                          {"Zm9v", "foo"},
                                                          {"Zm9vYg==", "foob"},
                                                          {"Zm9vYmE=", "fooba"},
                                                          {"Zm9vYmFy", "foobar"}};
  for (const auto& [text, bytes] : examples) EXPECT_EQ(decode_base64(text), bytes) << text;
  EXPECT_EQ(decode_base64("AP+/+w"), "\0\xff\xbf\xfb"s);
  EXPECT_EQ(decode_base64("Zm9v\r\nYg = =\n"), "foob");
}

TEST(Base64, RefusesWhatNoBytesHave) {
  for (const char* text : {"Z", "Zm9vY", "Zg=", "Zm8==", "Zm9v=", "Zm9v====", "Z=g=", "Zm9-", "Zm9_", "%"}) {
    EXPECT_EQ(decode_base64(text), std::nullopt) << text;
  }
}

}  // namespace
}  // namespace headrace
