// tokenizer.json from anywhere: an Error(kBadInput) or a tokenizer that encodes and decodes without harm. Behind a zero
// byte in the input stands the text to encode; without one, a fixed text does.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "cache/base.h"
#include "runtime/text/tokenizer.h"

namespace headrace {
namespace {

void check_text(const Tokenizer& tokenizer, std::string_view text) {
  for (SpecialTokens special : {SpecialTokens::kParse, SpecialTokens::kAsText}) {
    const auto ids = tokenizer.encode(text, AddBos::kYes, special);
    for (int32_t id : ids)
      if (id < 0 || id >= tokenizer.size()) std::abort();
    const std::string whole = tokenizer.decode(ids, special);
    StreamingDecoder stream(tokenizer, special);
    std::string parts;
    for (int32_t id : ids) parts += stream.push(id);
    if (parts + stream.finish() != whole) std::abort();
  }
}

void run(std::string_view input) {
  const size_t zero = input.find('\0');
  const std::string_view json = input.substr(0, zero);
  const std::string_view text = zero == std::string_view::npos ? "it's <s>a b</s> 12\n\xff é" : input.substr(zero + 1);
  try {
    check_text(Tokenizer::from_json(json, "fuzz"), text);
  } catch (const Error& error) {
    if (error.code() != ExitCode::kBadInput) std::abort();
  }
}

}  // namespace
}  // namespace headrace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  headrace::run({reinterpret_cast<const char*>(data), size});
  return 0;
}
