#include "runtime/server/routes.h"

#include <new>
#include <string_view>

#include "runtime/requests/file_part.h"
#include "runtime/server/access.h"
#include "runtime/server/json_response.h"
#include "runtime/server/page.h"

namespace headrace {
namespace {

constexpr std::string_view kModels = "/v1/models", kTokenize = "/tokenize", kDocument = "/document",
                           kEmbeddings = "/v1/embeddings";

std::vector<std::string> checked_keys(const ServerOptions& options) {
  if (!options.api_key_file.empty()) return read_api_keys(options.api_key_file);
  if (!is_loopback(options.host)) {
    throw_error(ExitCode::kUsage, "--host",
                str("'", options.host, "' is reachable from other machines, but there is no key"),
                "Give --api-key-file FILE, or leave --host out: 127.0.0.1 is reachable from this machine only");
  }
  return {};
}

bool takes_posts(const std::string& path) { return path == kTokenize || path == kDocument || request_kind(path); }

// What a browser asks before it sends a request of a page of another origin. It sends no key with the question.
HttpResponse preflight(const HttpRequest& request) {
  const std::string_view headers = request.header("Access-Control-Request-Headers");
  return {.status = 204,
          .headers = {{"Access-Control-Allow-Methods", "GET, POST, OPTIONS"},
                      {"Access-Control-Allow-Headers", headers.empty() ? "Authorization, Content-Type" : str(headers)},
                      {"Access-Control-Max-Age", "600"}}};
}

HttpResponse allowed(const char* methods) { return {.status = 204, .headers = {{"Allow", methods}}}; }

HttpResponse page() {
  return {.type = "text/html; charset=utf-8",
          .body = page_html(),
          .headers = {{"Content-Security-Policy", page_policy()},
                      {"X-Content-Type-Options", "nosniff"},
                      {"Referrer-Policy", "no-referrer"}}};
}

// None: the body may be read.
std::optional<HttpResponse> refuse_body(const HttpRequest& request) {
  if (!request.header("Content-Encoding").empty()) {
    return failure_response(bad_request(415, "bad_encoding", "a compressed body is not supported"));
  }
  if (request.header("Content-Type").starts_with("multipart/")) {
    return failure_response(bad_request(415, "bad_type", "the body must be JSON, not a form"));
  }
  return std::nullopt;
}

}  // namespace

Routes::Routes(const Engine& engine, const ServerOptions& options, JobQueue& queue, ServerMetrics& metrics)
    : options_(options),
      keys_(checked_keys(options)),
      queue_(queue),
      metrics_(metrics),
      memory_(engine.host_mem().reserve(
          RequestMemory::part_of(engine.host_mem().free_bytes(), options.body_bytes, options.queue), "requests")),
      model_(engine),
      completions_(engine, options, queue, metrics, memory_) {}

HttpHandlers Routes::handlers() {
  return {.at_header = [this](const HttpRequest& request) { return at_header(request); },
          .at_end = [this](const HttpRequest& request) { return at_end(request); },
          .at_fault = [this](HttpFault fault) { return at_fault(fault); },
          .on_response = [this](HttpResponse& response) { on_response(response); }};
}

std::optional<HttpResponse> Routes::at_header(const HttpRequest& request) const {
  const bool asks = request.method == "OPTIONS";
  if (asks && !keys_.empty() && !request.header("Origin").empty()) return preflight(request);
  const std::optional<Failure> refused = refuse_visitor({.path = request.path,
                                                         .authorization = std::string(request.header("Authorization")),
                                                         .host = std::string(request.header("Host")),
                                                         .origin = std::string(request.header("Origin"))},
                                                        keys_);
  if (refused) return failure_response(*refused);
  if (takes_posts(request.path)) {
    if (request.method == "POST") return refuse_body(request);
    if (asks) return allowed("POST, OPTIONS");
  } else if (asks || request.method == "GET" || request.method == "HEAD") {
    std::optional<HttpResponse> response = read(request.path);
    if (response) return asks ? allowed("GET, HEAD, OPTIONS") : response;
    if (asks && request.path == "*") return allowed("GET, HEAD, POST, OPTIONS");
  }
  if (request.path == kEmbeddings) {
    return failure_response(
        bad_request(404, "not_found", "/v1/embeddings is not supported: this server's model writes text"));
  }
  return failure_response(bad_request(404, "not_found", "no such path, or the path does not accept this method"));
}

std::optional<HttpResponse> Routes::read(const std::string& path) const {
  if (path == "/") return page();
  if (path == "/health") return health();
  if (path == "/metrics") return HttpResponse{.type = "text/plain; version=0.0.4", .body = metrics_.text(queue_)};
  if (path == kModels) return json_response(model_.list());
  const bool one = path.starts_with(kModels) && path.size() > kModels.size() + 1 && path[kModels.size()] == '/';
  if (!one) return std::nullopt;
  if (path.substr(kModels.size() + 1) == model_.name()) return json_response(model_.one());
  return failure_response(bad_request(404, "model_not_found", str("the model is '", model_.name(), "'")));
}

HttpResponse Routes::health() const {
  if (ready_) return json_response(R"({"status":"ok"})");
  return failure_response({.status = 503, .message = "the model is being loaded", .code = "loading"});
}

HttpAnswer Routes::at_end(const HttpRequest& request) {
  try {
    return post(request);
  } catch (const Error& error) {
    return failure_response(failure_of(error));
  } catch (const std::bad_alloc&) {
    return failure_response(out_of_memory());
  } catch (const std::exception& error) {
    return failure_response({.message = error.what()});
  }
}

HttpAnswer Routes::post(const HttpRequest& request) {
  if (request.path == kTokenize || request.path == kDocument) {
    RequestMemory::Share share;
    const FileRules files = memory_.file_rules(request.body);
    if (const std::optional<Failure> refused = memory_.take(request.body.size() + files.text_bytes, &share))
      return failure_response(*refused);
    return json_response(request.path == kDocument ? file_text_json(request.body, "request", files)
                                                   : model_.tokenize(request.body));
  }
  const std::optional<RequestKind> kind = request_kind(request.path);
  CHECK(kind.has_value(), "path=", request.path);
  return completions_.answer(*kind, request.body);
}

HttpResponse Routes::at_fault(HttpFault fault) const {
  switch (fault) {
    case HttpFault::kMalformed:
      return failure_response(bad_request(400, "bad_request", "the request is malformed"));
    case HttpFault::kIncomplete:
      return failure_response(bad_request(400, "bad_request", "the request did not arrive completely in time"));
    case HttpFault::kTooLong:
      return failure_response(bad_request(
          413, "body_too_long", str("the body is longer than ", format_bytes(options_.body_bytes), " (--max-body)")));
    case HttpFault::kBusy:
      return failure_response({.status = 503,
                               .message = "the server has too many requests at the same time",
                               .code = "server_busy",
                               .retry_after_s = 1});
    case HttpFault::kBroken:
      break;
  }
  return failure_response({.message = "internal server error"});
}

void Routes::on_response(HttpResponse& response) const {
  metrics_.responded(response.status);
  // With keys any page may ask that has one; without, no page but the server's own.
  if (!keys_.empty()) response.headers.push_back({"Access-Control-Allow-Origin", "*"});
}

}  // namespace headrace
