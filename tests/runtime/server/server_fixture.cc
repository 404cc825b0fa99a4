#include "tests/runtime/server/server_fixture.h"

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

json ServerTest::answer(const std::string& path, const json& body, int status) const {
  const HttpResponse response = post(path, body);
  EXPECT_EQ(response.status, status) << response.body;
  return json::parse(response.body, nullptr, false);
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
