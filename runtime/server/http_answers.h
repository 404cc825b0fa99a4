// Bodies of requests and answers, by httplib's types. Pure but for reading a body; any thread.
#pragma once

#include <httplib.h>

#include <cstdint>
#include <optional>
#include <string>

#include "runtime/server/failure.h"

namespace headrace {

constexpr const char* kJsonType = "application/json";

void send_failure(const Failure& failure, httplib::Response& response);
// None: it was longer than `most_bytes`, or did not arrive as announced; the response says so.
std::optional<std::string> read_body(const httplib::Request& request, const httplib::ContentReader& reader,
                                     uint64_t most_bytes, httplib::Response& response);

}  // namespace headrace
