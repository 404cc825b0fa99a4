// Answers whose body is JSON. Pure; any thread.
#pragma once

#include <string>

#include "runtime/http/message.h"
#include "runtime/server/failure.h"

namespace headrace {

HttpResponse json_response(std::string json);
HttpResponse failure_response(const Failure& failure);

}  // namespace headrace
