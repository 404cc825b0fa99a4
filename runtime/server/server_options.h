// What a server is started with. Plain values; any thread.
#pragma once

#include <cstdint>
#include <string>

#include "cache/base.h"

namespace headrace {

struct ServerOptions {
  std::string host = "127.0.0.1";
  int port = 8080;             // 0: any free one
  std::string api_key_file{};  // empty: no key, and only on loopback
  int64_t queue = 16;          // requests that wait beside the one that runs
  double queue_seconds = 600;  // the longest wait
  double read_seconds = 30;    // of a request, header and body together
  uint64_t body_bytes = uint64_t{16} << 20;
  bool use_chat_template = true;  // false: the texts of a chat's messages are its prompt
};

}  // namespace headrace
