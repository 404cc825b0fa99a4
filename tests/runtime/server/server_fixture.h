// A server on loopback with a tiny model, and clients of it. The engine lives as long as the test program.
#pragma once

#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <thread>
#include <vector>

#include "runtime/engine/engine.h"
#include "runtime/server/server.h"
#include "runtime/server/worker.h"
#include "tests/support/http_client.h"
#include "tests/support/raw_socket.h"
#include "tests/support/temporary_folder.h"

namespace headrace {

class ServerTest : public ::testing::Test {
 protected:
  ServerTest();
  ~ServerTest() override;

  enum class Works { kYes, kNo };  // kNo: requests wait for ever
  void start(const ServerOptions& options = {}, Works works = Works::kYes);
  void stop();

  int port() const { return server_->port(); }
  HttpClient client() const { return HttpClient(port()); }
  HttpResponse post(const std::string& path, const nlohmann::json& body) const {
    return client().post(path, body.dump());
  }
  // The answer's JSON; a failure unless its status is `status`.
  nlohmann::json answer(const std::string& path, const nlohmann::json& body, int status = 200) const;
  RawSocket send_raw(const std::string& text) const { return RawSocket(port(), text); }
  static std::string http_post(const std::string& path, const nlohmann::json& body);

  static nlohmann::json completion(const std::string& prompt, const nlohmann::json& more = nlohmann::json::object());
  static nlohmann::json chat(const std::string& user, const nlohmann::json& more = nlohmann::json::object());
  // What `headrace generate` answers. REQUIRES: no worker runs.
  std::string expected(const std::string& prompt, const GenerateOptions& options);
  static void wait_until(const std::function<bool()>& true_at_last);  // fails after 20 s

  static Engine& engine();
  static std::unique_ptr<Engine> open_engine(uint64_t host_mem_bytes);  // 0: the default
  Engine* used_ = &engine();                                            // by start()
  TemporaryFolder folder_;
  GenerateOptions usual_;
  JobQueue* queue() { return queue_.get(); }
  ServerMetrics* metrics() { return metrics_.get(); }

 private:
  std::unique_ptr<JobQueue> queue_;
  std::unique_ptr<ServerMetrics> metrics_;
  std::unique_ptr<Server> server_;
  std::unique_ptr<Worker> worker_;
  std::thread engine_thread_;
};

}  // namespace headrace
