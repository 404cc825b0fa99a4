#include "runtime/speculation/verify_options.h"

namespace headrace {

const char* verify_mode_name(VerifyMode mode) {
  switch (mode) {
    case VerifyMode::kFull:
      return "full";
    case VerifyMode::kLossless:
      return "lossless";
    case VerifyMode::kApproximate:
      return "approximate";
  }
  return "?";
}

}  // namespace headrace
