// Rotary tables against transformers' (tests/data/model/rope.json, made by make_reference.py there).
#include <gtest/gtest.h>

#include <bit>
#include <fstream>
#include <nlohmann/json.hpp>

#include "runtime/model/card_rope.h"
#include "runtime/model/families/read_config.h"
#include "runtime/model/files/shapes.h"

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

TEST(CardRope, IsThatOfTheModelsWhoseCardsHaveOne) {
  ModelConfig config = find_shape("qwen3-14b").config;
  const std::optional<RopeOverrides> card = card_rope(config);
  ASSERT_TRUE(card);
  EXPECT_EQ(rope_flags_text(*card), "--rope-scaling yarn --rope-scale 4 --yarn-orig-ctx 32768");
  const ModelConfig extended = with_rope(config, *card);
  EXPECT_GE(extended.max_positions, 131072);
  EXPECT_EQ(extended.rope.original_max_positions, 32768);
  EXPECT_FALSE(card_rope(extended));
  for (const char* const name : {"qwen3.6-27b", "qwen3.6-35b-a3b"}) {
    EXPECT_EQ(rope_flags_text(card_rope(find_shape(name).config).value()),
              "--rope-scaling yarn --rope-scale 4 --yarn-orig-ctx 262144");
  }
  for (const char* const name : {"qwen3-1.7b", "qwen2.5-3b", "llama-3.1-8b", "llama-2-7b"}) {
    EXPECT_FALSE(card_rope(find_shape(name).config)) << name;
  }
  config.max_positions = 262144;  // Qwen3-2507
  EXPECT_FALSE(card_rope(config));
}

}  // namespace
}  // namespace headrace
