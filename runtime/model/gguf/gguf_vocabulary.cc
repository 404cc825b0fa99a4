#include "runtime/model/gguf/gguf_vocabulary.h"

namespace headrace {

Vocabulary gguf_vocabulary(const GgufFile& file) {
  const GgufFields fields(file);
  Vocabulary out;
  out.source = file.source;
  out.model = fields.string_or("tokenizer.ggml.model", "");
  out.pre = fields.string_or("tokenizer.ggml.pre", "");
  out.tokens = fields.strings("tokenizer.ggml.tokens");
  out.types = fields.integers("tokenizer.ggml.token_type");
  out.merges = fields.strings("tokenizer.ggml.merges");
  out.scores = fields.numbers("tokenizer.ggml.scores");
  if (out.model.empty() || out.tokens.empty())
    fields.refuse(out.model.empty() ? "tokenizer.ggml.model" : "tokenizer.ggml.tokens",
                  "is missing: the file has no tokenizer");
  out.bos = fields.token_id("bos_token_id");
  out.eos = fields.token_id("eos_token_id");
  out.eot = fields.token_id("eot_token_id");
  out.unk = fields.token_id("unknown_token_id");
  out.pad = fields.token_id("padding_token_id");
  if (fields.has("tokenizer.ggml.add_bos_token"))
    out.add_bos = fields.boolean_or("tokenizer.ggml.add_bos_token", false);
  if (fields.has("tokenizer.ggml.add_eos_token"))
    out.add_eos = fields.boolean_or("tokenizer.ggml.add_eos_token", false);
  if (fields.has("tokenizer.ggml.add_space_prefix"))
    out.add_space_prefix = fields.boolean_or("tokenizer.ggml.add_space_prefix", false);
  return out;
}

}  // namespace headrace
