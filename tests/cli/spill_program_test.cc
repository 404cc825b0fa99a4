// --spill as a user meets it: the same text with the KV cache on a disk, and a report that says what it had there.
#include <gtest/gtest.h>

#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "tests/cli/process.h"
#include "tests/cli/tiny_model.h"
#include "tests/support/temporary_folder.h"

namespace headrace {
namespace {

using nlohmann::json;

class SpillProgram : public ::testing::Test {
 protected:
  SpillProgram() {
    write_tiny_model(folder_ / "model");
    std::string text;
    while (text.size() < 6000) text += "A sentence of a document. ";
    document_ = folder_.write("document.txt", text);
    std::filesystem::create_directory(folder_ / "disk");
  }
  Finished run(std::vector<std::string> more) const {
    std::vector<std::string> args = {"generate", "-m", folder_ / "model", "-n", "8", "--ignore-eos", "-t", "1", "--kv",
                                     "host",     "-f", document_,         "-p", "?"};
    args.insert(args.end(), more.begin(), more.end());
    return run_program(args, {.input = "", .environment = {{"HOME", folder_.path()}}, .stdout_path = ""});
  }
  json spilled() const {
    const Finished finished = run({"--host-mem", "23MiB", "--spill", folder_ / "disk", "--json", "-q"});
    EXPECT_EQ(finished.exit_code, 0) << finished.err;
    EXPECT_TRUE(std::filesystem::is_empty(folder_ / "disk"));
    return json::parse(finished.out);
  }

  const TemporaryFolder folder_;
  std::string document_;  // 6,009 tokens with its frame: 12 MiB of rows, of which 23 MiB leave room for half
};

TEST_F(SpillProgram, SaysTheSameAndHowItRead) {
  const Finished whole = run({"--json", "-q"});
  ASSERT_EQ(whole.exit_code, 0) << whole.err;
  const json plain = json::parse(whole.out), said = spilled();
  EXPECT_EQ(said["token_ids"], plain["token_ids"]);
  EXPECT_FALSE(plain.contains("spill"));
  ASSERT_TRUE(said.contains("spill"));
  EXPECT_EQ(said["spill"]["folder"], folder_ / "disk");
  EXPECT_GT(said["spill"]["file_bytes"], 0);
  EXPECT_GT(said["spill"]["decode_read_bytes"], 0);
  EXPECT_EQ(said["spill"]["read_depth"], 8);  // that the ring has room for
  const Finished text = run({"--host-mem", "23MiB", "--spill", folder_ / "disk"});
  EXPECT_NE(text.err.find(" read, up to 8 reads at once\n"), std::string::npos) << text.err;
}

}  // namespace
}  // namespace headrace
