// One request of HTTP/1.0 or 1.1, from its bytes as they arrive. Hides Boost.Beast's parser. Thread: one.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string_view>

#include "runtime/http/message.h"

namespace headrace {

constexpr size_t kMaxHeaders = 128;  // lines of a header
constexpr size_t kMaxHeaderBytes = size_t{64} << 10;

class RequestParser {
 public:
  // `most_body`: bytes of a body, however its length is announced.
  explicit RequestParser(uint64_t most_body);
  ~RequestParser();

  enum class State { kNeedsMore, kHeader, kDone, kMalformed, kTooLong };
  // Reads from the beginning of `bytes`, which are not empty, and says how many it used. kNeedsMore without any used:
  // the same bytes and more are needed. kHeader, once: the header is there. REQUIRES: no other state came before.
  State feed(std::string_view bytes, size_t* used);

  // From kHeader on.
  bool done() const;  // no more of the body is to come
  bool keep_alive() const;
  bool is_http_1_0() const;
  bool expects_continue() const;
  HttpRequest& request();

 private:
  class Impl;
  const std::unique_ptr<Impl> impl_;
};

}  // namespace headrace
