#include "runtime/grammar/token_masks.h"

#include <gtest/gtest.h>

#include <random>
#include <set>
#include <string>
#include <vector>

#include "runtime/base/utf8.h"
#include "runtime/grammar/schema.h"
#include "tests/support/json_schema.h"

namespace headrace {
namespace {

// Every byte is a token, and so are pieces of JSON, marks (special) and an end. `vocab` has more ids than the
// tokenizer.
struct Words {
  explicit Words(uint64_t seed) : tokenizer(make(seed)), trie(tokenizer, tokenizer.size() + 5) {
    end = tokenizer.find("<end>");
  }
  static Tokenizer make(uint64_t seed) {
    Vocabulary v;
    v.source = "words";
    v.model = "llama";
    v.tokens = {"<unk>", "<s>", "</s>"};
    v.types = {2, 3, 3};
    for (int byte = 0; byte < 256; ++byte) {
      char name[8];
      snprintf(name, sizeof(name), "<0x%02X>", byte);
      v.tokens.emplace_back(name);
      v.types.push_back(6);
    }
    std::set<std::string> words = {"{\"", "\":", "\",", "\"}", "\"a\":", "true", "null", "name", "]}", "\xc3\xa4",
                                   "-1",  "10",  "0.",  "},{", "\\\"",   "\n ",  "th",   "</",   ">{"};
    std::mt19937_64 random(seed);
    const std::string letters = "{}[]\":,\\ntrue0123.-eadmi \xc3\xb6";
    while (words.size() < 600) {
      std::string word;
      for (uint64_t i = 2 + random() % 4; i > 0; --i) word += letters[random() % letters.size()];
      if (word.find(' ') == std::string::npos && is_utf8(word)) words.insert(word);
    }
    for (const std::string& word : words) {
      v.tokens.push_back(word);
      v.types.push_back(1);
    }
    for (const char* const special : {"<think>", "</think>", "<end>", "<other>"}) {
      v.tokens.emplace_back(special);
      v.types.push_back(3);
    }
    v.scores.assign(v.tokens.size(), 0);
    v.bos = 1;
    v.eos = 2;
    v.unk = 0;
    return Tokenizer::from_vocabulary(v);
  }
  Tokenizer tokenizer;
  TokenTrie trie;
  int32_t end;
};

bool has_bit(const TokenMask& mask, int32_t token) {
  return (mask[static_cast<size_t>(token) / 32] >> (token % 32) & 1) != 0;
}

// Whether a token may follow, by its bytes alone.
bool may_follow(const Words& words, const Grammar& grammar, Automaton* automaton, GrammarState state, int32_t token) {
  if (token == words.end) return automaton->complete(state);
  if (token >= words.tokenizer.size() || words.trie.bytes(token).empty()) return false;
  if (!words.tokenizer.is_special(token)) return automaton->after(state, words.trie.bytes(token)) != kDeadState;
  bool thinks = false;
  for (const int32_t stack : automaton->stacks(state))
    thinks = thinks || automaton->stack(stack).node >= grammar.thinking;
  return thinks && automaton->after(state, words.trie.bytes(token)) != kDeadState;
}

// Walks random texts of random schemas and compares each mask with what each token does.
TEST(TokenMasks, AreThoseOfEachToken) {
  std::mt19937_64 random(11);
  for (int i = 0; i < 40; ++i) {
    const Words words(static_cast<uint64_t>(i));
    const testing_support::SchemaJson schema = testing_support::random_schema(&random, 3);
    Grammar grammar = i == 0 ? *json_object_grammar() : *schema_grammar(schema.dump(), "schema.json");
    if (i % 3 == 1) grammar = behind_thinking(grammar, "<think>", "</think>");
    if (i % 3 == 2) grammar = behind_thinking(grammar, "", "</think>");
    TokenMasks masks(grammar, words.trie, {words.end});
    Automaton automaton(grammar);
    GrammarState state = masks.start(), expected = automaton.start();
    for (int step = 0; step < 60; ++step) {
      const TokenMask mask = masks.mask(state);
      std::vector<int32_t> next;
      for (int32_t token = 0; token < words.trie.vocab(); ++token) {
        const bool may = may_follow(words, grammar, &automaton, expected, token);
        ASSERT_EQ(has_bit(mask, token), may) << schema << " step " << step << " token " << token;
        if (may && token != words.end) next.push_back(token);
      }
      if (next.empty()) {
        EXPECT_TRUE(masks.complete(state)) << schema;
        break;
      }
      const int32_t close = words.tokenizer.find("</think>");
      const int32_t token = step == 5 && has_bit(mask, close) ? close : next[random() % next.size()];
      state = masks.after(state, token);
      expected = automaton.after(expected, words.trie.bytes(token));
      ASSERT_NE(state, kDeadState);
    }
  }
}

// A string of bounded length: masks of long rests are shared, those near its end are exact.
TEST(TokenMasks, CountTheCharactersOfAToken) {
  const Words words(7);
  const Grammar grammar = *schema_grammar(R"({"type": "string", "minLength": 30, "maxLength": 60})", "schema.json");
  TokenMasks masks(grammar, words.trie, {words.end});
  Automaton automaton(grammar);
  GrammarState state = masks.after(masks.start(), words.tokenizer.find("<0x22>"));
  std::string text = "\"";
  for (int length = 0; length <= 60; ++length) {
    const TokenMask mask = masks.mask(state);
    const GrammarState here = automaton.after(automaton.start(), text);
    for (int32_t token = 0; token < words.trie.vocab(); ++token) {
      ASSERT_EQ(has_bit(mask, token), may_follow(words, grammar, &automaton, here, token)) << length << " " << token;
    }
    state = masks.after(state, words.tokenizer.find("<0x61>"));
    text += 'a';
  }
  EXPECT_EQ(state, kDeadState);
}

TEST(TokenMasks, AnEndIsTheLast) {
  const Words words(1);
  TokenMasks masks(*schema_grammar(R"({"const": true})", "schema.json"), words.trie, {words.end});
  EXPECT_EQ(masks.after(masks.start(), words.end), kDeadState);
  const GrammarState complete = masks.after(masks.start(), words.tokenizer.find("true"));
  EXPECT_TRUE(masks.complete(complete));
  EXPECT_EQ(masks.after(complete, words.end), complete);
  EXPECT_EQ(masks.after(complete, words.tokenizer.find("null")), kDeadState);
  EXPECT_EQ(masks.after(complete, words.tokenizer.size() + 1), kDeadState);
}

}  // namespace
}  // namespace headrace
