#include "runtime/model/state_groups.h"

#include <gtest/gtest.h>

namespace headrace {
namespace {

TEST(StateGroups, LayersAreCountedWithinTheirGroup) {
  const LayerSpec attention{.mixer = AttentionSpec{.heads = 4, .kv_heads = 2, .head_dim = 64}, .ffn = {}};
  const LayerSpec recurrent{.mixer = DeltaNetSpec{.k_heads = 2, .v_heads = 4, .k_dim = 64, .v_dim = 64, .conv = 4},
                            .ffn = {}};
  ModelConfig config;
  config.layers = {recurrent, recurrent, attention, recurrent, attention};
  const StateGroups groups(config);
  EXPECT_EQ(groups.row_layers(), 2);
  EXPECT_EQ(groups.recurrent_layers(), 3);
  for (const auto& [layer, place] : {std::pair{0, 0}, {1, 1}, {2, 0}, {3, 2}, {4, 1}}) {
    EXPECT_EQ(groups.place(layer), place) << layer;
  }
  EXPECT_EQ(config.attention(), attention.attention());
}

TEST(StateGroups, ADenseModelHasRowsInEveryLayer) {
  ModelConfig config;
  config.layers = same_layers(3, {.mixer = AttentionSpec{.heads = 4, .kv_heads = 2, .head_dim = 64}, .ffn = {}});
  const StateGroups groups(config);
  EXPECT_EQ(groups.row_layers(), 3);
  EXPECT_EQ(groups.recurrent_layers(), 0);
  EXPECT_EQ(groups.place(2), 2);
}

TEST(StateGroups, LayersWithAWindowAreAGroup) {
  ModelConfig config;
  LayerSpec all{.mixer = AttentionSpec{.heads = 4, .kv_heads = 2, .head_dim = 64}, .ffn = {}}, window = all;
  std::get<AttentionSpec>(window.mixer).window = 512;
  config.layers = {window, window, all, window};
  const StateGroups groups(config);
  EXPECT_EQ(groups.row_layers(), 1);
  EXPECT_EQ(groups.window_layers(), 3);
  EXPECT_TRUE(groups.need_snapshots());
  EXPECT_EQ(groups.at(2).group, StateGroup::kRows);
  EXPECT_EQ(groups.at(3).group, StateGroup::kWindow);
  EXPECT_EQ(groups.place(2), 0);
  EXPECT_EQ(groups.place(3), 2);
}

}  // namespace
}  // namespace headrace
