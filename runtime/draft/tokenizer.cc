#include "runtime/draft/tokenizer.h"

#include <algorithm>
#include <filesystem>

#include "cache/base.h"
#include "runtime/base/input_file.h"

namespace headrace {

void check_tokenizer(const Tokenizer& own, const Tokenizer& target, const std::string& draft) {
  for (int32_t id = 0; id < std::min(own.size(), target.size()); ++id) {
    if (own.token_name(id) == target.token_name(id)) continue;
    throw_error(ExitCode::kBadInput, draft,
                str("has another tokenizer than the target: its token ", id, " is \"", printable(own.token_name(id)),
                    "\", the target's is \"", printable(target.token_name(id)), "\""),
                "a draft needs its target's own tokenizer");
  }
}

void check_tokenizer_in(const std::string& folder, const Tokenizer& target) {
  const std::string file = folder + "/tokenizer.json";
  if (!std::filesystem::exists(file)) return;
  check_tokenizer(Tokenizer::from_json(read_small_file(file, kMaxTokenizerBytes), file), target, file);
}

bool only_padding_from(const Tokenizer& tokenizer, int64_t id) {
  for (int64_t token = id; token < tokenizer.size(); ++token) {
    const std::string& name = tokenizer.token_name(static_cast<int32_t>(token));
    if (!name.empty() && name != str("[PAD", token, "]")) return false;  // the name that converters to GGUF give it
  }
  return true;
}

}  // namespace headrace
