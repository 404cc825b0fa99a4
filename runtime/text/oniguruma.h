// Regular expressions as the reference tokenizer's engine reads them (Oniguruma, its Ruby syntax), written anew for
// PCRE2. A construct whose meaning differs is translated; one that is not known here is refused by name, so that no
// text is cut differently in silence. Pure.
#pragma once

#include <functional>
#include <string>
#include <string_view>

namespace headrace {

// Called with what is not supported ("the class escape \X"); it must throw.
using RefusePattern = std::function<void(const std::string& what)>;

// REQUIRES: `pattern` is UTF-8. The result is for PCRE2_UTF | PCRE2_UCP with the newline LF.
std::string to_pcre2(std::string_view pattern, const RefusePattern& refuse);

}  // namespace headrace
