// A client of a server on loopback: one request a connection. Hides Boost.Beast. Thread: any.
#pragma once

#include <string>
#include <vector>

#include "runtime/http/message.h"

namespace headrace {

class HttpClient {
 public:
  explicit HttpClient(int port) : port_(port) {}

  // Status 0: no answer came.
  HttpResponse get(const std::string& path, const std::vector<HttpHeader>& headers = {}) const;
  HttpResponse post(const std::string& path, const std::string& body,
                    const std::vector<HttpHeader>& headers = {}) const;
  HttpResponse ask(const std::string& method, const std::string& path, const std::string& body,
                   const std::vector<HttpHeader>& headers) const;

 private:
  const int port_;
};

// The value of an answer's header; empty: absent.
std::string header_of(const HttpResponse& response, const std::string& name);

}  // namespace headrace
