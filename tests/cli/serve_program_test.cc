// headrace serve as a process: how it starts, what it refuses, and how a signal ends it.
#include <gtest/gtest.h>

#include <chrono>
#include <csignal>
#include <string>
#include <vector>

#include "tests/cli/program_fixture.h"
#include "tests/support/raw_socket.h"
#include "tests/support/sanitized.h"

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

int free_port() {
  const int socket = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof address;
  auto* const any = reinterpret_cast<sockaddr*>(&address);
  EXPECT_EQ(::bind(socket, any, size), 0);
  EXPECT_EQ(::getsockname(socket, any, &size), 0);
  ::close(socket);
  return ntohs(address.sin_port);
}

std::string http_post(const std::string& path, const std::string& body) {
  return str("POST ", path, " HTTP/1.1\r\nHost: localhost\r\nContent-Length: ", body.size(), "\r\n\r\n", body);
}

// Whatever clients do: a run reads its prompt, or streams its answer to a client that does not read it; another waits;
// a long text becomes tokens; a header and a body do not arrive.
TEST_F(ServeProgram, ASignalEndsItWhateverItDoes) {
  const std::string run = R"({"model":"m","prompt":"x","max_tokens":50000,"stream":true})";
  const std::string prefill = R"({"model":"m","max_tokens":1,"prompt":")" + std::string(50000, 'x') + "\"}";
  const std::string text = "{\"content\":\"" + std::string(size_t{15} << 20, 'x') + "\"}";
  for (const std::string& body : {run, prefill}) {
    const int port = free_port();
    Program program({"serve", "-m", model_, "-t", "1", "-c", "60000", "--ignore-eos", "--port", str(port)},
                    Program::Streams::kTerminal);
    ASSERT_TRUE(program.read_until("listening on "));
    const RawSocket runs(port, http_post("/v1/completions", body), 2000);
    for (std::string seen; seen.find("requests_running 1\n") == std::string::npos;) {
      seen = RawSocket(port, "GET /metrics HTTP/1.0\r\n\r\n").read_all();
      ASSERT_NE(seen, "");
    }
    const RawSocket waits(port, http_post("/v1/completions", run)), tokenizes(port, http_post("/tokenize", text));
    const RawSocket idle(port), header(port, "GET /hea"), half(port, http_post("/tokenize", text).substr(0, 1000));
    const auto begun = std::chrono::steady_clock::now();
    program.send(SIGTERM);
    const Finished finished = program.wait();
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begun;
    EXPECT_EQ(finished.exit_code, 0) << finished.out;
    EXPECT_LT(took.count(), testing::kSanitized ? 10 : 2);
    EXPECT_NE(waits.read_all().find("HTTP/1.1 503"), std::string::npos);
  }
}

TEST_F(ServeProgram, RefusesAStartThatIsWrong) {
  const auto refused = [](const std::vector<std::string>& more, int code, const std::string& says) {
    const Finished finished = run_program(command(more));
    EXPECT_EQ(finished.exit_code, code) << finished.err;
    EXPECT_NE(finished.err.find(says), std::string::npos) << finished.err;
  };
  refused({"--host", "0.0.0.0"}, 2, "--host: '0.0.0.0' is reachable from other machines, but there is no key");
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
