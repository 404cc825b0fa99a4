#include "cache/minimum_budgets.h"

#include <gtest/gtest.h>

#include <vector>

#include "tests/support/refusal.h"

namespace headrace {
namespace {

using testing_support::amount_after;

PlanInput sized(const RowShape& rows, int64_t context) {
  PlanInput in;
  in.rows = rows;
  in.prompt_rows = context - 256;
  in.context_rows = context;
  in.vram_free = in.host_free = 64 * kGiB;
  const uint64_t hidden = static_cast<uint64_t>(rows.layers) * 256;
  in.decode_work = {.bytes = 70 * kMiB + static_cast<uint64_t>(context) * 512, .per_context_row = 512};
  in.prefill_work = {.bytes = in.decode_work.bytes + 30 * kMiB + static_cast<uint64_t>(in.prompt_rows) * hidden,
                     .per_context_row = 512,
                     .per_prompt_row = hidden};
  in.pinned_work_bytes = kMiB + 4 * kKiB;
  return in;
}

const RowShape k8b{.layers = 32, .kv_heads = 8, .head_dim = 128};
const RowShape kSmall{.layers = 30, .kv_heads = 3, .head_dim = 64};
const RowShape kOdd{.layers = 5, .kv_heads = 1, .head_dim = 24};  // whose segments are no whole pages

// Runs that do not fit.
std::vector<PlanInput> refused_runs() {
  std::vector<PlanInput> runs;
  for (const RowShape& rows : {k8b, kSmall, kOdd}) {
    for (const int64_t context : {6000, 61696, 131072}) {
      const PlanInput whole = sized(rows, context);
      const uint64_t kv = static_cast<uint64_t>(rows.layers) * segments_bytes(rows, 0, segments_for(context));
      const uint64_t work = whole.prefill_work.bytes + kv / static_cast<uint64_t>(rows.layers);
      for (const KvMode mode : {KvMode::kAuto, KvMode::kDevice, KvMode::kHost}) {
        for (const int variant : {0, 1, 2, 3, 4, 5, 6, 7}) {
          PlanInput in = whole;
          in.mode = mode;
          in.vram_free = work + kv / (variant % 2 == 0 ? 3 : 20);
          in.host_free = kMiB + kv / (variant % 3 == 0 ? 2 : 7);
          if (variant >= 2 && variant < 5) in.disk_free = 1 + kv / (variant == 3 ? 3 : 30);
          if (variant == 4) in.last_layer_resident = true;
          if (variant == 5) in.partial.blocks = 256;
          if (variant == 2) in.partial.copy = DType::kInt8;
          if (variant == 6) in.host_free = kKiB;
          if (variant == 7) in.vram_free = in.host_free = in.total_free = work / 2 + kv / 2;
          if (!try_plan(in)) runs.push_back(in);
        }
      }
    }
  }
  return runs;
}

std::string name_of(const PlanInput& in) {
  return str(in.rows.layers, " layers, ", in.context_rows, " tokens, mode ", static_cast<int>(in.mode), ", vram ",
             in.vram_free, ", host ", in.host_free, ", disk ", in.disk_free, ", total ", in.total_free);
}

// In one memory all is one limit.
PlanInput with_host(PlanInput in, uint64_t bytes) {
  if (in.total_free != UINT64_MAX) in.vram_free = in.total_free = bytes;
  in.host_free = bytes;
  return in;
}
PlanInput with_vram(PlanInput in, uint64_t bytes) {
  in.vram_free = bytes;
  return in;
}
PlanInput with_disk(PlanInput in, uint64_t bytes) {
  in.disk_free = bytes;
  return in;
}

// What is said to do does, and a page less does not.
TEST(Needs, AreExact) {
  int of_host = 0, of_vram = 0, of_disk = 0, of_both = 0;
  const std::vector<PlanInput> runs = refused_runs();
  EXPECT_GT(runs.size(), 100u);
  for (const PlanInput& in : runs) {
    const MinimumBudgets minimum = minimum_budgets(in);
    if (minimum.host_bytes > 0) {
      ++of_host;
      EXPECT_TRUE(try_plan(with_host(in, minimum.host_bytes))) << name_of(in);
      EXPECT_FALSE(try_plan(with_host(in, minimum.host_bytes - kPageBytes))) << name_of(in);
    }
    if (minimum.vram_bytes > 0) {
      ++of_vram;
      EXPECT_TRUE(try_plan(with_vram(in, minimum.vram_bytes))) << name_of(in);
      EXPECT_FALSE(try_plan(with_vram(in, minimum.vram_bytes - kPageBytes))) << name_of(in);
    }
    if (minimum.disk_bytes > 0) {
      ++of_disk;
      EXPECT_TRUE(try_plan(with_disk(in, minimum.disk_bytes))) << name_of(in);
      EXPECT_FALSE(try_plan(with_disk(in, minimum.disk_bytes - kPageBytes))) << name_of(in);
    }
    if (minimum.host_bytes + minimum.vram_bytes + minimum.disk_bytes == 0) {
      ++of_both;
      const PlanInput both = with_vram(in, minimum.both_vram_bytes);
      EXPECT_TRUE(try_plan(with_host(both, minimum.both_host_bytes))) << name_of(in);
      EXPECT_FALSE(try_plan(with_host(both, minimum.both_host_bytes - kPageBytes))) << name_of(in);
      EXPECT_FALSE(try_plan(with_host(with_vram(in, minimum.both_vram_bytes - kPageBytes), minimum.both_host_bytes)));
    }
  }
  for (const int seen : {of_host, of_vram, of_disk, of_both}) EXPECT_GT(seen, 5);
}

// Raising one budget to the last byte of what another lacks is not asked for: more resident is less elsewhere.
TEST(Needs, OfHostMemoryAreWhatTheDeviceHasNoRoomFor) {
  PlanInput in = sized(k8b, 61696);
  in.vram_free = 5 * kGiB;
  in.host_free = kGiB;
  const MinimumBudgets minimum = minimum_budgets(in);
  const uint64_t kv = 32 * segments_bytes(in.rows, 0, segments_for(in.context_rows));
  EXPECT_LT(minimum.host_bytes, kv - 3 * kGiB);
  EXPECT_LT(minimum.vram_bytes, in.vram_free + kv / 2);
  EXPECT_LT(minimum.disk_bytes, kv - 3 * kGiB);
}

TEST(Needs, WhatTheRefusalSaysIsEnough) {
  for (const PlanInput& in : refused_runs()) {
    const DoesNotFit refusal(in, minimum_budgets(in));
    const ErrorInfo& info = refusal.info();
    EXPECT_EQ(info.code, ExitCode::kDoesNotFit);
    const uint64_t needed = amount_after(info.what, "needs "), free = amount_after(info.what, "tokens, ");
    EXPECT_GT(needed, free) << refusal.what();
    if (refusal.minimum().both_vram_bytes > 0) {
      const PlanInput more = with_vram(in, in.vram_free + amount_after(info.hint, "raise --vram by "));
      const uint64_t host = in.host_free + amount_after(info.hint, " and --host-mem by ");
      EXPECT_TRUE(try_plan(with_host(more, host))) << refusal.what();
      continue;
    }
    const PlanInput named = info.where == "--spill"      ? with_disk(in, needed)
                            : info.where == "--host-mem" ? with_host(in, needed)
                                                         : with_vram(in, needed);
    EXPECT_TRUE(try_plan(named)) << refusal.what();
    const auto offers = [&](const char* words) { return info.hint.find(words) != std::string::npos; };
    if (offers("raise --host-mem by ")) {
      EXPECT_TRUE(try_plan(with_host(in, in.host_free + amount_after(info.hint, "raise --host-mem by "))))
          << refusal.what();
    }
    if (offers("raise --vram by ")) {
      EXPECT_TRUE(try_plan(with_vram(in, in.vram_free + amount_after(info.hint, "raise --vram by "))))
          << refusal.what();
    }
    const char* const spill = in.disk_free > 0 ? "raise --spill to " : "or spill ";
    EXPECT_EQ(offers(in.disk_free > 0 ? spill : "(--spill DIR)"), refusal.minimum().disk_bytes > 0) << refusal.what();
    if (refusal.minimum().disk_bytes > 0) {
      EXPECT_TRUE(try_plan(with_disk(in, amount_after(info.hint, spill)))) << refusal.what();
    }
  }
}

}  // namespace
}  // namespace headrace
