// An answer that is an error: an HTTP status, and OpenAI's names for it. Plain values; any thread.
#pragma once

#include <string>

#include "cache/base.h"

namespace headrace {

struct Failure {
  int status = 500;
  std::string message, type = "server_error", code = "internal_error";
  int retry_after_s = 0;  // 0: no Retry-After
};

Failure failure_of(const Error& error);
Failure bad_request(int status, const std::string& code, const std::string& message);
Failure client_left();    // for nobody: the client closed the connection
Failure out_of_memory();  // the system has none left, whatever the budgets
Failure server_stops();   // for requests that a server does not answer because it ends

}  // namespace headrace
