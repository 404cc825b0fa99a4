// The program where the system gives little: address space, stack, descriptors. It never ends by a signal, and says on
// stderr what there was too little of.
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <filesystem>
#include <limits>
#include <string>
#include <vector>

#include "cache/base.h"
#include "tests/cli/program_fixture.h"
#include "tests/support/sanitized.h"
#include "tests/support/weights_file.h"

namespace headrace {
namespace {

using testing::kSanitized;

RunOptions limited(int resource, uint64_t value) {
  RunOptions options;
  options.limits = {{resource, value}};
  return options;
}

// The least address space in MiB in which the program reaches main().
// It grows with the program, thus with the number of GPU architectures that it is compiled for.
uint64_t least_to_start() {
  uint64_t mib = 40;
  for (; mib < 400; mib += 4) {
    const Finished finished = run_program({"--version"}, limited(RLIMIT_AS, mib * kMiB));
    if (finished.signal == 0 && finished.exit_code == 0) break;
  }
  return mib;
}

// mimalloc is what the program allocates with: it speaks at the end if it is asked to.
TEST_F(ProgramTest, AllocatesWithMimalloc) {
  if (kSanitized) GTEST_SKIP() << "sanitizers bring their own allocator";
  RunOptions options;
  options.environment = {{"MIMALLOC_SHOW_STATS", "1"}};
  const Finished finished = run_program({"--version"}, options);
  EXPECT_EQ(finished.exit_code, 0);
  EXPECT_NE(finished.err.find("heap stats"), std::string::npos) << finished.err;
}

// CUDA's initialiser does not look at what it allocates: a program with it ended by a signal.
TEST_F(ProgramTest, HardlyAnyAddressSpaceIsNoSignal) {
  if (kSanitized) GTEST_SKIP() << "sanitizers reserve terabytes";
  // With less than its image needs, the kernel ends a program before it begins.
  const uint64_t image = std::filesystem::file_size(HEADRACE_PROGRAM) / kMiB;
  for (uint64_t mib = image + 4; mib <= image + 100; mib += 2) {
    const Finished finished = run_program({"--version"}, limited(RLIMIT_AS, mib * kMiB));
    EXPECT_EQ(finished.signal, 0) << mib << " MiB: " << finished.err;
    if (finished.exit_code == 0 || finished.exit_code == 127) continue;  // 127: the loader's own message
    EXPECT_EQ(finished.exit_code, 4) << mib;
    EXPECT_NE(finished.err.find("out of memory"), std::string::npos) << mib << " MiB: " << finished.err;
  }
}

TEST_F(ProgramTest, OutOfMemoryIsExitFour) {
  if (kSanitized) GTEST_SKIP() << "sanitizers reserve terabytes";
  const std::string prompt(3000, 'x');
  const uint64_t least = least_to_start();
  int done = 0, refused = 0;
  for (uint64_t mib = least; mib <= least + 344; mib += mib < least + 64 ? 4 : 40) {
    const Finished finished = run("generate",
                                  {"-p", prompt, "--no-chat-template", "--prefix-cache", *folder_ / "pc", "--verify",
                                   "lossless", "--partial-budget", "64"},
                                  limited(RLIMIT_AS, mib * kMiB));
    EXPECT_EQ(finished.signal, 0) << mib << " MiB: " << finished.err;
    EXPECT_FALSE(finished.err.empty()) << mib;
    if (finished.exit_code == 127) continue;  // the loader has found no room for the libraries
    EXPECT_TRUE(finished.exit_code == 0 || finished.exit_code == 4) << mib << " MiB: " << finished.exit_code << "\n"
                                                                    << finished.err;
    ++(finished.exit_code == 0 ? done : refused);
  }
  EXPECT_GT(done, 0);
  EXPECT_GT(refused, 0);
}

// A document that memory runs out for is one that fails: a line with its error, and the next one is summarized. (Where
// it runs out between the two is chance; tests/runtime/jobs has it for certain.)
TEST_F(ProgramTest, OutOfMemoryInABatchIsTheDocumentsError) {
  if (kSanitized) GTEST_SKIP() << "sanitizers reserve terabytes";
  const std::string large = folder_->write("large.txt", std::string(8000, 'x')),
                    small = folder_->write("small.txt", "Hello");
  const uint64_t least = least_to_start();
  for (uint64_t mib = least; mib <= least + 84; mib += 6) {
    const std::string name = str("batch", mib, ".jsonl");
    const Finished finished =
        run("summarize", {large, small, "--no-chat-template", "-o", *folder_ / name}, limited(RLIMIT_AS, mib * kMiB));
    EXPECT_EQ(finished.signal, 0) << mib << " MiB: " << finished.err;
    if (finished.exit_code == 127) continue;
    EXPECT_TRUE(finished.exit_code == 0 || finished.exit_code == 4) << mib << " MiB: " << finished.err;
    const std::vector<nlohmann::json> lines = json_lines(folder_->read(name));
    for (const nlohmann::json& line : lines) {
      EXPECT_TRUE(!line.contains("error") || line["exit_code"] == 4) << line;
    }
    EXPECT_TRUE(finished.exit_code != 0 || lines.size() == 2) << finished.err;
  }
}

// Threads have stacks of their own size, and the first one's frames are small.
TEST_F(ProgramTest, StacksDoNotFollowTheLimit) {
  if (kSanitized) GTEST_SKIP() << "sanitizers make frames several times larger";
  const Finished plain = run("generate", {"-p", "Hello", "-q"});
  for (const uint64_t kib : {256, 640, 8192}) {
    const Finished finished = run("generate", {"-p", "Hello", "-q"}, limited(RLIMIT_STACK, kib * kKiB));
    EXPECT_EQ(finished.signal, 0) << kib << " KiB: " << finished.err;
    EXPECT_EQ(finished.exit_code, 0) << kib << " KiB: " << finished.err;
    EXPECT_EQ(finished.out, plain.out);
  }
}

TEST_F(ProgramTest, TooFewDescriptorsAreSaid) {
  if (kSanitized) GTEST_SKIP() << "UBSan opens a pipe to check an object's type";
  bool done = false;
  for (uint64_t files = 4; files <= 24 && !done; ++files) {  // 0 to 2 are the streams, 3 the loader's
    const Finished finished = run("generate", {"-p", "Hello"}, limited(RLIMIT_NOFILE, files));
    EXPECT_EQ(finished.signal, 0) << files << ": " << finished.err;
    EXPECT_EQ(finished.err.find("MemTotal"), std::string::npos) << files << ": " << finished.err;
    done = finished.exit_code == 0;
    const bool loaded = finished.err.find("error while loading shared libraries") == std::string::npos;
    if (!done && loaded) {
      EXPECT_NE(finished.err.find("Too many open files"), std::string::npos) << files << ": " << finished.err;
    }
  }
  EXPECT_TRUE(done);
}

// Logits that are not finite: a line that says where, exit code 3, and in a batch the next document goes on.
TEST_F(ProgramTest, AModelThatOverflowsIsSaid) {
  const std::string model = *folder_ / "overflows";
  write_tiny_model(model);
  testing_support::make_overflow(model + "/model.safetensors", 'Q');  // a token a byte
  const std::string bad = folder_->write("bad.txt", "A question: Q"), good = folder_->write("good.txt", "No answer.");
  const Finished one = run_program({"generate", "-m", model, "-f", bad, "-n", "4", "--no-chat-template"});
  EXPECT_EQ(one.exit_code, 3);
  EXPECT_NE(one.err.find(model + ": the logits after the prompt's 13 tokens hold NaN"), std::string::npos) << one.err;
  EXPECT_EQ(one.out, "");
  const std::string out = *folder_ / "overflow.jsonl";
  const Finished batch = run_program({"summarize", bad, good, "-m", model, "-n", "4", "--ignore-eos", "--dtype", "f32",
                                      "--no-chat-template", "--instruction", "Go on.", "-o", out});
  EXPECT_EQ(batch.exit_code, 3);
  const std::vector<nlohmann::json> lines = json_lines(folder_->read("overflow.jsonl"));
  ASSERT_EQ(lines.size(), 2u);
  EXPECT_NE(lines[0]["error"].get<std::string>().find("hold NaN"), std::string::npos) << lines[0];
  EXPECT_EQ(lines[1]["token_ids"].size(), 4u) << lines[1];
}

// Weights that are not finite: exit code 3 before any text, or a warning.
TEST_F(ProgramTest, DamagedWeightsEndTheRunUnlessTheyAreAllowed) {
  const std::string model = *folder_ / "broken";
  write_tiny_model(model);
  testing_support::set_weights(model + "/model.safetensors", "model.embed_tokens.weight", 300, 7,  // of no byte
                               {std::numeric_limits<float>::quiet_NaN()});
  const std::string damage =
      model + "/model.safetensors: tensor model.embed_tokens.weight holds NaN at row 300, column 7";
  std::vector<std::string> args = {"generate", "-m", model, "-p", "Hello", "-n", "1"};
  const Finished refused = run_program(args);
  EXPECT_EQ(refused.exit_code, 3);
  EXPECT_EQ(refused.out, "");
  for (const std::string& part :
       {model + ": has 1 damaged tensor: " + damage, std::string("--allow-damaged-weights")}) {
    EXPECT_NE(refused.err.find(part), std::string::npos) << refused.err;
  }
  args.emplace_back("--allow-damaged-weights");
  const Finished allowed = run_program(args);
  EXPECT_EQ(allowed.exit_code, 0) << allowed.err;
  EXPECT_NE(allowed.err.find("warning: " + damage), std::string::npos) << allowed.err;
  const Finished server = run_program({"serve", "-m", model, "--port", "0"});
  EXPECT_EQ(server.exit_code, 3);
  EXPECT_NE(server.err.find(damage), std::string::npos) << server.err;
}

}  // namespace
}  // namespace headrace
