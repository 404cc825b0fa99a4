#include "runtime/server/access.h"

#include <arpa/inet.h>
#include <netdb.h>
#include <netinet/in.h>

#include <algorithm>
#include <memory>

#include "runtime/text/document.h"

namespace headrace {
namespace {

constexpr std::string_view kBearer = "Bearer ";

bool is_loopback_address(const sockaddr& address) {
  if (address.sa_family == AF_INET) {
    return (ntohl(reinterpret_cast<const sockaddr_in&>(address).sin_addr.s_addr) >> 24) == 127;
  }
  return address.sa_family == AF_INET6 &&
         IN6_IS_ADDR_LOOPBACK(&reinterpret_cast<const sockaddr_in6&>(address).sin6_addr);
}

// "localhost:8080", "[::1]:8080" -> the name alone.
std::string_view without_port(std::string_view authority) {
  if (authority.starts_with('[')) return authority.substr(1, authority.find(']') - 1);
  return authority.substr(0, authority.find(':'));
}

// A literal address or "localhost": no name is looked up for a request.
bool names_this_machine(std::string_view authority) {
  const std::string host(without_port(authority));
  if (host == "localhost") return true;
  in_addr four = {};
  in6_addr six = {};
  if (inet_pton(AF_INET, host.c_str(), &four) == 1) return (ntohl(four.s_addr) >> 24) == 127;
  return inet_pton(AF_INET6, host.c_str(), &six) == 1 && IN6_IS_ADDR_LOOPBACK(&six);
}

// Takes the same time whichever byte differs.
bool same_key(std::string_view a, std::string_view b) {
  unsigned difference = a.size() == b.size() ? 0 : 1;
  for (size_t i = 0; i < std::min(a.size(), b.size()); ++i) difference |= static_cast<unsigned>(a[i] ^ b[i]);
  return difference == 0;
}

}  // namespace

std::vector<std::string> read_api_keys(const std::string& path) {
  const std::string text = read_document(path);
  std::vector<std::string> keys;
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = std::min(text.find('\n', begin), text.size());
    std::string key = text.substr(begin, end - begin);
    begin = end + 1;
    key.erase(0, std::min(key.find_first_not_of(" \t\r"), key.size()));
    key.erase(key.find_last_not_of(" \t\r") + 1);
    if (key.empty()) continue;
    if (std::any_of(key.begin(), key.end(), [](char c) { return c < 0x21 || c > 0x7e; })) {
      throw_error(ExitCode::kBadInput, path,
                  str("key ", keys.size() + 1, " has a character that is not printable ASCII"));
    }
    keys.push_back(std::move(key));
  }
  return keys;  // read_document() refuses a file of white space
}

bool is_loopback(const std::string& host) {
  addrinfo hints = {};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_PASSIVE;
  addrinfo* found = nullptr;
  if (const int error = getaddrinfo(host.c_str(), nullptr, &hints, &found); error != 0) {
    throw_error(ExitCode::kUsage, "--host", str("'", host, "' has no address: ", gai_strerror(error)));
  }
  const std::unique_ptr<addrinfo, void (*)(addrinfo*)> addresses(found, freeaddrinfo);
  for (const addrinfo* at = found; at != nullptr; at = at->ai_next) {
    if (!is_loopback_address(*at->ai_addr)) return false;
  }
  return true;
}

std::optional<Failure> refuse_visitor(const Visitor& visitor, const std::vector<std::string>& keys) {
  if (!keys.empty()) {
    if (visitor.path == "/" || visitor.path == "/health") return std::nullopt;
    const std::string_view given = visitor.authorization;
    if (!given.starts_with(kBearer)) {
      return bad_request(401, "invalid_api_key", "no key was given: send it as \"Authorization: Bearer KEY\"");
    }
    bool known = false;
    for (const std::string& key : keys) known |= same_key(given.substr(kBearer.size()), key);
    return known ? std::nullopt
                 : std::optional(bad_request(401, "invalid_api_key", "the key is not valid for this server"));
  }
  if (!visitor.host.empty() && !names_this_machine(visitor.host)) {
    return bad_request(403, "forbidden_host",
                       "the Host header does not name this machine: use localhost, or start the server with a key");
  }
  const size_t scheme = visitor.origin.find("://");
  const std::string origin = scheme == std::string::npos ? visitor.origin : visitor.origin.substr(scheme + 3);
  if (!origin.empty() && origin != visitor.host) {
    return bad_request(403, "forbidden_origin", "a page of another origin may not use a server without keys");
  }
  return std::nullopt;
}

}  // namespace headrace
