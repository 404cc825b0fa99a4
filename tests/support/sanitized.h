// Whether this is a build with AddressSanitizer or ThreadSanitizer, which slow a test down by a factor of five to
// thirty: tables may be smaller there, because the full ones run without.
#pragma once

namespace headrace::testing {

#if defined(__has_feature)  // clang
constexpr bool kSanitized = __has_feature(address_sanitizer) || __has_feature(thread_sanitizer);
#elif defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
constexpr bool kSanitized = true;
#else
constexpr bool kSanitized = false;
#endif

}  // namespace headrace::testing
