#include "runtime/server/http_answers.h"

#include <cstdlib>

#include "runtime/requests/response.h"

namespace headrace {
namespace {

Failure too_long(uint64_t most_bytes) {
  return bad_request(413, "body_too_long", str("the body is longer than ", format_bytes(most_bytes), " (--max-body)"));
}

}  // namespace

void send_failure(const Failure& failure, httplib::Response& response) {
  response.status = failure.status;
  if (failure.retry_after_s > 0) response.set_header("Retry-After", std::to_string(failure.retry_after_s));
  if (failure.status == 401) response.set_header("WWW-Authenticate", "Bearer");
  response.set_content(openai_error_json(failure.message, failure.type, failure.code), kJsonType);
}

std::optional<std::string> read_body(const httplib::Request& request, const httplib::ContentReader& reader,
                                     uint64_t most_bytes, httplib::Response& response) {
  if (request.has_header("Content-Encoding")) {
    send_failure(bad_request(415, "bad_encoding", "a compressed body is not supported"), response);
    return std::nullopt;
  }
  if (request.is_multipart_form_data()) {
    send_failure(bad_request(415, "bad_type", "the body must be JSON, not a form"), response);
    return std::nullopt;
  }
  std::string body;
  bool fits = std::strtoull(request.get_header_value("Content-Length").c_str(), nullptr, 10) <= most_bytes;
  const bool read = fits && reader([&](const char* data, size_t size) {
                      fits = body.size() + size <= most_bytes;
                      if (fits) body.append(data, size);
                      return fits;
                    });
  if (read) return body;
  send_failure(fits ? bad_request(400, "bad_body", "the body did not arrive whole") : too_long(most_bytes), response);
  return std::nullopt;
}

}  // namespace headrace
