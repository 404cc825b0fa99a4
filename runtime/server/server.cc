#include "runtime/server/server.h"

#include <atomic>
#include <utility>
#include <vector>

#include "runtime/server/access.h"
#include "runtime/server/completions.h"
#include "runtime/server/http_answers.h"
#include "runtime/server/http_server.h"
#include "runtime/server/model_answers.h"
#include "runtime/server/page.h"

namespace headrace {
namespace {

constexpr size_t kSpareThreads = 32;  // connections beside the ones whose requests are queued or run

// The page holds its own style and script, and talks to its server alone.
constexpr char kPagePolicy[] =
    "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; connect-src 'self'; img-src data:; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

std::chrono::milliseconds to_ms(double seconds) {
  return std::chrono::milliseconds(static_cast<int64_t>(seconds * 1000));
}

std::vector<std::string> checked_keys(const ServerOptions& options) {
  if (!options.api_key_file.empty()) return read_api_keys(options.api_key_file);
  if (!is_loopback(options.host)) {
    throw_error(ExitCode::kUsage, "--host", str("'", options.host, "' is open to other machines, and there is no key"),
                "Give --api-key-file FILE, or leave --host out: 127.0.0.1 is open to this machine only");
  }
  return {};
}

}  // namespace

struct Server::Impl {
  const ServerOptions options;
  const std::vector<std::string> keys;
  JobQueue& queue;
  ServerMetrics& metrics;
  ModelAnswers model;
  Completions completions;
  std::atomic<bool> ready{false};
  int port = 0;
  HttpServer http;  // the last: its threads use the rest

  Impl(const Engine& engine, const ServerOptions& o, JobQueue& jobs, ServerMetrics& counts)
      : options(o),
        keys(checked_keys(o)),
        queue(jobs),
        metrics(counts),
        model(engine),
        completions(engine, options, jobs, counts),
        http({.read = to_ms(o.read_seconds), .write = to_ms(o.read_seconds)},
             static_cast<size_t>(o.queue) + 1 + kSpareThreads) {
    http.set_payload_max_length(options.body_bytes);  // of bodies that no handler asks for
    add_guards();
    add_reads();
    add_posts();
    port = http.bind(options.host, options.port);
    http.start();
  }

  void add_guards();
  void add_reads();
  void add_posts();
  // `answer` takes the body.
  void post(const char* path, std::function<void(const std::string& body, httplib::Response& response)> answer);
};

void Server::Impl::add_guards() {
  http.set_pre_routing_handler([this](const httplib::Request& request, httplib::Response& response) {
    const std::optional<Failure> refused = refuse_visitor({.path = request.path,
                                                           .authorization = request.get_header_value("Authorization"),
                                                           .host = request.get_header_value("Host"),
                                                           .origin = request.get_header_value("Origin")},
                                                          keys);
    if (!refused) return httplib::Server::HandlerResponse::Unhandled;
    send_failure(*refused, response);
    return httplib::Server::HandlerResponse::Handled;
  });
  http.set_error_handler([](const httplib::Request&, httplib::Response& response) {
    if (!response.body.empty()) return;
    const bool missing = response.status == 404;
    send_failure(
        bad_request(response.status, missing ? "not_found" : "bad_request",
                    missing ? "the server has no such address, or not for this method" : "the request is malformed"),
        response);
  });
  http.set_exception_handler(
      [](const httplib::Request&, httplib::Response& response, const std::exception_ptr& thrown) {
        try {
          std::rethrow_exception(thrown);
        } catch (const Error& error) {
          send_failure(failure_of(error), response);
        } catch (const std::exception& error) {
          send_failure({.message = error.what()}, response);
        }
      });
  // A refused request may not have been read to its end.
  http.set_post_routing_handler([this](const httplib::Request&, httplib::Response& response) {
    metrics.responded(response.status);
    response.headers.erase("Keep-Alive");  // the library's own values, which are not those of our connections
    if (response.status < 400) return;
    HttpServer::connection().close_after_answer();
    response.headers.erase("Connection");
    response.set_header("Connection", "close");
  });
}

void Server::Impl::add_reads() {
  http.Get("/", [](const httplib::Request&, httplib::Response& response) {
    const std::string_view page = page_html();
    response.set_header("Content-Security-Policy", kPagePolicy);
    response.set_content(page.data(), page.size(), "text/html; charset=utf-8");
  });
  http.Get("/health", [this](const httplib::Request&, httplib::Response& response) {
    if (ready) return response.set_content(R"({"status":"ok"})", kJsonType);
    send_failure({.status = 503, .message = "the model is being loaded", .code = "loading"}, response);
  });
  http.Get("/metrics", [this](const httplib::Request&, httplib::Response& response) {
    response.set_content(metrics.text(queue), "text/plain; version=0.0.4");
  });
  http.Get("/v1/models", [this](const httplib::Request&, httplib::Response& response) {
    response.set_content(model.list(), kJsonType);
  });
  http.Get(R"(/v1/models/(.+))", [this](const httplib::Request& request, httplib::Response& response) {
    const std::string name = request.matches[1];
    if (name == model.name()) return response.set_content(model.one(), kJsonType);
    send_failure(bad_request(404, "model_not_found", str("the model is '", model.name(), "'")), response);
  });
}

void Server::Impl::add_posts() {
  for (const char* const path : {"/v1/chat/completions", "/v1/completions"}) {
    post(path, [this, kind = *request_kind(path)](const std::string& body, httplib::Response& response) {
      completions.answer(kind, body, response);
    });
  }
  post("/tokenize", [this](const std::string& body, httplib::Response& response) {
    response.set_content(model.tokenize(body), kJsonType);
  });
}

void Server::Impl::post(const char* path,
                        std::function<void(const std::string& body, httplib::Response& response)> answer) {
  http.Post(path, [this, answer = std::move(answer)](const httplib::Request& request, httplib::Response& response,
                                                     const httplib::ContentReader& reader) {
    if (const auto body = read_body(request, reader, options.body_bytes, response)) answer(*body, response);
  });
}

Server::Server(const Engine& engine, const ServerOptions& options, JobQueue& queue, ServerMetrics& metrics)
    : impl_(std::make_unique<Impl>(engine, options, queue, metrics)) {}
Server::~Server() = default;

std::string Server::address() const {
  const std::string& host = impl_->options.host;
  return str("http://", host.find(':') == std::string::npos ? host : "[" + host + "]", ":", impl_->port);
}
int Server::port() const { return impl_->port; }
void Server::set_ready() { impl_->ready = true; }
void Server::finish() { impl_->http.finish(); }

}  // namespace headrace
