#include "cache/memory_plan.h"

#include <gtest/gtest.h>

#include <string>

#include "cache/minimum_budgets.h"

namespace headrace {
namespace {

// Sizes are whole pages here, so that sums can be written without rounding.
// The shape of Llama-3.1-8B: 4 KiB a row and layer.
PlanInput llama_8b(int64_t prompt, int64_t context) {
  PlanInput in;
  in.rows = {.layers = 32, .kv_heads = 8, .head_dim = 128};
  in.prompt_rows = prompt;
  in.context_rows = context;
  in.vram_free = 64 * kGiB;
  in.host_free = 64 * kGiB;
  in.decode_work = {.bytes = 70 * kMiB + static_cast<uint64_t>(context) * 512, .per_context_row = 512};
  in.prefill_work = {.bytes = in.decode_work.bytes + 30 * kMiB + static_cast<uint64_t>(prompt) * 8 * kKiB,
                     .per_context_row = 512,
                     .per_prompt_row = 8 * kKiB};
  in.pinned_work_bytes = kMiB;
  return in;
}

TEST(Planner, EverythingStaysOnADeviceWithRoom) {
  const MemoryPlan plan = make_plan(llama_8b(61440, 61696));
  EXPECT_EQ(plan.resident_segments, plan.segments);
  EXPECT_EQ(plan.host_bytes, 0u);
  EXPECT_EQ(plan.active_bytes, 0u);
  EXPECT_EQ(plan.ring_slots, 0);
}

TEST(Planner, HostModeKeepsOnlyTheTailAndTheOpenSegment) {
  PlanInput in = llama_8b(61440, 61696);
  in.mode = KvMode::kHost;
  const MemoryPlan plan = make_plan(in);
  EXPECT_EQ(plan.resident_bytes, 0u);
  EXPECT_EQ(plan.host_bytes, 32 * segments_bytes(in.rows, 0, plan.segments));
  EXPECT_EQ(plan.active_bytes, 2048 * 128 * kKiB);
  EXPECT_EQ(plan.tail_bytes, 512 * 128 * kKiB);
  EXPECT_EQ(plan.ring_slots, 4);
  EXPECT_EQ(plan.ring_slot_bytes, 16 * kMiB);
}

// kAuto fills the budget: one segment more in each layer would not fit.
TEST(Planner, AutoKeepsAsManySegmentsAsFit) {
  for (const uint64_t vram : {2 * kGiB, 3 * kGiB, 5 * kGiB, 7 * kGiB}) {
    PlanInput in = llama_8b(61440, 61696);
    in.vram_free = vram;
    const MemoryPlan plan = make_plan(in);
    EXPECT_LE(plan.vram_bytes, vram);
    EXPECT_LT(plan.resident_segments, plan.segments);
    EXPECT_GT(plan.vram_bytes + 2048 * 128 * kKiB, vram);
    EXPECT_EQ(plan.resident_bytes + plan.host_bytes, 32 * segments_bytes(in.rows, 0, plan.segments));
  }
}

// What a partial KV takes is taken from what could have stayed resident, and is said.
TEST(Planner, ThePartialKvAndItsIndexAreCounted) {
  PlanInput in = llama_8b(61440, 61696);
  in.vram_free = 5 * kGiB;
  const MemoryPlan plain = make_plan(in);
  in.partial.blocks = 256;
  const MemoryPlan plan = make_plan(in);
  EXPECT_EQ(plan.partial_bytes, in.partial.bytes(in.rows, 61696));
  EXPECT_EQ(plan.index_bytes, block_index_bytes(in.rows, 61696));
  EXPECT_LE(plan.vram_bytes, in.vram_free);
  EXPECT_LT(plan.resident_segments, plain.resident_segments);
  EXPECT_GT(plan.vram_bytes + 2048 * 128 * kKiB, in.vram_free);
  EXPECT_NE(plan.to_string().find("592.00 MiB  partial KV: blocks"), std::string::npos) << plan.to_string();
  EXPECT_NE(plan.to_string().find("482.00 MiB  block summaries"), std::string::npos) << plan.to_string();
}

// Blocks are made once prefill's memory is free, only where they do not fit beside it; and what decoding needs with
// them is needed in any case.
TEST(Planner, BlocksComeLateWhereTheyDoNotFitBesidePrefill) {
  PlanInput in = llama_8b(61440, 61696);
  in.mode = KvMode::kHost;
  in.partial.blocks = 256;
  in.prefill_work.bytes = in.decode_work.bytes + 3 * kGiB;
  const MemoryPlan early = make_plan(in);
  EXPECT_FALSE(early.late_partial);
  in.vram_free = early.vram_bytes;
  EXPECT_FALSE(make_plan(in).late_partial);

  in.vram_free = early.vram_bytes - kPageBytes;
  const MemoryPlan late = make_plan(in);
  EXPECT_TRUE(late.late_partial);
  EXPECT_NE(late.to_string().find("partial KV: blocks, once prefill's memory is free"), std::string::npos);
  EXPECT_EQ(late.partial_bytes, early.partial_bytes);
  EXPECT_EQ(late.index_bytes, early.index_bytes);
  // Prefill's peak is the larger one, and it has one layer's summaries.
  EXPECT_EQ(late.vram_bytes, early.vram_bytes - late.partial_bytes - late.index_bytes + late.index_bytes / 32);
  in.vram_free = late.vram_bytes;
  EXPECT_TRUE(make_plan(in).late_partial);
  in.vram_free -= kPageBytes;
  EXPECT_FALSE(try_plan(in));
  in.mode = KvMode::kAuto;  // as all of the KV cache is elsewhere already
  EXPECT_FALSE(try_plan(in));

  in.prefill_work.bytes =
      in.decode_work.bytes + 512 * kMiB;  // less than the partial KV: decoding's peak is the larger one
  in.vram_free = 64 * kGiB;
  const MemoryPlan resident = make_plan(in);
  EXPECT_FALSE(resident.late_partial);
  in.vram_free = 4 * kGiB;
  in.mode = KvMode::kHost;
  in.vram_free = make_plan(in).vram_bytes - kPageBytes;
  const MemoryPlan smaller = make_plan(in);
  EXPECT_TRUE(smaller.late_partial);
  EXPECT_EQ(smaller.vram_bytes, smaller.tail_bytes + smaller.pass_bytes + smaller.active_bytes + smaller.partial_bytes +
                                    smaller.index_bytes + 4 * smaller.ring_slot_bytes + in.decode_work.bytes);
}

// Summaries are made of exact keys, and a copy of exact rows.
TEST(Planner, OnlyWhatIsMadeOfExactRowsComesLate) {
  PlanInput in = llama_8b(61440, 61696);
  in.mode = KvMode::kHost;
  in.prefill_work.bytes = in.decode_work.bytes + 3 * kGiB;
  PlanInput copy = in, copy_of_low_bit = in, low_bit_keys = in, low_bit_values = in;
  copy.partial.copy = copy_of_low_bit.partial.copy = DType::kInt4;
  low_bit_keys.partial.blocks = low_bit_values.partial.blocks = 256;
  copy_of_low_bit.rows.v_type = low_bit_keys.rows.k_type = low_bit_values.rows.v_type = DType::kInt8;
  for (PlanInput* const one : {&copy, &copy_of_low_bit, &low_bit_keys, &low_bit_values}) {
    one->vram_free = make_plan(*one).vram_bytes - kPageBytes;
    EXPECT_EQ(try_plan(*one).has_value(), one == &copy || one == &low_bit_values);
  }
}

// What the copy lacks of the rows is made with it.
TEST(Planner, ACopyComesLateWhereItDoesNotFitBesidePrefill) {
  for (const bool remainders : {false, true}) {
    PlanInput in = llama_8b(61440, 61696);
    in.mode = KvMode::kHost;
    in.prefill_work.bytes = in.decode_work.bytes + 3 * kGiB;
    in.partial.copy = DType::kInt8;
    in.remainders = remainders;
    const MemoryPlan early = make_plan(in);
    EXPECT_FALSE(early.late_partial);
    in.vram_free = early.vram_bytes - early.remainder_work_bytes - kPageBytes;  // remainders go before it comes late
    const MemoryPlan late = make_plan(in);
    EXPECT_TRUE(late.late_partial);
    EXPECT_NE(late.to_string().find("a copy of all rows in int8, once prefill's memory is free"), std::string::npos);
    EXPECT_EQ(late.partial_bytes, early.partial_bytes);
    EXPECT_EQ(late.remainder_bytes, early.remainder_bytes);
    EXPECT_EQ(late.remainder_bytes > 0, remainders);
    EXPECT_LT(late.vram_bytes, early.vram_bytes - 2 * kGiB);
    in.vram_free = late.vram_bytes;
    EXPECT_TRUE(try_plan(in));
    PlanInput without = in;
    without.remainders = false;
    in.vram_free = make_plan(without).vram_bytes - kPageBytes;
    EXPECT_FALSE(try_plan(in));
  }
}

TEST(Planner, SaysWhereAPrefillIsLean) {
  PlanInput in = llama_8b(61440, 61696);
  const MemoryPlan usual = make_plan(in);
  EXPECT_FALSE(usual.lean_prefill);
  EXPECT_EQ(usual.to_string().find("one dequantised matrix"), std::string::npos);
  in.lean_prefill = true;
  const MemoryPlan lean = make_plan(in);
  EXPECT_TRUE(lean.lean_prefill);
  EXPECT_NE(lean.to_string().find("prefill: a layer's buffer, one dequantised matrix and other work"),
            std::string::npos);
  EXPECT_EQ(lean.vram_bytes, usual.vram_bytes);  // prefill_work is the caller's
}

// int8 rows: half the bytes where segments are, exact rows in the tail, in a pass, in the partial KV and its summaries,
// and the layer that prefill builds in both forms.
TEST(Planner, LowBitRowsAreExactInTheTail) {
  PlanInput in = llama_8b(61440, 61696);
  in.mode = KvMode::kHost;
  in.partial.blocks = 256;
  const MemoryPlan bf16 = make_plan(in);
  EXPECT_EQ(bf16.stored_layer_bytes, 0u);
  in.rows.k_type = in.rows.v_type = DType::kInt8;
  const MemoryPlan int8 = make_plan(in);
  EXPECT_EQ(int8.host_bytes * 128, bf16.host_bytes * 65);  // 130 bytes for 128 values
  EXPECT_EQ(int8.active_bytes * 128, bf16.active_bytes * 65);
  EXPECT_EQ(int8.stored_layer_bytes * 128, bf16.layer_buffer_bytes * 65);
  EXPECT_EQ(int8.layer_buffer_bytes, bf16.layer_buffer_bytes);
  EXPECT_EQ(int8.tail_bytes, bf16.tail_bytes);
  EXPECT_EQ(int8.pass_bytes, bf16.pass_bytes);
  EXPECT_EQ(int8.partial_bytes, bf16.partial_bytes);
  EXPECT_EQ(int8.index_bytes, bf16.index_bytes);
  const uint64_t lasting =
      int8.tail_bytes + int8.pass_bytes + int8.active_bytes + int8.partial_bytes + int8.index_bytes;
  EXPECT_EQ(int8.vram_bytes,
            lasting + std::max(int8.layer_buffer_bytes + int8.stored_layer_bytes + in.prefill_work.bytes,
                               4 * int8.ring_slot_bytes + in.decode_work.bytes));
  in.rows.v_type = DType::kBF16;  // one of the two is enough for a second buffer
  EXPECT_GT(make_plan(in).stored_layer_bytes, int8.stored_layer_bytes);
}

// A copy of all rows takes its bytes to the page, and there are no summaries.
TEST(Planner, ACopyOfAllRowsIsCounted) {
  for (const DType type : {DType::kInt8, DType::kInt4}) {
    PlanInput in = llama_8b(61440, 61696);
    in.mode = KvMode::kHost;
    const MemoryPlan plain = make_plan(in);
    in.partial.copy = type;
    const MemoryPlan plan = make_plan(in);
    EXPECT_EQ(plan.partial_bytes, 32u * segments_bytes(copy_rows(in.rows, type), 0, segments_for(61440)));
    EXPECT_EQ(plan.partial_bytes % kPageBytes, 0u);
    EXPECT_EQ(plan.index_bytes, 0u);
    EXPECT_EQ(plan.vram_bytes, plain.vram_bytes + plan.partial_bytes);
    EXPECT_NE(plan.to_string().find(str("partial KV: a copy of all rows in ", dtype_name(type))), std::string::npos);
    in.vram_free = plan.vram_bytes;
    EXPECT_FALSE(make_plan(in).late_partial);
    in.vram_free -= kPageBytes;
    EXPECT_TRUE(make_plan(in).late_partial);
  }
}

PlanInput with_remainders() {
  PlanInput in = llama_8b(61440, 61696);
  in.mode = KvMode::kHost;
  in.partial.copy = DType::kInt8;
  in.remainders = true;
  return in;
}

// What the copy lacks takes host memory that is free, to the page, and never what rows need.
TEST(Planner, RemaindersTakeHostMemoryThatIsFree) {
  PlanInput in = with_remainders();
  const MemoryPlan plan = make_plan(in);
  in.remainders = false;
  const MemoryPlan without = make_plan(in);
  in.remainders = true;
  EXPECT_EQ(without.remainder_segments, 0);
  EXPECT_EQ(plan.remainder_segments, segment_of(61440));
  EXPECT_EQ(plan.remainder_bytes, 32 * whole_pages(remainders_bytes(in.rows, 0, plan.remainder_segments)));
  const double share = static_cast<double>(plan.remainder_bytes) /
                       static_cast<double>(32 * segments_bytes(in.rows, 0, plan.remainder_segments));
  EXPECT_NEAR(share, (6 + 32.0 / 1024) / 16, 1e-5);
  EXPECT_EQ(plan.remainder_lengths_bytes, 2 * kPageBytes);
  EXPECT_EQ(plan.vram_bytes, without.vram_bytes + plan.ring_slot_bytes + plan.remainder_lengths_bytes);
  EXPECT_EQ(plan.host_total_bytes, without.host_total_bytes + plan.remainder_bytes + plan.remainder_lengths_bytes);
  EXPECT_NE(plan.to_string().find("what the int8 copy lacks of these rows"), std::string::npos) << plan.to_string();
  in.host_free = plan.host_total_bytes;
  in.vram_free = plan.vram_bytes;
  EXPECT_GT(make_plan(in).remainder_bytes, 0u);
  in.host_free -= kPageBytes;
  EXPECT_EQ(make_plan(in).to_string(), without.to_string());
  in.host_free += kPageBytes;
  in.vram_free -= kPageBytes;
  EXPECT_EQ(make_plan(in).to_string(), without.to_string());
}

TEST(Planner, RemaindersAreThoseOfRowsInHostMemory) {
  PlanInput in = with_remainders();
  in.mode = KvMode::kAuto;
  EXPECT_EQ(make_plan(in).remainder_bytes, 0u) << "all rows are resident";
  in.vram_free = 9 * kGiB;
  const MemoryPlan mixed = make_plan(in);
  EXPECT_GT(mixed.resident_segments, 0);
  EXPECT_EQ(mixed.remainder_layer_bytes,
            whole_pages(remainders_bytes(in.rows, mixed.resident_segments, segment_of(61440))));
  in.mode = KvMode::kHost;
  in.last_layer_resident = true;
  EXPECT_EQ(make_plan(in).remainder_bytes, 31 * make_plan(in).remainder_layer_bytes);
  in.host_free = 4 * kGiB;
  in.disk_free = 64 * kGiB;
  const MemoryPlan spilled = make_plan(in);
  EXPECT_GT(spilled.disk_bytes, 0u);
  EXPECT_EQ(spilled.remainder_bytes, 0u) << "rows come before remainders";
  for (const DType type : {DType::kF16, DType::kInt8}) {
    in = with_remainders();
    in.rows.v_type = type;
    EXPECT_EQ(make_plan(in).remainder_bytes, 0u) << dtype_name(type);
  }
  in = with_remainders();
  in.prompt_rows = 500;
  EXPECT_EQ(make_plan(in).remainder_bytes, 0u) << "the prompt fills no segment";
}

// Where layers read the rows of others, prefill keeps the last rows of both kinds.
TEST(Planner, RowsThatLaterLayersReadHaveABufferOfTheirOwn) {
  PlanInput in = llama_8b(61440, 61696);
  in.windows.rows = in.rows;
  in.windows.rows.layers = 8;
  in.windows.rows.kv_heads *= 2;
  const uint64_t rows = segments_bytes(in.rows, 0, segments_for(61440));
  EXPECT_EQ(make_plan(in).layer_buffer_bytes, 2 * rows);
  in.two_buffers = true;
  EXPECT_EQ(make_plan(in).layer_buffer_bytes, 3 * rows);
}

// A draft reads the last layer: it stays as a whole, the others' share is the mode's, and the sums add up.
TEST(Planner, TheLastLayerStaysWhereADraftReadsIt) {
  PlanInput in = llama_8b(61440, 61696);
  in.last_layer_resident = true;
  in.mode = KvMode::kHost;
  MemoryPlan plan = make_plan(in);
  const uint64_t layer = segments_bytes(in.rows, 0, plan.segments);
  EXPECT_EQ(plan.resident_segments, 0);
  EXPECT_EQ(plan.host_layers, 31);
  EXPECT_EQ(plan.resident_bytes, layer);
  EXPECT_EQ(plan.host_bytes, 31 * layer);
  EXPECT_EQ(plan.active_bytes, 31 * 2048 * 4 * kKiB);
  EXPECT_NE(plan.to_string().find("0 of 55 segments a layer, all of the last layer"), std::string::npos)
      << plan.to_string();

  in.mode = KvMode::kAuto;
  in.vram_free = 3 * kGiB;
  plan = make_plan(in);
  EXPECT_LE(plan.vram_bytes, in.vram_free);
  EXPECT_GT(plan.vram_bytes + 2048 * 31 * 4 * kKiB, in.vram_free);
  EXPECT_EQ(plan.host_layers, 31);
  EXPECT_EQ(plan.host_bytes, 31 * segments_bytes(in.rows, plan.resident_segments, plan.segments));
  EXPECT_EQ(plan.resident_bytes + plan.host_bytes, 32 * layer);

  in.mode = KvMode::kDevice;
  in.vram_free = 64 * kGiB;
  plan = make_plan(in);
  EXPECT_EQ(plan.host_layers, 0);
  EXPECT_EQ(plan.resident_bytes, 32 * layer);

  in.rows.layers = 1;  // nothing is left that could leave
  in.mode = KvMode::kHost;
  plan = make_plan(in);
  EXPECT_EQ(plan.resident_segments, plan.segments);
  EXPECT_EQ(plan.host_bytes + plan.active_bytes, 0u);
  EXPECT_EQ(plan.ring_slots, 0);
}

// Named parts of the work are lines of their own; the sums stay.
TEST(Planner, PartsOfTheWorkHaveLines) {
  PlanInput in = llama_8b(61440, 61696);
  const MemoryPlan without = make_plan(in);
  in.parts = {{"recurrent states", 20 * kMiB, WorkPart::Of::kRun},
              {"what passes keep", 30 * kMiB, WorkPart::Of::kDecode},
              {"snapshots", kMiB / 2, WorkPart::Of::kHost}};
  const MemoryPlan plan = make_plan(in);
  EXPECT_EQ(plan.vram_bytes, without.vram_bytes);
  EXPECT_EQ(plan.host_total_bytes, without.host_total_bytes);
  const auto line = [](const MemoryPlan& of, const std::string& what) {
    for (const PlanLine& each : of.lines) {
      if (each.what.starts_with(what)) return each.bytes;
    }
    ADD_FAILURE() << what;
    return uint64_t{0};
  };
  EXPECT_EQ(line(plan, "recurrent states"), 20 * kMiB);
  EXPECT_EQ(line(plan, "decode: what passes keep"), 30 * kMiB);
  EXPECT_EQ(line(plan, "prefill:") + 20 * kMiB, line(without, "prefill:"));
  EXPECT_EQ(line(plan, "decode: staging") + 50 * kMiB, line(without, "decode: staging"));
  EXPECT_EQ(line(plan, "step inputs") + line(plan, "snapshots"), line(without, "step inputs"));
}

TEST(Planner, PrefillAndDecodeShareTheirMemory) {
  PlanInput in = llama_8b(61440, 61696);
  in.mode = KvMode::kHost;
  const MemoryPlan plan = make_plan(in);
  const uint64_t lasting = plan.tail_bytes + plan.pass_bytes + plan.active_bytes;
  EXPECT_EQ(plan.vram_bytes, lasting + std::max(plan.layer_buffer_bytes + in.prefill_work.bytes,
                                                4 * plan.ring_slot_bytes + in.decode_work.bytes));
}

TEST(Planner, TiersThatShareAMemoryShareItsLimit) {
  PlanInput in = llama_8b(4096, 4352);
  in.vram_free = in.host_free = in.total_free = 2 * kGiB;
  const MemoryPlan plan = make_plan(in);
  EXPECT_LE(plan.vram_bytes + plan.host_total_bytes, 2 * kGiB);
  in.mode = KvMode::kHost;
  in.vram_free = in.host_free = in.total_free = 800 * kMiB;
  EXPECT_THROW(make_plan(in), Error);  // each would do alone, together they are too much
}

TEST(Planner, SlotsHoldAWholeSegmentAndNoMoreThanIsStreamed) {
  PlanInput in = llama_8b(1000, 1200);
  in.mode = KvMode::kHost;
  in.ring.slots = 2;
  in.ring.slot_bytes = 1;
  MemoryPlan plan = make_plan(in);
  EXPECT_EQ(plan.ring_slots, 2);
  EXPECT_EQ(plan.ring_slot_bytes, 512 * 4 * kKiB);
  in.ring.slot_bytes = kGiB;
  plan = make_plan(in);
  EXPECT_EQ(plan.ring_slot_bytes, 3 * 512 * 4 * kKiB);
}

void expect_refusal(const PlanInput& in, const char* flag, const char* hint) {
  try {
    make_plan(in);
    FAIL() << "it fits";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::kDoesNotFit);
    EXPECT_EQ(error.info().where, flag);
    EXPECT_NE(error.info().what.find("61696 tokens"), std::string::npos) << error.what();
    EXPECT_NE(error.info().hint.find(hint), std::string::npos) << error.what();
  }
}

TEST(Planner, RefusalsNameTheFlagAndWhatWouldFit) {
  PlanInput in = llama_8b(61440, 61696);
  in.mode = KvMode::kDevice;
  in.vram_free = 4 * kGiB;
  expect_refusal(in, "--vram", "--kv auto");
  in.mode = KvMode::kAuto;
  in.vram_free = 500 * kMiB;
  expect_refusal(in, "--vram", "would fit");
  in.vram_free = 100 * kMiB;  // less than the fixed part
  expect_refusal(in, "--vram", "No context fits");
  in.vram_free = 4 * kGiB;
  in.host_free = kGiB;
  expect_refusal(in, "--host-mem", "would fit");
}

// What the refusal offers is true: that context fits, one segment's rows more do not.
TEST(Planner, TheOfferedContextFits) {
  PlanInput in = llama_8b(61440, 61696);
  in.mode = KvMode::kDevice;
  in.vram_free = 4 * kGiB;
  std::string hint;
  try {
    make_plan(in);
  } catch (const Error& error) {
    hint = error.info().hint;
  }
  const int64_t offered = std::stoll(hint.substr(std::string("A context of ").size()));
  EXPECT_GT(offered, 20000);
  for (const int64_t more : {0, 1}) {
    PlanInput again = llama_8b(offered - 256 + more, offered + more);
    again.mode = KvMode::kDevice;
    again.vram_free = 4 * kGiB;
    if (more == 0) {
      EXPECT_NO_THROW(make_plan(again));
    } else {
      EXPECT_THROW(make_plan(again), Error);
    }
  }
}

// An int8 cache is offered where it is enough, and nowhere else.
TEST(Planner, Int8IsOfferedWhereItFits) {
  PlanInput in = llama_8b(61440, 61696);
  in.mode = KvMode::kDevice;
  for (const uint64_t vram : {2 * kGiB, 4 * kGiB, 6 * kGiB, 7 * kGiB}) {
    in.rows.k_type = in.rows.v_type = DType::kInt8;
    in.vram_free = vram;
    const bool fits = try_plan(in).has_value();
    in.rows.k_type = in.rows.v_type = DType::kBF16;
    try {
      make_plan(in);
      FAIL() << vram << " fits";
    } catch (const Error& error) {
      EXPECT_EQ(error.info().hint.find("-ctk int8 -ctv int8") != std::string::npos, fits) << error.what();
    }
    EXPECT_EQ(fits, vram > 4 * kGiB) << vram;
  }
}

// ---- the disk ----

// What host memory cannot hold lives on disk, no more of it than must, and the ring between is counted.
TEST(Planner, TheDiskHoldsWhatHostMemoryCannot) {
  PlanInput in = llama_8b(61440, 61696);
  in.mode = KvMode::kHost;
  const MemoryPlan whole = make_plan(in);
  in.disk_free = 100 * kGiB;
  EXPECT_EQ(make_plan(in).disk_bytes, 0u);  // there is room
  EXPECT_EQ(make_plan(in).disk_slots, 0);
  uint64_t last = 0;
  for (const uint64_t host : {7 * kGiB, 6 * kGiB, 4 * kGiB, 2 * kGiB, 300 * kMiB}) {
    in.host_free = host;
    const MemoryPlan plan = make_plan(in);
    EXPECT_LE(plan.host_total_bytes, host);
    EXPECT_GT(plan.host_total_bytes + 32 * 16 * kMiB, host);  // a unit less on disk does not fit
    EXPECT_EQ(plan.host_bytes + plan.disk_bytes, whole.host_bytes);
    EXPECT_EQ(plan.host_bytes, 32 * plan.placement.host_bytes());
    EXPECT_EQ(plan.disk_bytes, 32 * plan.placement.disk_bytes());
    EXPECT_GT(plan.disk_bytes, last);
    EXPECT_EQ(plan.disk_slots, 8);
    EXPECT_EQ(plan.disk_slot_bytes, 16 * kMiB);
    EXPECT_EQ(plan.vram_bytes, whole.vram_bytes);
    EXPECT_EQ(plan.kv_bytes(), whole.kv_bytes());
    last = plan.disk_bytes;
  }
  in.host_free = 100 * kMiB;  // less than the ring
  expect_refusal(in, "--host-mem", "raise --host-mem");
  in.disk_slots = 2;
  const MemoryPlan all = make_plan(in);
  EXPECT_EQ(all.host_bytes, 0u);
  EXPECT_EQ(all.disk_bytes, whole.host_bytes);
}

// --kv auto keeps on the device what fits there before anything goes to disk.
TEST(Planner, TheDiskComesLast) {
  PlanInput in = llama_8b(61440, 61696);
  in.vram_free = 5 * kGiB;
  const MemoryPlan without = make_plan(in);
  in.disk_free = 100 * kGiB;
  EXPECT_EQ(make_plan(in).resident_segments, without.resident_segments);
  EXPECT_EQ(make_plan(in).disk_bytes, 0u);
  in.host_free = kGiB;
  const MemoryPlan plan = make_plan(in);
  EXPECT_EQ(plan.resident_segments, without.resident_segments);
  EXPECT_GT(plan.disk_bytes, kGiB);
  EXPECT_LE(plan.host_total_bytes, kGiB);
  const std::string text = plan.to_string();
  EXPECT_NE(text.find("disk  "), std::string::npos) << text;
  EXPECT_NE(text.find("host  128.00 MiB  ring between disk and link"), std::string::npos) << text;
}

TEST(Planner, TheLastLayerIsNotOnDiskWhereADraftReadsIt) {
  PlanInput in = llama_8b(61440, 61696);
  in.mode = KvMode::kHost;
  in.last_layer_resident = true;
  in.host_free = 2 * kGiB;
  in.disk_free = 100 * kGiB;
  const MemoryPlan plan = make_plan(in);
  EXPECT_EQ(plan.disk_bytes, 31 * plan.placement.disk_bytes());
  EXPECT_EQ(plan.host_bytes, 31 * plan.placement.host_bytes());
}

// A refusal for want of host memory says what a disk would do, and one for want of disk says so.
TEST(Planner, RefusalsSpeakOfTheDisk) {
  PlanInput in = llama_8b(61440, 61696);
  in.mode = KvMode::kHost;
  in.host_free = 4 * kGiB;
  expect_refusal(in, "--host-mem", "of the KV cache to a disk (--spill DIR)");
  in.disk_free = kGiB;
  expect_refusal(in, "--spill", "A context of 36864 tokens would fit");
  in.mode = KvMode::kAuto;
  in.vram_free = 2 * kGiB;
  in.host_free = kGiB;
  expect_refusal(in, "--spill", "raise --spill to ");
  in.disk_free = 0;
  in.host_free = 64 * kMiB;  // less than the ring between disk and link
  try {
    make_plan(in);
    FAIL() << "it fits";
  } catch (const Error& error) {
    EXPECT_EQ(error.info().hint.find("--spill"), std::string::npos) << error.what();
  }
}

// What a refusal offers of the disk is what the plan then takes.
TEST(Planner, TheOfferedSpillFits) {
  PlanInput in = llama_8b(61440, 61696);
  in.mode = KvMode::kHost;
  in.host_free = 4 * kGiB;
  std::string hint;
  try {
    make_plan(in);
  } catch (const Error& error) {
    hint = error.info().hint;
  }
  in.disk_free = 64 * kGiB;
  EXPECT_NE(hint.find("spill " + format_bytes(make_plan(in).disk_bytes) + " of"), std::string::npos) << hint;
}

TEST(Planner, PrintsWhatLivesWhere) {
  PlanInput in = llama_8b(4096, 4352);
  in.mode = KvMode::kHost;
  const std::string text = make_plan(in).to_string();
  EXPECT_NE(text.find("host  576.00 MiB  KV cache, 9 of 9 segments a layer"), std::string::npos) << text;
  EXPECT_NE(text.find("vram  64.00 MiB  KV cache, tail"), std::string::npos) << text;
}

// ---- Weights --------------------------------------------------------------------------------------------------------

constexpr uint64_t kLayer = 416 * kMiB;

PlanInput with_weights(uint64_t vram, int64_t layers = 32) {
  PlanInput in = llama_8b(8192, 8448);
  in.weights.bytes.assign(static_cast<size_t>(layers), kLayer);
  in.vram_free = vram;
  return in;
}

TEST(PlannerOfWeights, LeavesThemWhereTheyFitOnceRowsHaveLeft) {
  PlanInput in = with_weights(64 * kGiB);
  EXPECT_EQ(make_plan(in).host_weights_layers, 0);
  EXPECT_EQ(make_plan(in).device_weights_bytes, 32 * kLayer);
  in.mode = KvMode::kHost;
  const MemoryPlan rows_left = make_plan(in);
  in.mode = KvMode::kAuto;
  in.vram_free = rows_left.vram_bytes + 32 * kLayer;
  const MemoryPlan least = make_plan(in);
  EXPECT_EQ(least.host_weights_layers, 0);
  EXPECT_EQ(least.resident_segments, 0);
  in.vram_free -= kPageBytes;
  const MemoryPlan left = make_plan(in);
  EXPECT_EQ(left.host_weights_layers, 3) << "a ring of two layers saves nothing for one or two";
  EXPECT_EQ(left.weights_slots, 2);
  EXPECT_EQ(left.weights_slot_bytes, kLayer);
  EXPECT_EQ(left.host_weights_bytes, 3 * kLayer);
  EXPECT_EQ(left.host_total_bytes - left.host_bytes - in.pinned_work_bytes, 3 * kLayer);
  EXPECT_GT(left.resident_segments, 0) << "rows have the rest of the layer's room";
}

// As many layers stay as fit, in every budget.
TEST(PlannerOfWeights, LetsNoMoreLeaveThanItMust) {
  int64_t before = 33;
  for (uint64_t vram = 2 * kGiB; vram <= 16 * kGiB; vram += 700 * kMiB) {
    PlanInput in = with_weights(vram);
    const MemoryPlan plan = make_plan(in);
    EXPECT_LE(plan.vram_bytes + plan.device_weights_bytes, vram);
    EXPECT_LE(plan.host_weights_layers, before);
    before = plan.host_weights_layers;
    if (before == 0) continue;
    in.mode = KvMode::kHost;  // nothing has room for another layer
    EXPECT_GT(make_plan(in).vram_bytes + plan.device_weights_bytes + kLayer, vram) << before;
    EXPECT_NE(plan.to_string().find("weights of "), std::string::npos) << plan.to_string();
  }
  EXPECT_EQ(before, 0);
}

TEST(PlannerOfWeights, KeepsThoseInHostMemoryThatAreThere) {
  PlanInput in = with_weights(64 * kGiB);
  in.weights.least_in_host = 5;
  EXPECT_EQ(make_plan(in).host_weights_layers, 5);
  in.vram_free = 8 * kGiB;
  EXPECT_GT(make_plan(in).host_weights_layers, 5);
  in.weights.all_in_host = true;
  EXPECT_EQ(make_plan(in).host_weights_layers, 32);
  EXPECT_EQ(make_plan(in).device_weights_bytes, 0u);
}

// What is offered fits, and a page less does not.
TEST(PlannerOfWeights, SaysWhatWouldFit) {
  for (const bool all : {false, true}) {
    PlanInput in = with_weights(500 * kMiB);
    in.weights.all_in_host = all;
    const MinimumBudgets minimum = minimum_budgets(in);
    ASSERT_GT(minimum.vram_bytes, 2 * kLayer);
    EXPECT_LT(minimum.vram_bytes, 4 * kLayer);
    in.vram_free = minimum.vram_bytes;
    EXPECT_EQ(make_plan(in).host_weights_layers, 32);
    in.vram_free -= kPageBytes;
    EXPECT_FALSE(try_plan(in));
    in = with_weights(8 * kGiB);
    in.weights.all_in_host = all;
    in.host_free = kGiB;
    const uint64_t host = minimum_budgets(in).host_bytes;
    ASSERT_GT(host, kGiB);
    in.host_free = host;
    EXPECT_TRUE(try_plan(in));
    in.host_free -= kPageBytes;
    EXPECT_FALSE(try_plan(in));
    try {
      make_plan(in);
    } catch (const Error& error) {
      EXPECT_NE(error.info().what.find("for the layers' weights and a context of 8448 tokens"), std::string::npos)
          << error.what();
    }
  }
}

// Where K is made of V, half of the bytes leave the device, and on it nothing is saved: attention reads both there.
TEST(Planner, ValuesAloneHalveWhatLeavesTheDevice) {
  PlanInput both = llama_8b(61440, 61696);
  both.remainders = true;
  for (const KvMode mode : {KvMode::kHost, KvMode::kDevice}) {
    both.mode = mode;
    both.vram_free = both.host_free = 64 * kGiB;
    both.partial = {.copy = DType::kInt8};
    PlanInput alone = both;
    alone.rows.values_alone = true;
    const MemoryPlan all = make_plan(both), half = make_plan(alone);
    EXPECT_EQ(half.layer_buffer_bytes, all.layer_buffer_bytes);
    EXPECT_EQ(half.partial_bytes, all.partial_bytes);
    EXPECT_EQ(half.tail_bytes, all.tail_bytes);
    EXPECT_EQ(half.resident_key_bytes, half.resident_bytes);
    EXPECT_EQ(half.active_key_bytes, half.active_bytes);
    EXPECT_EQ(half.resident_bytes + half.resident_key_bytes, all.resident_bytes);
    EXPECT_EQ(half.active_bytes + half.active_key_bytes, all.active_bytes);
    EXPECT_EQ(2 * half.host_bytes, all.host_bytes);
    EXPECT_EQ(half.ring_key_bytes, half.ring_slot_bytes);
    EXPECT_EQ(half.remainder_segments, 0);
    EXPECT_EQ(all.resident_key_bytes + all.active_key_bytes + all.ring_key_bytes, 0u);
    EXPECT_EQ(half.host_bytes > 0, mode == KvMode::kHost);
    if (mode == KvMode::kDevice) {
      EXPECT_EQ(half.vram_bytes, all.vram_bytes);
    }
  }
}

// Prefill has the last rows of a layer with a window, however long the prompt is.
TEST(Planner, LayersWithAWindowAreBuiltInARing) {
  PlanInput in = llama_8b(61440, 61696);
  const uint64_t all = make_plan(in).layer_buffer_bytes;  // 4 KiB a row
  in.windows = {.rows = {.layers = 160, .kv_heads = 64, .head_dim = 128}, .window = 1024, .slots = 3};
  EXPECT_EQ(make_plan(in).layer_buffer_bytes, 8 * all);  // 32 KiB a row
  in.windows.built_rows = 4096;
  EXPECT_EQ(make_plan(in).layer_buffer_bytes, all);
  in.prompt_rows = 4000;
  EXPECT_EQ(make_plan(in).layer_buffer_bytes, 128 * kMiB);
  in.prompt_rows = 1000;
  EXPECT_EQ(make_plan(in).layer_buffer_bytes, 32 * kMiB);
}

}  // namespace
}  // namespace headrace
