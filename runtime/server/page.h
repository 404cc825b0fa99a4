// The page at "/", of the files in page/, compiled in, and the policy that it is sent with. Any thread.
#pragma once

#include <string>

namespace headrace {

const std::string& page_html();
// Content-Security-Policy: the page's own style and script, which are named by their digests, and requests to its
// server.
const std::string& page_policy();

}  // namespace headrace
