#include "runtime/server/json_response.h"

#include <utility>

#include "runtime/requests/response.h"

namespace headrace {

HttpResponse json_response(std::string json) { return {.type = "application/json", .body = std::move(json)}; }

HttpResponse failure_response(const Failure& failure) {
  HttpResponse response = json_response(openai_error_json(failure.message, failure.type, failure.code));
  response.status = failure.status;
  if (failure.retry_after_s > 0) response.headers.push_back({"Retry-After", std::to_string(failure.retry_after_s)});
  if (failure.status == 401) response.headers.push_back({"WWW-Authenticate", "Bearer"});
  return response;
}

}  // namespace headrace
