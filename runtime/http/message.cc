#include "runtime/http/message.h"

#include <algorithm>
#include <array>
#include <utility>

#include "cache/base.h"

namespace headrace {
namespace {

char lower(char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c; }

bool same_name(std::string_view a, std::string_view b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(), [](char x, char y) { return lower(x) == lower(y); });
}

constexpr std::array<std::pair<int, const char*>, 15> kReasons = {{{200, "OK"},
                                                                   {204, "No Content"},
                                                                   {400, "Bad Request"},
                                                                   {401, "Unauthorized"},
                                                                   {403, "Forbidden"},
                                                                   {404, "Not Found"},
                                                                   {405, "Method Not Allowed"},
                                                                   {408, "Request Timeout"},
                                                                   {411, "Length Required"},
                                                                   {413, "Payload Too Large"},
                                                                   {415, "Unsupported Media Type"},
                                                                   {429, "Too Many Requests"},
                                                                   {500, "Internal Server Error"},
                                                                   {501, "Not Implemented"},
                                                                   {503, "Service Unavailable"}}};

std::string_view reason_of(int status) {
  for (const auto& [code, reason] : kReasons) {
    if (code == status) return reason;
  }
  return "";
}

}  // namespace

std::string_view HttpRequest::header(std::string_view name) const {
  for (const HttpHeader& header : headers) {
    if (same_name(header.name, name)) return header.value;
  }
  return {};
}

std::string response_head(const HttpResponse& response, std::string_view framing) {
  std::string head = str("HTTP/1.1 ", response.status, " ", reason_of(response.status), "\r\n");
  for (const HttpHeader& header : response.headers) head += str(header.name, ": ", header.value, "\r\n");
  if (!response.type.empty()) head += str("Content-Type: ", response.type, "\r\n");
  return head.append(framing).append("\r\n");
}

}  // namespace headrace
