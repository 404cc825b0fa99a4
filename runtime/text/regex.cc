#define PCRE2_CODE_UNIT_WIDTH 8
#include "runtime/text/regex.h"

#include <pcre2.h>

#include <cstddef>
#include <new>

#include "cache/base.h"
#include "runtime/base/utf8.h"
#include "runtime/text/oniguruma.h"

namespace headrace {

namespace {

constexpr size_t kMaxPattern = 16384;       // published ones are under 500 bytes
constexpr uint32_t kMatchLimit = 20000000;  // about a second of backtracking
constexpr size_t kJitStack = size_t{8} << 20;

std::string shortened(std::string_view pattern) {
  size_t end = std::min<size_t>(pattern.size(), 120);
  while (end < pattern.size() && (static_cast<uint8_t>(pattern[end]) & 0xC0) == 0x80) --end;
  return std::string(pattern.substr(0, end)) + (end < pattern.size() ? "…" : "");
}

std::string error_text(int code) {
  PCRE2_UCHAR text[256];
  pcre2_get_error_message(code, text, sizeof(text));
  return reinterpret_cast<const char*>(text);
}

}  // namespace

struct Regex::Impl {
  pcre2_code* code = nullptr;
  std::string pattern, shown, source;
  ~Impl() { pcre2_code_free(code); }
};

struct Regex::Scratch::Impl {
  pcre2_match_data* data = pcre2_match_data_create(1, nullptr);
  pcre2_match_context* context = pcre2_match_context_create(nullptr);
  pcre2_jit_stack* stack = pcre2_jit_stack_create(32768, kJitStack, nullptr);
  Impl() : Impl(nullptr) {  // from here on the destructor frees the members
    if (data == nullptr || context == nullptr || stack == nullptr) throw std::bad_alloc();
    pcre2_jit_stack_assign(context, nullptr, stack);
    pcre2_set_match_limit(context, kMatchLimit);
  }
  explicit Impl(std::nullptr_t) {}
  ~Impl() {
    pcre2_jit_stack_free(stack);
    pcre2_match_context_free(context);
    pcre2_match_data_free(data);
  }
};

Regex::Scratch::Scratch() : impl_(std::make_unique<Impl>()) {}
Regex::Scratch::~Scratch() = default;

Regex::Regex(std::string_view pattern, Syntax syntax, const std::string& source) : impl_(std::make_unique<Impl>()) {
  if (syntax == Syntax::kPattern) impl_->pattern = pattern;
  impl_->shown = shortened(pattern);
  impl_->source = source;
  if (pattern.empty()) throw_error(ExitCode::kBadInput, source, "an empty regular expression");
  if (pattern.size() > kMaxPattern)
    throw_error(ExitCode::kBadInput, source,
                str("a regular expression of ", pattern.size(), " bytes (at most ", kMaxPattern, ")"));
  const std::string text =
      syntax == Syntax::kLiteral ? std::string(pattern) : to_pcre2(pattern, [&](const std::string& what) {
        throw_error(ExitCode::kBadInput, source,
                    str("regular expression '", impl_->shown, "': ", what, " is not supported"));
      });
  const uint32_t options =
      syntax == Syntax::kPattern ? PCRE2_UTF | PCRE2_UCP | PCRE2_NEVER_BACKSLASH_C : PCRE2_UTF | PCRE2_LITERAL;
  int error = 0;
  PCRE2_SIZE offset = 0;
  const std::unique_ptr<pcre2_compile_context, void (*)(pcre2_compile_context*)> context(
      pcre2_compile_context_create(nullptr), pcre2_compile_context_free);
  if (context == nullptr) throw std::bad_alloc();
  pcre2_set_newline(context.get(), PCRE2_NEWLINE_LF);
  impl_->code =
      pcre2_compile(reinterpret_cast<PCRE2_SPTR>(text.data()), text.size(), options, &error, &offset, context.get());
  if (error == PCRE2_ERROR_HEAP_FAILED) throw std::bad_alloc();
  if (impl_->code == nullptr)
    throw_error(ExitCode::kBadInput, source,
                str("regular expression '", impl_->shown, "': ", error_text(error), " (near byte ", offset, ")"));
  pcre2_jit_compile(impl_->code, PCRE2_JIT_COMPLETE);  // if it fails, pcre2_match interprets: slower, same result
}

Regex::Regex(Regex&&) noexcept = default;
Regex& Regex::operator=(Regex&&) noexcept = default;
Regex::~Regex() = default;

const std::string& Regex::pattern() const { return impl_->pattern; }

bool Regex::find(std::string_view text, size_t from, Scratch* scratch, Match* match) const {
  const int result = pcre2_match(impl_->code, reinterpret_cast<PCRE2_SPTR>(text.data()), text.size(), from,
                                 PCRE2_NO_UTF_CHECK, scratch->impl_->data, scratch->impl_->context);
  if (result == PCRE2_ERROR_NOMATCH) return false;
  if (result == PCRE2_ERROR_NOMEMORY) throw std::bad_alloc();
  if (result < 0)
    throw_error(
        ExitCode::kBadInput, impl_->source,
        str("regular expression '", impl_->shown, "' on a text of ", text.size(), " bytes: ", error_text(result)));
  const PCRE2_SIZE* range = pcre2_get_ovector_pointer(scratch->impl_->data);
  *match = {range[0], range[1]};
  return true;
}

}  // namespace headrace
