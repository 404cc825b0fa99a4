// JSON Schema's formats as expressions (pattern.h), and those that pydantic adds.
#include <algorithm>
#include <array>

#include "runtime/grammar/pattern.h"

namespace headrace {
namespace {

struct Format {
  std::string_view name, pattern;
};
// A date has its month's days; 29 February is left out, because it depends on the year.
#define HEADRACE_DATE \
  "[0-9]{4}-((0[13578]|1[02])-(0[1-9]|[12][0-9]|3[01])|(0[469]|11)-(0[1-9]|[12][0-9]|30)|02-(0[1-9]|1[0-9]|2[0-8]))"
#define HEADRACE_TIME "([01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](\\.[0-9]{1,9})?(Z|[+-]([01][0-9]|2[0-3]):[0-5][0-9])"
#define HEADRACE_BYTE "(25[0-5]|2[0-4][0-9]|1[0-9][0-9]|[1-9]?[0-9])"
#define HEADRACE_PATH "[a-zA-Z0-9._~!$&'()*+,;=:@-]"
#define HEADRACE_LABEL "[a-zA-Z0-9]([a-zA-Z0-9-]{0,61}[a-zA-Z0-9])?"
#define HEADRACE_UUID(version) \
  "^[0-9a-fA-F]{8}-[0-9a-fA-F]{4}-" version "[0-9a-fA-F]{3}-[89abAB][0-9a-fA-F]{3}-[0-9a-fA-F]{12}$"
#define HEADRACE_EMAIL "^[a-zA-Z0-9_+-]+(\\.[a-zA-Z0-9_+-]+){0,8}@" HEADRACE_LABEL "(\\." HEADRACE_LABEL "){1,3}$"
#define HEADRACE_HOST "^" HEADRACE_LABEL "(\\." HEADRACE_LABEL "){0,3}$"
#define HEADRACE_URI                                                                                            \
  "^[a-z][a-z0-9+.-]{1,15}:(//" HEADRACE_LABEL "(\\." HEADRACE_LABEL "){0,3}(:[1-9][0-9]{0,4})?|" HEADRACE_PATH \
  "+)(/" HEADRACE_PATH "*)*(\\?[a-zA-Z0-9._~!$&'()*+,;=:@/-]*)?(#[a-zA-Z0-9._~!$&'()*+,;=:@/-]*)?$"
constexpr auto kFormats = std::to_array<Format>({
    {"date", "^" HEADRACE_DATE "$"},
    {"time", "^" HEADRACE_TIME "$"},
    {"date-time", "^" HEADRACE_DATE "T" HEADRACE_TIME "$"},
    {"duration",
     "^P([0-9]{1,9}W|([0-9]{1,9}D)?T([0-9]{1,9}H([0-9]{1,9}M)?([0-9]{1,9}S)?|[0-9]{1,9}M([0-9]{1,9}S)?|[0-9]{1,9}S)|"
     "[0-9]{1,9}D)$"},
    {"uuid", "^[0-9a-fA-F]{8}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{12}$"},
    {"uuid1", HEADRACE_UUID("1")},
    {"uuid3", HEADRACE_UUID("3")},
    {"uuid4", HEADRACE_UUID("4")},
    {"uuid5", HEADRACE_UUID("5")},
    {"uuid7", HEADRACE_UUID("7")},
    {"ipv4", "^" HEADRACE_BYTE "(\\." HEADRACE_BYTE "){3}$"},
    {"ipv6", "^[0-9a-fA-F]{1,4}(:[0-9a-fA-F]{1,4}){7}$"},
    {"hostname", HEADRACE_HOST},
    {"idn-hostname", HEADRACE_HOST},
    {"email", HEADRACE_EMAIL},
    {"idn-email", HEADRACE_EMAIL},
    {"uri", HEADRACE_URI},
    {"uri-reference", HEADRACE_URI},
    {"iri", HEADRACE_URI},
    {"iri-reference", HEADRACE_URI},
    {"base64", "^([A-Za-z0-9+/]{4})*([A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=)?$"},
    {"base64url", "^([A-Za-z0-9_-]{4})*([A-Za-z0-9_-]{2}==|[A-Za-z0-9_-]{3}=)?$"},
    {"binary", ""},
    {"password", ""},
    {"path", ""},
});
#undef HEADRACE_DATE
#undef HEADRACE_TIME
#undef HEADRACE_BYTE
#undef HEADRACE_PATH
#undef HEADRACE_LABEL
#undef HEADRACE_UUID
#undef HEADRACE_EMAIL
#undef HEADRACE_HOST
#undef HEADRACE_URI

}  // namespace

std::optional<std::string_view> format_pattern(std::string_view format) {
  const auto found =
      std::find_if(kFormats.begin(), kFormats.end(), [format](const Format& f) { return f.name == format; });
  return found == kFormats.end() ? std::nullopt : std::optional(found->pattern);
}

std::string format_names() {
  std::string names;
  for (const Format& format : kFormats) names += (names.empty() ? "" : ", ") + std::string(format.name);
  return names;
}

}  // namespace headrace
