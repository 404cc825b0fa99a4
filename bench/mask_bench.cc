// What an answer by a schema costs the host: its grammar, and the mask of each token, with a vocabulary of 151,936
// tokens: the pieces of a tokenizer.json and pairs of them. Processor time of one thread, so that other work on the
// machine counts less.
#include <algorithm>
#include <ctime>
#include <fstream>
#include <map>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "bench/program.h"
#include "runtime/base/input_file.h"
#include "runtime/base/utf8.h"
#include "runtime/grammar/schema.h"
#include "runtime/grammar/token_masks.h"

namespace headrace {
namespace {

using nlohmann::ordered_json;

double cpu_ms() {
  timespec time = {};
  ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return 1e3 * static_cast<double>(time.tv_sec) + 1e-6 * static_cast<double>(time.tv_nsec);
}

// SentencePiece writes a space so.
std::string piece_of(std::string text) {
  for (size_t at = 0; (at = text.find(' ', at)) != std::string::npos;) text.replace(at, 1, "\u2581");
  return text;
}

Tokenizer large_tokenizer(const std::string& path, size_t tokens) {
  const Tokenizer small = Tokenizer::from_json(read_small_file(path, uint64_t{1} << 24), path);
  std::vector<std::string> pieces;
  for (int32_t id = 0; id < small.size(); ++id) {
    const std::string bytes = small.token_bytes(id);
    if (!bytes.empty() && !small.is_special(id) && is_utf8(bytes)) pieces.push_back(bytes);
  }
  Vocabulary v;
  v.source = path;
  v.model = "llama";
  v.tokens = {"<unk>", "<s>", "</s>"};
  v.types = {2, 3, 3};
  for (int byte = 0; byte < 256; ++byte) {
    char name[8];
    std::snprintf(name, sizeof(name), "<0x%02X>", byte);
    v.tokens.emplace_back(name);
    v.types.push_back(6);
  }
  std::set<std::string> known;
  const auto add = [&](const std::string& text) {
    if (v.tokens.size() >= tokens || !known.insert(text).second) return;
    v.tokens.push_back(piece_of(text));
    v.types.push_back(1);
  };
  for (const std::string& piece : pieces) add(piece);
  std::mt19937_64 random(1);
  while (v.tokens.size() < tokens) add(pieces[random() % pieces.size()] + pieces[random() % pieces.size()]);
  v.scores.assign(v.tokens.size(), 0);
  v.bos = 1;
  v.eos = 2;
  v.unk = 0;
  return Tokenizer::from_vocabulary(v);
}

struct Work {
  std::string name, schema;
  std::vector<std::string> answers;
};

std::vector<Work> all_work() {
  const std::string person =
      R"({"type":"object","properties":{"name":{"type":"string","maxLength":40},"age":{"type":"integer","minimum":0,)"
      R"("maximum":150},"email":{"type":"string","format":"email"},"role":{"enum":["author","editor","reader"]}},)"
      R"("required":["name","age","email","role"],"additionalProperties":false})";
  const std::string story =
      R"({"summary":"The river was low in the summer of that year, and the mill stood still for nine weeks.",)";
  return {
      {"one object",
       person,
       {R"({"name": "Ada Lovelace", "age": 36, "email": "ada@example.org", "role": "author"})",
        R"({"name": "Grace Hopper", "age": 85, "email": "grace.hopper@navy.example.com", "role": "editor"})"}},
      {"a list of objects",
       R"({"type":"array","items":)" + person + "}",
       {R"([{"name":"A","age":1,"email":"a@b.de","role":"author"},{"name":"Bob","age":22,"email":"b@c.de","role":"reader"}])",
        R"([{"name":"Charles B.","age":79,"email":"cb@engine.co.uk","role":"editor"}])"}},
      {"a union with texts",
       R"({"oneOf":[{"type":"object","properties":{"kind":{"const":"note"},"summary":{"type":"string"},)"
       R"("tags":{"type":"array","items":{"type":"string","pattern":"^[a-z-]+$","maxLength":20}}},)"
       R"("required":["kind","summary"]},{"type":"object","properties":{"kind":{"const":"price"},)"
       R"("amount":{"type":"number","multipleOf":0.01,"minimum":0}},"required":["kind","amount"]}]})",
       {R"({"kind":"note",)" + story.substr(1) + R"("tags":["water","dry-years"]})",
        R"({"kind": "price", "amount": 1249.95})"}},
      {"any object",
       "",
       {story + R"("places":[{"name":"Ulm","km":[1,2.5,3e2]},{"name":"Bonn","km":[]}],"open":true,"next":null})",
        R"({"a": {"b": {"c": [1, 2, {"d": "e"}]}}, "text": "Any words may be here, with \"quotes\" in them."})"}}};
}

ordered_json spread(std::vector<double> ms) {
  std::sort(ms.begin(), ms.end());
  double sum = 0;
  for (const double one : ms) sum += one;
  const auto at = [&](double part) { return ms[static_cast<size_t>(part * static_cast<double>(ms.size() - 1))]; };
  const auto rounded = [](double value) { return std::round(1e5 * value) / 1e5; };
  return {{"count", ms.size()},
          {"mean", rounded(sum / static_cast<double>(ms.size()))},
          {"median", rounded(at(0.5))},
          {"p95", rounded(at(0.95))},
          {"max", rounded(ms.back())}};
}

// Takes the longest token of the vocabulary that the answer goes on with, and the mask before each.
std::vector<double> walk(const std::string& answer, const std::map<std::string, int32_t>& ids, size_t longest,
                         TokenMasks* masks) {
  std::vector<double> ms;
  GrammarState state = masks->start();
  for (size_t at = 0; at < answer.size();) {
    int32_t token = -1;
    size_t length = std::min(longest, answer.size() - at);
    for (; token < 0; --length) {
      const auto found = ids.find(answer.substr(at, length));
      if (found != ids.end()) token = found->second;
      if (token >= 0) break;
    }
    const double begin = cpu_ms();
    const TokenMask& mask = masks->mask(state);
    const bool may = (mask[static_cast<size_t>(token) / 32] >> (token % 32) & 1) != 0;
    state = masks->after(state, token);
    ms.push_back(cpu_ms() - begin);
    CHECK(may && state != kDeadState, "the answer ", answer, " is not valid at ", at);
    at += length;
  }
  CHECK(masks->complete(state), "the answer ", answer, " is incomplete");
  return ms;
}

ordered_json measure(const Work& work, const TokenTrie& trie, const std::map<std::string, int32_t>& ids,
                     int32_t rounds) {
  std::vector<double> grammar_ms, first, second, again;
  for (int32_t round = 0; round < rounds; ++round) {
    const double begin = cpu_ms();
    const auto grammar = work.schema.empty() ? json_object_grammar() : schema_grammar(work.schema, work.name);
    TokenMasks masks(*grammar, trie, {2});
    grammar_ms.push_back(cpu_ms() - begin);
    const auto longest = static_cast<size_t>(trie.longest());
    const auto add = [&](std::vector<double>* all, const std::string& answer) {
      const std::vector<double> ms = walk(answer, ids, longest, &masks);
      all->insert(all->end(), ms.begin(), ms.end());
    };
    add(&first, work.answers[0]);
    add(&second, work.answers[1]);
    add(&again, work.answers[0]);
  }
  return {{"work", work.name},
          {"grammar_ms", spread(grammar_ms)},
          {"first_answer_ms_per_token", spread(first)},
          {"another_answer_ms_per_token", spread(second)},
          {"the_first_again_ms_per_token", spread(again)}};
}

}  // namespace
}  // namespace headrace

int main(int argc, char** argv) {
  using namespace headrace;
  CLI::App app("The cost of masks by a schema on the host", "mask_bench");
  std::string tokenizer_path, machine;
  int64_t tokens = 151936;
  int32_t rounds = 5;
  app.add_option("--tokenizer", tokenizer_path, "A tokenizer.json, whose pieces the vocabulary is made of")->required();
  app.add_option("--tokens", tokens)->check(CLI::Range(4096, 1 << 20))->capture_default_str();
  app.add_option("--rounds", rounds)->check(CLI::Range(1, 1000))->capture_default_str();
  app.add_option("--machine", machine, "What the result calls this machine");
  return bench::run_program(app, argc, argv, [&]() -> ordered_json {
    const Tokenizer tokenizer = large_tokenizer(tokenizer_path, static_cast<size_t>(tokens));
    const double begin = cpu_ms();
    const TokenTrie trie(tokenizer, tokenizer.size());
    const double trie_ms = cpu_ms() - begin;
    std::map<std::string, int32_t> ids;
    for (int32_t id = 0; id < tokenizer.size(); ++id) {
      if (!tokenizer.is_special(id) && !trie.bytes(id).empty()) ids.emplace(trie.bytes(id), id);
    }
    ordered_json result = {{"program", "bench/mask_bench"},
                           {"machine", machine},
                           {"clock", "processor time of the thread"},
                           {"tokens", tokenizer.size()},
                           {"tree_of_tokens_ms", std::round(100 * trie_ms) / 100},
                           {"rounds", rounds},
                           {"work", ordered_json::array()}};
    for (const Work& work : all_work()) result["work"].push_back(measure(work, trie, ids, rounds));
    return result;
  });
}
