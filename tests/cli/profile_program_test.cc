// headrace profile as a user meets it, quick and on the CPU: what goes where, what is kept and used, what is left.
#include <gtest/gtest.h>

#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "offload/device/device.h"
#include "tests/cli/process.h"
#include "tests/cli/tiny_model.h"
#include "tests/support/temporary_folder.h"

namespace headrace {
namespace {

using nlohmann::json;

class ProfileProgram : public ::testing::Test {
 protected:
  Finished run(const std::vector<std::string>& args) {
    return run_program(args, {.input = "", .environment = {{"HOME", home_.path()}}, .stdout_path = ""});
  }
  // Small: what is tested is not the machine.
  Finished profile(std::vector<std::string> more) {
    std::vector<std::string> args = {"profile", "--quick", "--device", "cpu", "--host-mem", "256MiB", "-t", "1"};
    args.insert(args.end(), more.begin(), more.end());
    return run(args);
  }
  // What the machine would have been measured as if nothing else had run on it: tests share it with others.
  json kept_as_if_idle() {
    json report = json::parse(profile({"--json"}).out);
    for (auto& [rate, share] : report["spread"].items()) share = 0.01;
    home_.write(".cache/headrace/profile.json", report.dump());
    return report;
  }
  Finished plan_tiny() {
    if (!std::filesystem::exists(home_ / "model")) write_tiny_model(home_ / "model");
    return run({"plan", "-c", "200", "-n", "20", "-m", home_ / "model", "--device", "cpu", "-t", "1"});
  }
  TemporaryFolder home_;
};

TEST_F(ProfileProgram, MeasuresPrintsAndKeepsWhatIsSteady) {
  const Finished first = profile({"--html", home_ / "p.html", "-o", home_ / "p.csv", "--disk", home_ / "gone"});
  ASSERT_EQ(first.exit_code, 0) << first.err;
  for (const char* part : {"copies in memory, by their size\n  in  ", "\n  out  ", "both at once", "weights", "FLOP/s",
                           "\nmemory, all threads\n", "measured in "}) {
    EXPECT_NE(first.out.find(part), std::string::npos) << part << first.out;
  }
  // A CPU has one memory, which is no device's.
  for (const char* part : {"pinned", "pageable", "scattered", "latency", "device", "host", " 0.00 "}) {
    EXPECT_EQ(first.out.find(part), std::string::npos) << part << first.out;
  }
  // A disk that cannot be measured is a line, and the rest is measured.
  EXPECT_NE(first.out.find("note: disk: " + home_ / "gone: a file cannot be created in it: No such file or directory"),
            std::string::npos)
      << first.out;
  const bool busy = first.out.find("the machine is busy. Measure again while it is idle\n") != std::string::npos;
  const std::string kept_in = "kept in " + home_ / ".cache/headrace/profile.json";
  EXPECT_EQ(first.err.find(kept_in) == std::string::npos, busy) << first.err;
  EXPECT_EQ(first.err.find("note: the result is not kept: the machine was busy") != std::string::npos, busy)
      << first.err;
  EXPECT_EQ(std::filesystem::exists(home_ / ".cache/headrace/profile.json"), !busy);
  EXPECT_TRUE(home_.read("p.csv").starts_with("group,test,bytes,"));
  EXPECT_TRUE(home_.read("p.html").starts_with("<!DOCTYPE html>"));
  if (!busy) {
    EXPECT_EQ(json::parse(home_.read(".cache/headrace/profile.json"))["profiles"].size(), 1u);
  }
  const json again = json::parse(profile({"--json"}).out);
  EXPECT_GT(again["rates"]["weights_gb_per_s"], 0);
  for (const auto& [rate, value] : again["rates"].items()) {
    if (rate == "gpu" || rate.starts_with("disk_")) continue;
    EXPECT_GT(again["spread"].value(rate, -1.0), 0) << rate;  // no two rounds take the same time
  }
  EXPECT_NE(first.out.find("\nthe rounds differ by at most "), std::string::npos) << first.out;
}

// A plan and a run's report have times then.
TEST_F(ProfileProgram, WhatIsKeptIsUsed) {
  kept_as_if_idle();
  const Finished planned = plan_tiny();
  std::vector<std::string> answer = {"generate",      "-p",       "Hello", "-n", "4", "-m",
                                     home_ / "model", "--device", "cpu",   "-t", "1"};
  EXPECT_NE(planned.out.find("by what headrace profile measured on 20"), std::string::npos)
      << planned.out << planned.err;
  const Finished answered = run(answer);
  EXPECT_NE(answered.err.find("  predicted prefill "), std::string::npos) << answered.err;
  answer.push_back("--json");
  EXPECT_GT(json::parse(run(answer).out)["predicted"]["prefill_ms"]["predicted"], 0);
  // A file that is torn is a line, and no harm.
  home_.write(".cache/headrace/profile.json", "{\"program\":");
  const Finished torn = run(answer);
  EXPECT_EQ(torn.exit_code, 0);
  EXPECT_NE(torn.err.find("profile.json: is not valid JSON"), std::string::npos) << torn.err;
  EXPECT_FALSE(json::parse(torn.out).contains("predicted"));
}

// An older program kept what it measured while other work ran.
TEST_F(ProfileProgram, WhatABusyMachineKeptIsNotUsed) {
  json report = kept_as_if_idle();
  report["spread"]["weights_gb_per_s"] = 0.3;
  home_.write(".cache/headrace/profile.json", report.dump());
  const std::string note = "note: the kept profile is not used: the machine was busy when it was measured.";
  const Finished planned = plan_tiny();
  EXPECT_NE(planned.out.find("  fits; no times: "), std::string::npos) << planned.out;
  EXPECT_NE((planned.out + planned.err).find(note), std::string::npos) << planned.out << planned.err;
  const Finished answered =
      run({"generate", "-p", "Hello", "-n", "4", "-m", home_ / "model", "--device", "cpu", "-t", "1"});
  EXPECT_EQ(answered.exit_code, 0) << answered.err;
  EXPECT_EQ(answered.err.find("  predicted "), std::string::npos) << answered.err;
  EXPECT_NE(answered.err.find(note), std::string::npos) << answered.err;
}

// A profile that makes the machine slower than it is: each document contradicts it, and one line says so.
TEST_F(ProfileProgram, AContradictionIsSaidOnce) {
  const auto device = open_device({.choice = DeviceChoice::kCpu, .threads = 1});
  json rates = {{"gpu", false}};
  for (const char* rate : {"to_device_gb_per_s", "to_host_gb_per_s", "weights_gb_per_s", "kv_gb_per_s",
                           "product_tflop_per_s", "attention_tflop_per_s", "queries_tflop_per_s"}) {
    rates[rate] = 1e-6;
  }
  const json profile = {{"program", "headrace profile"},      {"version", 1},
                        {"device", device->name()},           {"driver", device->driver()},
                        {"measured", "2026-11-21T20:15:00Z"}, {"rates", rates}};
  home_.write(".cache/headrace/profile.json", profile.dump());
  write_tiny_model(home_ / "model");
  std::vector<std::string> args = {"summarize", "-m", home_ / "model", "--device", "cpu", "-t", "1", "-n", "4"};
  for (const char* name : {"a.txt", "b.txt", "c.txt"}) {
    home_.write(name, std::string("The text of ") + name);
    args.push_back(home_ / name);
  }
  const auto notes_in = [](const std::string& text) {
    int count = 0;
    for (size_t at = 0; (at = text.find("the profile of 2026-11-21T20:15:00Z predicts ", at)) != text.npos; ++at)
      ++count;
    return count;
  };
  for (const bool batch : {false, true}) {
    if (batch) args.insert(args.end(), {"-o", home_ / "out.jsonl"});
    const Finished finished = run(args);
    EXPECT_EQ(finished.exit_code, 0) << finished.err;
    EXPECT_EQ(notes_in(finished.err), 1) << finished.err;
    EXPECT_NE(finished.err.find("measure again while it is idle: headrace profile\n"), std::string::npos);
  }
  const std::vector<std::string> one = {"generate", "-m", home_ / "model", "--device", "cpu", "-t", "1", "-n",
                                        "4",        "-p"};
  std::vector<std::string> loud = one, quiet = one;
  loud.push_back("Hello");
  quiet.insert(quiet.end(), {"Hello", "-q"});
  EXPECT_EQ(notes_in(run(loud).err), 1);
  EXPECT_EQ(notes_in(run(quiet).err), 0);
}

TEST_F(ProfileProgram, MeasuresADiskAndLeavesNothing) {
  std::filesystem::create_directory(home_ / "disk");
  const Finished finished = profile({"-o", "json", "--disk", home_ / "disk:24MiB", "--disk-seconds", "0.05"});
  ASSERT_EQ(finished.exit_code, 0) << finished.err;
  const json report = json::parse(finished.out);
  EXPECT_GT(report["rates"]["disk_read_gb_per_s"], 0);
  EXPECT_EQ(report["disk"]["file_bytes"], 24 * 1024 * 1024);
  EXPECT_EQ(report["disk"]["seconds_a_test"], 0.05);
  bool named = false;
  for (const json& row : report["rows"]) {
    named = named || row.value("same_as", "") ==
                         "fio --rw=randread --bs=4k --iodepth=32 --direct=1 --ioengine=io_uring --fixedbufs "
                         "--registerfiles";
  }
  EXPECT_TRUE(named);
  EXPECT_TRUE(std::filesystem::is_empty(home_ / "disk"));
}

TEST_F(ProfileProgram, RefusesWhatMeansNothing) {
  struct Case {
    std::vector<std::string> args;
    int code;
    const char* part;
  };
  for (const Case& c : {Case{{"-o", home_ / "p.txt"}, 2, "nor a file name that ends in .json, .csv or .md"},
                        Case{{"--disk", ":1GiB"}, 2, "names no folder"},
                        Case{{"--disk-seconds", "0"}, 2, "'0' is not a number from 0.01 to 60"},
                        Case{{"-o", "xml"}, 2, "'xml' is neither json, csv or md"},
                        Case{{"-o", "csv", "--json"}, 2, "exclude each other"},
                        Case{{"-o", "md", "--format", "csv"}, 2, "exclude each other"},
                        Case{{"--format", "xml"}, 2, "'xml' is not one of table, json, csv, md"},
                        Case{{"--json", "--format", "csv"}, 2, "exclude each other"},
                        Case{{"-o", "csv", "-o", home_ / "p.json"}, 2, "-o is given more than once"},
                        Case{{"-o", home_ / "p.json", "-o", home_ / "q.csv"}, 2, "-o is given more than once"},
                        Case{{"--html", home_ / "gone/p.html"}, 5, "gone/p.html"}}) {
    const Finished finished = profile(c.args);
    EXPECT_EQ(finished.exit_code, c.code) << json(c.args).dump() << finished.err;
    EXPECT_NE(finished.err.find(c.part), std::string::npos) << finished.err;
    EXPECT_EQ(finished.out, "");
  }
  EXPECT_FALSE(std::filesystem::exists(home_ / "p.json"));
}

// Where there is no home nothing is kept, which is said; a disk's file that was asked to be too small is what is said.
TEST_F(ProfileProgram, WhatIsNotDoneIsSaid) {
  const Finished homeless = run_program(
      {"profile", "--quick", "--device", "cpu", "--host-mem", "256MiB", "-t", "1", "--disk", home_.path() + ":1KiB"},
      {.input = "", .environment = {{"HOME", ""}}, .stdout_path = ""});
  EXPECT_EQ(homeless.exit_code, 0) << homeless.err;
  EXPECT_NE(homeless.err.find("note: the result is not kept: neither XDG_CACHE_HOME nor HOME is set"),
            std::string::npos)
      << homeless.err;
  EXPECT_NE(homeless.out.find(home_.path() + ": a file of 1.00 KiB is too small: a test takes 16.00 MiB"),
            std::string::npos)
      << homeless.out;
  EXPECT_TRUE(homeless.out.starts_with("CPU, 1 thread\n")) << homeless.out;  // it has no driver
}

TEST_F(ProfileProgram, CtrlCKeepsNothingAndSaysSo) {
  SKIP_WITHOUT_A_TERMINAL();
  Program program({"profile", "--device", "cpu", "--host-mem", "256MiB", "-t", "1", "--disk", home_.path()},
                  Program::Streams::kTerminal);
  ASSERT_TRUE(program.read_until("measuring"));
  program.type("\x03");
  const Finished finished = program.wait();
  EXPECT_EQ(finished.exit_code, 130) << finished.out;
  EXPECT_NE(finished.out.find("interrupted: the figures are incomplete"), std::string::npos) << finished.out;
  EXPECT_EQ(finished.out.find("kept in"), std::string::npos) << finished.out;
}

}  // namespace
}  // namespace headrace
