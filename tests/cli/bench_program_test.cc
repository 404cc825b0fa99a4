// `headrace bench` as a user meets it.
#include <gtest/gtest.h>

#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "tests/cli/program_fixture.h"
#include "tests/support/trace_reader.h"

namespace headrace {
namespace {

using nlohmann::json;

TEST_F(ProgramTest, BenchMeasuresAModel) {
  const std::string out = *folder_ / "bench.json";
  const std::vector<std::string> args = {"bench",     "-m",         model_,   "-n", "3",      "-t",
                                         "1",         "--device",   "cpu",    "-p", "20,600", "--kv",
                                         "auto,host", "--host-mem", "128MiB", "-o", out};
  const Finished table = run_program(args);
  EXPECT_EQ(table.exit_code, 0) << table.err;
  for (const char* part : {"GB/s to the device", "prefill ms", "     20   auto ", "    600   host "}) {
    EXPECT_NE(table.out.find(part), std::string::npos) << part << "\n" << table.out;
  }
  const json written = json::parse(folder_->read("bench.json"));
  EXPECT_EQ(written["model"], model_);
  ASSERT_EQ(written["rows"].size(), 4u);
  EXPECT_EQ(written["rows"][3]["decode"]["steps"], 3);
  EXPECT_GT(written["rows"][3]["decode"]["link_share_of_peak"], 0);
  EXPECT_GT(written["rows"][3]["prefill"]["tokens_per_s"], 0);
  EXPECT_FALSE(written["machine"]["cpu"].get<std::string>().empty());
  std::vector<std::string> quiet = args;
  quiet.insert(quiet.end(), {"--json", "-q"});
  const Finished object = run_program(quiet);
  EXPECT_EQ(object.exit_code, 0);
  EXPECT_EQ(object.err, "");
  EXPECT_EQ(object.out, folder_->read("bench.json"));
}

TEST_F(ProgramTest, ABenchTracesItsRowsAndNotItsWarmUp) {
  const Finished finished =
      run_program({"bench", "-m", model_, "-n", "3", "-t", "1", "--device", "cpu", "-p", "20", "--kv", "auto,host",
                   "--host-mem", "128MiB", "--trace", *folder_ / "bench_trace.json"});
  EXPECT_EQ(finished.exit_code, 0) << finished.err;
  EXPECT_NE(finished.err.find("bench_trace.json: 6 of 6 decode steps"), std::string::npos) << finished.err;
  const testing::ReadTrace read = testing::read_trace(folder_->read("bench_trace.json"));
  EXPECT_EQ(read.count("step"), 6);
  EXPECT_EQ(read.one("20 tokens, --kv host").track, "run");
}

TEST_F(ProgramTest, BenchOfAShapeNeedsNoFile) {
  EXPECT_NE(run_program({"bench", "--list-shapes"}).out.find("\nllama-3.1-8b "), std::string::npos);
  const Finished table =
      run_program({"bench", "--shape", "smollm2-135m", "-p", "16", "-n", "2", "--device", "cpu", "-t", "2"});
  EXPECT_EQ(table.exit_code, 0) << table.err;
  EXPECT_TRUE(table.out.starts_with("smollm2-135m with random weights, bf16, on CPU")) << table.out;
  const Finished unknown = run_program({"bench", "--shape", "llama-9"});
  EXPECT_EQ(unknown.exit_code, 2);
  EXPECT_NE(unknown.err.find("llama-3.1-8b"), std::string::npos) << unknown.err;
  const Finished full = run_program({"bench", "--shape", "smollm2-135m", "--device", "cpu", "--host-mem", "64MiB"});
  EXPECT_EQ(full.exit_code, 4);
  EXPECT_NE(full.err.find("weights"), std::string::npos) << full.err;
  const Finished gone = run_program({"bench", "-m", model_, "-o", folder_->path() + "/gone/x.json"});
  EXPECT_EQ(gone.exit_code, 5);
  EXPECT_NE(gone.err.find("/gone/x.json: cannot be written"), std::string::npos) << gone.err;
}

TEST_F(ProgramTest, ABenchThatFailsLeavesOldResultsAndNoNewFile) {
  const std::string yesterday = "{\n \"program\": \"headrace bench\",\n \"rows\": \"of yesterday\"}\n";
  const std::string old = folder_->write("old.json", yesterday);
  const std::string fresh = *folder_ / "fresh.json";
  for (const std::string& out : {old, fresh}) {
    EXPECT_EQ(run_program({"bench", "-m", folder_->path() + "/no-model", "-o", out}).exit_code, 3) << out;
  }
  EXPECT_EQ(folder_->read("old.json"), yesterday);
  EXPECT_FALSE(std::filesystem::exists(fresh));
  const std::vector<std::string> right = {"bench", "-m", model_, "-n", "1", "-t", "1", "--device", "cpu", "-p", "8"};
  folder_->write("old.json", yesterday + std::string(1 << 20, ' '));  // longer than what comes
  std::vector<std::string> args = right;
  args.insert(args.end(), {"--kv", "auto", "-o", old});
  EXPECT_EQ(run_program(args).exit_code, 0);
  EXPECT_EQ(json::parse(folder_->read("old.json"))["rows"].size(), 1u);
  std::vector<std::string> to_stdout = right;
  to_stdout.insert(to_stdout.end(), {"--kv", "auto", "-o", "-"});
  EXPECT_EQ(json::parse(run_program(to_stdout).out)["rows"].size(), 1u);
}

// Before any work: these models are not there.
TEST_F(ProgramTest, AMeasurementReplacesNoFileOfSomebodyElse) {
  const std::string notes = "my notes", profile = "{\n \"program\": \"headrace profile\",\n \"version\": 1}\n";
  for (const std::string& text : {notes, profile, std::string("{")}) {
    const std::string file = folder_->write("precious.json", text);
    for (const std::vector<std::string>& command :
         {std::vector<std::string>{"bench", "-m", "gone", "-o", file},
          {"bench", "quality", "-m", "gone", "--documents", "gone", "-o", file},
          {"profile", "--quick", "--device", "cpu", "--html", file},
          {"profile", "--quick", "--device", "cpu", "-o", text == profile ? folder_->write("p.md", text) : file}}) {
      const Finished finished = run_program(command);
      EXPECT_EQ(finished.exit_code, 2) << json(command).dump();
      EXPECT_NE(finished.err.find(command.back() + ": holds something other than an earlier result"), std::string::npos)
          << finished.err;
      EXPECT_EQ(folder_->read("precious.json"), text);
    }
  }
}

TEST_F(ProgramTest, BenchOfWhatDoesNotFitSaysSoInItsRow) {
  const Finished table = run_program({"bench", "-m", model_, "-p", "20,400000", "-n", "2", "--kv", "device", "--device",
                                      "cpu", "--host-mem", "128MiB"});
  EXPECT_EQ(table.exit_code, 4);
  EXPECT_NE(table.out.find("400,000 device  does not fit: "), std::string::npos) << table.out;
}

}  // namespace
}  // namespace headrace
