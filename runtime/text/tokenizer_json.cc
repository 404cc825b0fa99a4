// Reads tokenizer.json, as written by the Hugging Face `tokenizers` library. Unsupported settings are errors that name
// the value: an approximate tokenizer would silently give wrong text. "truncation" and "padding" are settings of the
// training run and do not apply here.
#include <algorithm>

#include "cache/base.h"
#include "runtime/base/json_file.h"
#include "runtime/base/utf8.h"
#include "runtime/text/json_fields.h"
#include "runtime/text/tokenizer_impl.h"

namespace headrace {

namespace {

[[noreturn]] void unsupported(const JsonField& field, const std::string& type) {
  field.refuse(str("'", type, "' is not supported"));
}

// The elements of a Sequence, or the single element; nothing for null.
std::vector<JsonField> flatten(const JsonField& parent, const char* key, const char* list) {
  std::vector<JsonField> out;
  if (!parent.has(key)) return out;
  const JsonField field = parent.at(key);
  if (field.at("type").string() != "Sequence") return {field};
  const JsonField items = field.at(list);
  for (size_t i = 0; i < items.array_size(); ++i) {
    out.push_back(items.item(i));
    if (out.back().at("type").string() == "Sequence") unsupported(out.back().at("type"), "Sequence in a Sequence");
  }
  return out;
}

class JsonLoader {
 public:
  JsonLoader(const Json& json, const std::string& source, SpecialNames names) : root_(json, source) {
    parts_.source = source;
    parts_.special_names = std::move(names);
  }

  TokenizerParts load() {
    const JsonField model = root_.at("model");
    const std::string type = model.string_or("type", "BPE");  // absent in old files
    if (type != "BPE") unsupported(model.at("type"), type);
    read_pre_tokenizer();
    read_normalizer();
    read_decoder();
    read_vocabulary(model.at("vocab"));
    read_added_tokens();
    read_model(model);
    read_post_processor();
    find_end();
    return std::move(parts_);
  }

 private:
  void read_vocabulary(const JsonField& vocabulary);
  void read_added_tokens();
  AddedToken read_added_token(const JsonField& field) const;
  void read_model(const JsonField& model);
  void read_merges(const JsonField& merges);
  void read_normalizer();
  void read_pre_tokenizer();
  void read_split(const JsonField& field);
  SplitRule::Behavior behavior_of(const JsonField& field) const;
  void add_split(std::string_view pattern, const JsonField& field,
                 SplitRule::Behavior behavior = SplitRule::kIsolated) {
    parts_.splits.push_back({Regex(pattern, Regex::Syntax::kPattern, field.source()), behavior});
  }
  void read_byte_level(const JsonField& field);
  void read_metaspace(const JsonField& field);
  void read_decoder();
  void read_decoder_step(const JsonField& field);
  void read_post_processor();
  void read_template(const JsonField& field);
  void find_end();
  int32_t checked_id(const JsonField& field, size_t tokens) const;
  void place(int32_t id, const std::string& name, const JsonField& field);

  JsonField root_;
  TokenizerParts parts_;
  std::unordered_map<std::string, int32_t> ids_;
  std::vector<int32_t> no_words_;  // added tokens that the model never makes from text: special, or not its own
  std::vector<NormalizerStep> normalizer_;
};

int32_t JsonLoader::checked_id(const JsonField& field, size_t tokens) const {
  const int64_t id = field.integer();
  const auto limit = static_cast<int64_t>(2 * tokens) + kMaxIdGap;
  if (id < 0 || id >= std::min<int64_t>(limit, INT32_MAX))
    field.refuse(str("is ", id, ", out of range for ", tokens, " tokens"));
  return static_cast<int32_t>(id);
}

void JsonLoader::place(int32_t id, const std::string& name, const JsonField& field) {
  const auto index = static_cast<size_t>(id);
  if (parts_.names.size() <= index) parts_.names.resize(index + 1);
  std::string& there = parts_.names[index];
  if (!there.empty() && there != name) field.refuse(str("has id ", id, ", which '", there, "' has too"));
  there = name;
  ids_[name] = id;
}

void JsonLoader::read_vocabulary(const JsonField& vocabulary) {
  if (!vocabulary.json().is_object()) vocabulary.refuse("is not an object");
  const size_t count = vocabulary.json().size();
  if (count == 0) vocabulary.refuse("has no tokens");
  for (const auto& [name, value] : vocabulary.json().items()) {
    const JsonField field(value, vocabulary.source(), str(vocabulary.path(), "['", name, "']"));
    if (name.empty()) field.refuse("is an empty token");
    place(checked_id(field, count), name, field);
  }
}

AddedToken JsonLoader::read_added_token(const JsonField& field) const {
  AddedToken token;
  token.id = checked_id(field.at("id"), parts_.names.size());
  token.content = field.at("content").string();
  token.special = field.boolean_or("special", false);
  token.normalized = field.boolean_or("normalized", !token.special);
  token.single_word = field.boolean_or("single_word", false);
  token.lstrip = field.boolean_or("lstrip", false);
  token.rstrip = field.boolean_or("rstrip", false);
  return token;
}

void JsonLoader::read_added_tokens() {
  if (!root_.has("added_tokens")) return;
  const JsonField list = root_.at("added_tokens");
  for (size_t i = 0; i < list.array_size(); ++i) {
    const JsonField field = list.item(i);
    AddedToken token = read_added_token(field);
    if (token.content.empty()) field.at("content").refuse("is empty");
    const auto known = ids_.find(token.content);
    if (known != ids_.end() && known->second != token.id)
      field.refuse(str("gives '", token.content, "' the id ", token.id, ", but it has ", known->second));
    const MarkedText text{token.content, std::string(token.content.size(), 0)};
    if (token.normalized && parts_.normalizer.apply(text).text.empty()) field.refuse("is normalized to nothing");
    if (known == ids_.end() || token.special) no_words_.push_back(token.id);
    place(token.id, token.content, field);
    parts_.added.push_back(std::move(token));
  }
}

void JsonLoader::read_merges(const JsonField& merges) {
  std::vector<NamedMerge> named;
  for (size_t i = 0; i < merges.array_size(); ++i) {
    const JsonField merge = merges.item(i);
    if (merge.json().is_array()) {
      if (merge.array_size() != 2) merge.refuse(str("has ", merge.array_size(), " parts, not 2"));
      named.push_back({merge.item(0).string(), merge.item(1).string()});
      continue;
    }
    const std::string_view text = merge.string();
    const size_t space = text.find(' ');
    if (space == std::string_view::npos || text.find(' ', space + 1) != std::string_view::npos)
      merge.refuse(str("is '", text, "', not two tokens with a space between"));
    named.push_back({text.substr(0, space), text.substr(space + 1)});
  }
  define_merges(named, &parts_, ids_);
}

void JsonLoader::read_model(const JsonField& model) {
  if (model.has("dropout") && model.at("dropout").json() != 0) model.at("dropout").refuse("is not supported");
  for (const char* key : {"continuing_subword_prefix", "end_of_word_suffix"})
    if (!model.string_or(key, "").empty()) unsupported(model.at(key), model.at(key).string());
  BpeDefinition& bpe = parts_.bpe;
  bpe.ignore_merges = model.boolean_or("ignore_merges", false);
  bpe.byte_fallback = model.boolean_or("byte_fallback", false);
  bpe.fuse_unk = model.boolean_or("fuse_unk", false);
  if (model.has("unk_token")) {
    const auto unk = ids_.find(model.at("unk_token").string());
    if (unk == ids_.end())
      model.at("unk_token").refuse(str("is '", model.at("unk_token").string(), "', which is not in the vocabulary"));
    bpe.unk = unk->second;
  }
  std::vector<bool> excluded(parts_.names.size());
  for (const int32_t id : no_words_) excluded[static_cast<size_t>(id)] = true;
  define_words(excluded, &parts_);
  read_merges(model.at("merges"));
}

void JsonLoader::read_normalizer() {
  for (const JsonField& step : flatten(root_, "normalizer", "normalizers")) {
    const std::string& type = step.at("type").string();
    if (type == "NFC") {
      normalizer_.push_back({NormalizerStep::kNfc, "", ""});
    } else if (type == "Prepend") {
      normalizer_.push_back({NormalizerStep::kPrepend, "", step.at("prepend").string()});
    } else if (type == "Replace") {
      const JsonField pattern = step.at("pattern");
      if (!pattern.has("String")) pattern.refuse("is not a String: only those are supported here");
      const std::string &text = pattern.at("String").string(), &content = step.at("content").string();
      if (text.empty()) pattern.at("String").refuse("is empty");
      if (parts_.prefix_rule == PrefixRule::kFirst && (content.empty() || text.size() > utf8_length(text[0])))
        unsupported(step.at("type"), "Replace that shortens, beside a Metaspace with prepend_scheme first");
      normalizer_.push_back({NormalizerStep::kReplace, text, content});
    } else {
      unsupported(step.at("type"), type);
    }
  }
  parts_.normalizer = Normalizer(std::move(normalizer_));
}

void JsonLoader::read_split(const JsonField& field) {
  const JsonField pattern = field.at("pattern");
  const bool literal = pattern.has("String");
  const JsonField text = pattern.at(literal ? "String" : "Regex");
  parts_.splits.push_back({Regex(text.string(), literal ? Regex::Syntax::kLiteral : Regex::Syntax::kPattern,
                                 str(field.source(), ": ", text.path())),
                           behavior_of(field), field.boolean_or("invert", false)});
}

SplitRule::Behavior JsonLoader::behavior_of(const JsonField& field) const {
  constexpr const char* kNames[] = {"Isolated", "Removed", "MergedWithPrevious", "MergedWithNext", "Contiguous"};
  const std::string& name = field.at("behavior").string();
  const auto found = std::find(std::begin(kNames), std::end(kNames), name);
  if (found == std::end(kNames)) unsupported(field.at("behavior"), name);
  return static_cast<SplitRule::Behavior>(found - std::begin(kNames));
}

void JsonLoader::read_byte_level(const JsonField& field) {
  parts_.bpe.byte_level = true;
  if (field.boolean_or("add_prefix_space", true)) {
    if (!parts_.splits.empty()) unsupported(field.at("type"), "ByteLevel with add_prefix_space after a split");
    parts_.prefix_rule = PrefixRule::kAlways;
    parts_.prefix = ' ';
  }
  if (field.boolean_or("use_regex", true)) add_split(kGpt2Pattern, field);
}

void JsonLoader::read_metaspace(const JsonField& field) {
  const std::string replacement = field.string_or("replacement", kMetaspace);
  if (replacement != kMetaspace) unsupported(field.at("replacement"), replacement);
  const std::string scheme =
      field.string_or("prepend_scheme", field.boolean_or("add_prefix_space", true) ? "always" : "never");
  if (scheme != "always" && scheme != "first" && scheme != "never") unsupported(field.at("prepend_scheme"), scheme);
  parts_.prefix_rule = scheme == "always"  ? PrefixRule::kAlways
                       : scheme == "first" ? PrefixRule::kFirst
                                           : PrefixRule::kNever;
  parts_.prefix = kMetaspace;
  parts_.metaspace = true;
  if (field.boolean_or("split", true)) add_split(str(kMetaspace, "[^", kMetaspace, "]*"), field);
}

void JsonLoader::read_pre_tokenizer() {
  const std::vector<JsonField> steps = flatten(root_, "pre_tokenizer", "pretokenizers");
  for (size_t i = 0; i < steps.size(); ++i) {
    const std::string& type = steps[i].at("type").string();
    if (parts_.bpe.byte_level) unsupported(steps[i].at("type"), str(type, " after ByteLevel"));
    if (type == "ByteLevel") {
      read_byte_level(steps[i]);
    } else if (type == "Split") {
      read_split(steps[i]);
    } else if (type == "Digits") {
      const bool one = steps[i].boolean_or("individual_digits", false);
      add_split(one ? "\\p{N}" : "\\p{N}+", steps[i]);
    } else if (type == "Punctuation") {
      add_split("[\\p{P}$+<=>^`|~]", steps[i], behavior_of(steps[i]));
    } else if (type == "Metaspace" && steps.size() == 1) {
      read_metaspace(steps[i]);
    } else {
      unsupported(steps[i].at("type"), type);
    }
  }
}

void JsonLoader::read_decoder_step(const JsonField& field) {
  const std::string& type = field.at("type").string();
  DecoderParts& decoder = parts_.decoder;
  if (type == "ByteLevel") {
    decoder.byte_level = true;
  } else if (type == "Replace") {
    const JsonField pattern = field.at("pattern");
    if (!pattern.has("String")) pattern.refuse("is not a String: only those are supported here");
    if (pattern.at("String").string().empty()) pattern.at("String").refuse("is empty");
    decoder.replacements.emplace_back(pattern.at("String").string(), field.at("content").string());
  } else if (type == "ByteFallback") {
    decoder.byte_fallback = true;
  } else if (type == "Strip") {
    if (field.at("stop").integer() != 0) unsupported(field.at("stop"), "Strip at the end");
    const int64_t count = field.at("start").integer();
    if (count < 0 || count > 1000) field.at("start").refuse(str("is ", count));
    decoder.strip = field.at("content").string();
    if (decoder.strip.empty()) field.at("content").refuse("is empty");
    decoder.strip_count = static_cast<size_t>(count);
  } else if (type != "Fuse") {
    unsupported(field.at("type"), type);
  }
}

// Only one order makes sense: in each token Replace, then ByteFallback; Fuse; then Strip on the whole text.
void JsonLoader::read_decoder() {
  const std::vector<JsonField> steps = flatten(root_, "decoder", "decoders");
  if (steps.empty()) root_.refuse("has no decoder");
  const std::vector<std::string> order = {"ByteLevel", "Replace", "ByteFallback", "Fuse", "Strip"};
  size_t last = 0;
  bool fused = false;
  for (const JsonField& step : steps) {
    const std::string& type = step.at("type").string();
    const auto rank = static_cast<size_t>(std::find(order.begin(), order.end(), type) - order.begin());
    if (rank < last || (last == 0 && &step != &steps[0]) || (type == "Strip" && !fused))
      unsupported(step.at("type"), str(type, " in this place"));
    fused |= type == "Fuse";
    last = rank;
    read_decoder_step(step);
  }
}

void JsonLoader::read_template(const JsonField& field) {
  const JsonField single = field.at("single");
  bool seen_text = false;
  for (size_t i = 0; i < single.array_size(); ++i) {
    const JsonField item = single.item(i);
    if (item.has("Sequence")) {
      if (seen_text) item.refuse("repeats the text");
      seen_text = true;
      continue;
    }
    const std::string& name = item.at("SpecialToken").at("id").string();
    const JsonField ids = field.at("special_tokens").at(name.c_str()).at("ids");
    for (size_t k = 0; k < ids.array_size(); ++k) {
      const int64_t id = ids.item(k).integer();
      if (id < 0 || static_cast<size_t>(id) >= parts_.names.size() || parts_.names[static_cast<size_t>(id)].empty())
        ids.item(k).refuse(str("is ", id, ", which is not a token"));
      (seen_text ? parts_.after : parts_.before).push_back(static_cast<int32_t>(id));
    }
  }
  if (!seen_text) single.refuse("has no place for the text");
}

void JsonLoader::read_post_processor() {
  bool seen = false;
  for (const JsonField& step : flatten(root_, "post_processor", "processors")) {
    const std::string& type = step.at("type").string();
    if (type == "ByteLevel") continue;  // it changes offsets, not ids
    if (type != "TemplateProcessing" || seen) unsupported(step.at("type"), type);
    seen = true;
    read_template(step);
  }
}

// This file does not name the tokens that begin and end a text; files beside it may.
void JsonLoader::find_end() {
  if (!parts_.before.empty()) parts_.bos = parts_.before[0];
  if (!parts_.after.empty()) parts_.eos = parts_.after[0];
  for (const auto& [name, token] : parts_.special_names) {
    const auto found = ids_.find(token);
    if (found == ids_.end()) continue;
    if (name == "bos_token") parts_.bos = found->second;
    if (name == "eos_token") parts_.eos = found->second;
  }
  for (const char* name : {"<|im_end|>", "<|eot_id|>", "</s>", "<|end_of_text|>", "<|endoftext|>"}) {
    const auto found = ids_.find(name);
    if (parts_.eos < 0 && found != ids_.end()) parts_.eos = found->second;
  }
}

}  // namespace

Tokenizer Tokenizer::from_json(std::string_view json, const std::string& source, SpecialNames names) {
  const Json parsed = parse_json(json, source);
  return Tokenizer(std::make_unique<Impl>(JsonLoader(parsed, source, std::move(names)).load()));
}

}  // namespace headrace
