// headrace serve as a process: how it starts, what it refuses, and how a signal ends it.
#include <gtest/gtest.h>

#include <csignal>
#include <string>
#include <vector>

#include "tests/cli/program_fixture.h"

namespace headrace {
namespace {

class ServeProgram : public ProgramTest {
 protected:
  static std::vector<std::string> command(const std::vector<std::string>& more = {}) {
    std::vector<std::string> args = {"serve", "-m", model_, "-t", "1", "-c", "500", "--port", "0"};
    args.insert(args.end(), more.begin(), more.end());
    return args;
  }
};

TEST_F(ServeProgram, ASignalEndsIt) {
  SKIP_WITHOUT_A_TERMINAL();
  for (const int signal : {SIGINT, SIGTERM}) {
    Program program(command(), Program::Streams::kTerminal);
    ASSERT_TRUE(program.read_until("listening on http://127.0.0.1:"));
    program.send(signal);
    const Finished finished = program.wait();
    EXPECT_EQ(finished.exit_code, 0) << finished.out;
  }
}

TEST_F(ServeProgram, RefusesAStartThatIsWrong) {
  const auto refused = [](const std::vector<std::string>& more, int code, const std::string& says) {
    const Finished finished = run_program(command(more));
    EXPECT_EQ(finished.exit_code, code) << finished.err;
    EXPECT_NE(finished.err.find(says), std::string::npos) << finished.err;
  };
  refused({"--host", "0.0.0.0"}, 2, "--host: '0.0.0.0' is open to other machines, and there is no key");
  refused({"--host", "::"}, 2, "Give --api-key-file FILE");
  refused({"--host", ""}, 2, "--host is empty");
  refused({"--host", "192.0.2.1", "--api-key-file", folder_->write("keys", "k\n")}, 2, "cannot listen on 192.0.2.1");
  refused({"--api-key-file", *folder_ / "none"}, 3, "none");
  refused({"--port", "65536"}, 2, "--port: '65536' is not a whole number from 0 to 65535");
  refused({"--queue", "-1"}, 2, "--queue: '-1'");
  refused({"--json"}, 2, "--json");
}

}  // namespace
}  // namespace headrace
