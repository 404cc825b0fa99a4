// Whether this is a build with AddressSanitizer or ThreadSanitizer, which make a test take five to thirty times as
// long: its tables may be smaller there, as the whole ones run without.
#pragma once

namespace headrace::testing {

#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
constexpr bool kSanitized = true;
#else
constexpr bool kSanitized = false;
#endif

}  // namespace headrace::testing
