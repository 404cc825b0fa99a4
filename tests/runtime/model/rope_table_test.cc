// Rotary tables against transformers' (tests/data/model/rope.json, made by make_reference.py there).
#include <gtest/gtest.h>

#include <bit>
#include <fstream>
#include <nlohmann/json.hpp>

#include "runtime/model/families/read_config.h"

namespace headrace {
namespace {

TEST(RopeTable, EqualsTheReference) {
  std::ifstream file(std::string(HEADRACE_TEST_DATA) + "/model/rope.json");
  const nlohmann::json cases = nlohmann::json::parse(file);
  ASSERT_GE(cases.size(), 20u);
  size_t values = 0, off = 0;
  for (const nlohmann::json& item : cases) {
    const ModelConfig config = parse_config_json(item.at("config").dump(), "rope.json");
    const RopeTable table = make_rope_table(config.rope, config.rope_dims(), config.max_positions);
    const auto expected = item.at("inv_freq_bits").get<std::vector<uint32_t>>();
    ASSERT_EQ(table.inv_freq.size(), expected.size());
    EXPECT_FLOAT_EQ(table.scale, item.at("scale").get<float>()) << item.at("config");
    for (size_t i = 0; i < expected.size(); ++i) {
      // The reference's pow is within one unit of the last place; ours is rounded right. Bits may differ by that much.
      const auto distance = static_cast<int64_t>(std::bit_cast<uint32_t>(table.inv_freq[i])) - int64_t{expected[i]};
      EXPECT_LE(std::abs(distance), 1) << item.at("config") << " index " << i;
      ++values, off += distance != 0;
    }
  }
  EXPECT_LE(off * 100, values) << off << " of " << values << " differ in their last bits";
}

TEST(RopeTable, DividesByFrequencyFactors) {
  RopeConfig rope;
  const RopeTable plain = make_rope_table(rope, 8, 2048);
  rope.frequency_factors = {1, 2, 4, 8};
  const RopeTable divided = make_rope_table(rope, 8, 2048);
  for (size_t i = 0; i < 4; ++i) EXPECT_EQ(divided.inv_freq[i], plain.inv_freq[i] / static_cast<float>(1 << i));
  EXPECT_EQ(divided.scale, 1.0f);
}

}  // namespace
}  // namespace headrace
