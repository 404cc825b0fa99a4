#include "runtime/engine/result.h"

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

bool same_answer(const GenerateResult& a, const GenerateResult& b) {
  return a.token_ids == b.token_ids && a.finish_reason == b.finish_reason;
}

}  // namespace headrace
