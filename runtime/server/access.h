// Who may use a server: keys, and without keys this machine's own programs only. Pure but for reading the key file and
// the look-up of a host name; any thread.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "runtime/server/failure.h"

namespace headrace {

// A key a line; empty lines and spaces around a key are ignored. Throws Error(kBadInput): no file, no key in it, a key
// with other characters than printable ASCII.
std::vector<std::string> read_api_keys(const std::string& path);

// Whether all addresses of a host are of the loopback interface. Throws Error(kUsage) if it has none.
bool is_loopback(const std::string& host);

struct Visitor {  // of a request's header; empty: absent
  std::string path{}, authorization{}, host{}, origin{};
};

// Why the request is not answered. With keys: it has none of them ("/" and "/health" need none). Without: a web page of
// another origin sent it, or its Host is not this machine's, as if a page's name had been pointed to it.
std::optional<Failure> refuse_visitor(const Visitor& visitor, const std::vector<std::string>& keys);

}  // namespace headrace
