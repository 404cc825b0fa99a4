#include "runtime/server/failure.h"

#include "runtime/requests/request.h"
#include "runtime/requests/response.h"

namespace headrace {

Failure failure_of(const Error& error) {
  if (dynamic_cast<const ConverterBusy*>(&error) != nullptr)
    return {.status = 503, .message = error.what(), .code = "converter_busy", .retry_after_s = 2};
  switch (error.code()) {
    case ExitCode::kUsage:
    case ExitCode::kBadInput:
    case ExitCode::kDoesNotFit:
      return bad_request(400, error_code(error), error.what());
    case ExitCode::kInterrupted:
      return server_stops();
    case ExitCode::kStorage:
      return {.message = error.what(), .code = "storage_failed"};
    case ExitCode::kDone:
    case ExitCode::kInternal:
      break;
  }
  return {.message = error.what()};
}

Failure bad_request(int status, const std::string& code, const std::string& message) {
  return {.status = status, .message = message, .type = "invalid_request_error", .code = code};
}

Failure client_left() { return bad_request(499, "client_left", "the client closed the connection"); }

Failure out_of_memory() {
  return {.status = 503, .message = "out of memory outside the budgets", .code = "out_of_memory", .retry_after_s = 1};
}

Failure server_stops() { return {.status = 503, .message = "the server is stopping", .code = "server_stops"}; }

}  // namespace headrace
