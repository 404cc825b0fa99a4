#include "runtime/server/page.h"

#include <string_view>

#include "cache/base.h"
#include "runtime/base/sha256.h"
#include "runtime/server/page_files.h"

namespace headrace {
namespace {

std::string base64(const Digest& digest) {
  constexpr std::string_view kDigits = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::string text;
  for (size_t i = 0; i < digest.size(); i += 3) {
    uint32_t bits = 0;
    for (size_t j = i; j < i + 3; ++j) bits = bits << 8 | (j < digest.size() ? digest[j] : 0u);
    for (int shift = 18; shift >= 0; shift -= 6) text += kDigits[bits >> shift & 63];
  }
  for (size_t i = 0; i < (3 - digest.size() % 3) % 3; ++i) text[text.size() - 1 - i] = '=';
  return text;
}

// What a policy calls an element with this text.
std::string source(std::string_view text) {
  Sha256 sha256;
  sha256.update(text);
  return "'sha256-" + base64(sha256.finish()) + "'";
}

void fill(std::string* html, const std::string& begin, std::string_view text) {
  const size_t at = html->find(begin + "</");
  CHECK(at != std::string::npos, "element=", begin);
  html->insert(at + begin.size(), text);
}

std::string whole_page() {
  std::string html(page_frame());
  fill(&html, "<style>", page_style());
  fill(&html, "<script>", page_script());
  return html;
}

}  // namespace

const std::string& page_html() {
  static const std::string html = whole_page();
  return html;
}

const std::string& page_policy() {
  static const std::string policy =
      str("default-src 'none'; style-src ", source(page_style()), "; script-src ", source(page_script()),
          "; connect-src 'self'; img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'");
  return policy;
}

}  // namespace headrace
