#include "tests/runtime/server/server_fixture.h"

#include <arpa/inet.h>
#include <sys/socket.h>
#include <unistd.h>

#include <chrono>

#include "tests/cli/tiny_model.h"

namespace headrace {

using nlohmann::json;

std::unique_ptr<Engine> ServerTest::open_engine(uint64_t host_mem_bytes) {
  static const TemporaryFolder folder;
  write_tiny_model(folder / "tiny");
  EngineOptions options;
  options.model = folder / "tiny";
  options.ctx_size = 60000;
  options.device = {.choice = DeviceChoice::kCpu, .host_mem_bytes = host_mem_bytes, .threads = 1};
  return std::make_unique<Engine>(options);
}

Engine& ServerTest::engine() {
  static const std::unique_ptr<Engine> made = open_engine(0);
  return *made;
}

ServerTest::ServerTest() {
  usual_.max_tokens = 12;
  usual_.ignore_eos = true;
}

ServerTest::~ServerTest() { stop(); }

void ServerTest::start(const ServerOptions& options, Works works) {
  stop();
  ServerOptions here = options;
  here.port = 0;
  queue_ = std::make_unique<JobQueue>(static_cast<size_t>(options.queue));
  metrics_ = std::make_unique<ServerMetrics>();
  server_ = std::make_unique<Server>(*used_, here, *queue_, *metrics_);
  if (works == Works::kNo) return;
  worker_ = std::make_unique<Worker>(*used_, *queue_, *metrics_, usual_, WorkerEvents{});
  worker_->load(nullptr);
  server_->set_ready();
  engine_thread_ = std::thread([this] { worker_->run(); });
}

void ServerTest::stop() {
  if (!server_) return;
  queue_->close();
  if (engine_thread_.joinable()) engine_thread_.join();
  server_->finish();
  server_.reset();
}

httplib::Client ServerTest::client() const { return httplib::Client("127.0.0.1", server_->port()); }

httplib::Result ServerTest::post(const std::string& path, const json& body) const {
  httplib::Client http = client();
  http.set_read_timeout(60);
  return http.Post(path, body.dump(), "application/json");
}

json ServerTest::answer(const std::string& path, const json& body, int status) const {
  const httplib::Result result = post(path, body);
  if (!result) {
    ADD_FAILURE() << "no answer: " << httplib::to_string(result.error());
    return json::object();
  }
  EXPECT_EQ(result->status, status) << result->body;
  return json::parse(result->body, nullptr, false);
}

int ServerTest::send_raw(const std::string& text) const {
  const int socket = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<uint16_t>(server_->port()));
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  EXPECT_EQ(::connect(socket, reinterpret_cast<const sockaddr*>(&address), sizeof address), 0);
  EXPECT_EQ(::send(socket, text.data(), text.size(), MSG_NOSIGNAL), static_cast<ssize_t>(text.size()));
  return socket;
}

std::string ServerTest::read_raw(int socket) {
  std::string text;
  char buffer[4096];
  for (ssize_t count; (count = ::recv(socket, buffer, sizeof buffer, 0)) > 0;) {
    text.append(buffer, static_cast<size_t>(count));
  }
  return text;
}

std::string ServerTest::http_post(const std::string& path, const json& body) {
  const std::string text = body.dump();
  return str("POST ", path, " HTTP/1.1\r\nHost: localhost\r\nContent-Length: ", text.size(), "\r\n\r\n", text);
}

json ServerTest::completion(const std::string& prompt, const json& more) {
  json body = {{"model", "tiny"}, {"prompt", prompt}};
  body.update(more);
  return body;
}

json ServerTest::chat(const std::string& user, const json& more) {
  json body = {{"model", "tiny"}, {"messages", json::array({{{"role", "user"}, {"content", user}}})}};
  body.update(more);
  return body;
}

std::string ServerTest::expected(const std::string& prompt, const GenerateOptions& options) {
  return engine().generate(engine().encode_plain(prompt), options, nullptr).text;
}

void ServerTest::wait_until(const std::function<bool()>& true_at_last) {
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(20);
  while (!true_at_last()) {
    ASSERT_LT(std::chrono::steady_clock::now(), deadline);
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
}

}  // namespace headrace
