#include "runtime/generate_result.h"

namespace headrace {

const char* finish_reason_name(FinishReason reason) {
  switch (reason) {
    case FinishReason::kStop:
      return "stop";
    case FinishReason::kLength:
      return "length";
    case FinishReason::kInterrupted:
      return "interrupted";
  }
  return "?";
}

}  // namespace headrace
