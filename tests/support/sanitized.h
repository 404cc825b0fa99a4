// Whether this is a build with AddressSanitizer or ThreadSanitizer, which slow a test down by a factor of five to
// thirty: tables may be smaller there, because the full ones run without.
#pragma once

namespace headrace::testing {

#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
constexpr bool kSanitized = true;
#else
constexpr bool kSanitized = false;
#endif

}  // namespace headrace::testing
