#include <gtest/gtest.h>

#include <sstream>
#include <string>

#include "cli/print/tables.h"

namespace headrace {
namespace {

BenchReport some_report() {
  BenchReport report;
  report.machine = {.cpu = "Some CPU", .cores = 2, .memory_bytes = 4 * kGiB};
  report.device = "A GPU";
  report.model = "llama-3.1-8b with random weights";
  report.link = {{.use = LinkUse::kToDevice, .gb_per_s = 50},
                 {.use = LinkUse::kToHost, .gb_per_s = 40.04},
                 {.use = LinkUse::kBoth, .gb_per_s = 1234}};
  return report;
}

BenchRow some_row() {
  BenchRow row{.prompt_tokens = 61440, .kv = KvMode::kHost};
  row.prefill_ms = {4000};
  row.step_ms = {100, 100};
  row.h2d_bytes_per_step = 4.8e9;
  row.plan.ring_slots = 4;
  row.memory.vram_peak_bytes = 3 * kGiB;
  return row;
}

TEST(BenchTable, NamesTheMachineAndItsLink) {
  const std::string text = bench_heading(some_report());
  EXPECT_TRUE(text.starts_with("llama-3.1-8b with random weights, bf16, on A GPU\nSome CPU, 2 cores, 4.00 GiB; link"))
      << text;
  EXPECT_NE(text.find("50.00 GB/s to the device, 40.04 to the host, 1,234 both at once\n"), std::string::npos) << text;
  BenchReport report = some_report();
  EXPECT_EQ(text.find("weights: "), std::string::npos) << text;
  report.weight_types = {{.stored = "Q4_K", .loaded = "Q4_K", .tensors = 3, .bytes = 4 * kGiB},
                         {.stored = "Q6_K", .loaded = "BF16", .tensors = 1, .bytes = kGiB},
                         {.stored = "F32", .loaded = "BF16", .tensors = 9, .bytes = kMiB}};
  EXPECT_NE(bench_heading(report).find("\nweights: Q4_K 4.00 GiB, Q6_K as BF16 1.00 GiB\n"), std::string::npos)
      << bench_heading(report);
  report.prefill_type = "int8";
  EXPECT_NE(bench_heading(report).find("\nprompts are read in int8\n"), std::string::npos) << bench_heading(report);
  report.link.clear();
  EXPECT_NE(bench_heading(report).find("no room to measure the link\n"), std::string::npos);
}

TEST(BenchTable, ALineStandsUnderItsHeading) {
  const std::string heading = bench_heading(some_report()), line = bench_line(some_report(), some_row());
  const std::string names = heading.substr(heading.rfind('\n', heading.size() - 2) + 1);
  EXPECT_EQ(names.size(), line.size()) << names << line;
  std::istringstream in(line);
  std::vector<std::string> words;
  for (std::string word; in >> word;) words.push_back(word);
  EXPECT_EQ(words, (std::vector<std::string>{"61,440", "host", "4,000", "15,360", "100.0", "100.0", "100.0", "10.00",
                                             "4.47", "GiB", "48.00", "96.0%", "3.00", "GiB", "0", "B"}));
}

TEST(BenchTable, NothingIsSaidOfALinkThatIsNotUsed) {
  BenchRow row = some_row();
  row.plan.ring_slots = 0;
  row.h2d_bytes_per_step = 1500;
  EXPECT_NE(bench_line(some_report(), row).find(" -       - "), std::string::npos) << bench_line(some_report(), row);
}

TEST(BenchTable, ARowMayNotFit) {
  BenchRow row{.prompt_tokens = 61440, .kv = KvMode::kDevice, .error = "--vram: needs 8 GiB\n  raise it"};
  const std::string line = bench_line(some_report(), row);
  EXPECT_TRUE(line.ends_with("  61,440 device  does not fit: --vram: needs 8 GiB\n")) << line;
}

TEST(BenchTable, WhatIsOnDiskHasALineOfItsOwn) {
  BenchRow row{.prompt_tokens = 61440, .kv = KvMode::kHost, .step_ms = {1000}, .disk_bytes_per_step = 2e9};
  EXPECT_EQ(bench_line(some_report(), row).find("disk"), std::string::npos);
  row.spill = {.file = {.file_bytes = 2 * kGiB, .how = "io_uring, O_DIRECT"}, .folder = "/mnt"};
  row.plan.disk_bytes = 2 * kGiB;
  const std::string line = bench_line(some_report(), row);
  EXPECT_TRUE(line.ends_with("\n         on disk 2.00 GiB (io_uring, O_DIRECT): 1.86 GiB a step, 2.000 GB/s\n"))
      << line;
}

TEST(BenchTable, AShapeIsALine) {
  EXPECT_EQ(shape_line(find_shape("llama-3.1-8b")),
            "llama-3.1-8b     8.030 B  32 layers of 4096, 32 heads and 8 KV heads of 128, FFN 14336, vocabulary "
            "128,256; KV cache 128.00 KiB a token in bf16\n");
}

}  // namespace
}  // namespace headrace
