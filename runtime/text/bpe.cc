#include "runtime/text/bpe.h"

#include <algorithm>

#include "cache/base.h"
#include "runtime/base/utf8.h"

namespace headrace {

namespace {

uint64_t pair_key(int32_t left, int32_t right) {
  return static_cast<uint64_t>(static_cast<uint32_t>(left)) << 32 | static_cast<uint32_t>(right);
}

uint64_t mix(uint64_t x) {
  x *= 0x9E3779B97F4A7C15u;
  return x ^ x >> 32;
}

constexpr size_t kJoinBits = size_t{1} << 20;
size_t join_slot(char32_t left, char32_t right) {
  return mix(static_cast<uint64_t>(left) << 32 | right) & (kJoinBits - 1);
}

}  // namespace

Bpe::Bpe(BpeDefinition definition) : definition_(std::move(definition)) {
  build_pairs();
  ascii_.fill(-1);
  byte_symbols_.fill(-1);
  if (definition_.byte_level) {
    for (const auto& [word, id] : definition_.words)
      if (word.size() == 1) byte_symbols_[static_cast<uint8_t>(word[0])] = id;
  } else {
    build_characters();
  }
  if (!definition_.ignore_merges) definition_.words.clear();  // no longer needed; half of a vocabulary's memory
}

void Bpe::build_pairs() {
  size_t capacity = 16;
  while (capacity < 2 * definition_.merges.size()) capacity *= 2;
  pairs_.resize(capacity);
  for (const BpeMerge& merge : definition_.merges) {
    CHECK(merge.rank != kNone);
    const uint64_t key = pair_key(merge.left, merge.right);
    size_t slot = mix(key) & (capacity - 1);
    while (pairs_[slot].key != UINT64_MAX && pairs_[slot].key != key) slot = (slot + 1) & (capacity - 1);
    pairs_[slot] = {key, merge.rank, merge.result};
  }
  definition_.merges = {};
}

void Bpe::build_characters() {
  joins_.resize(kJoinBits);
  for (const auto& [word, id] : definition_.words) {
    std::string_view rest = word;
    char32_t previous = 0;
    for (size_t count = 0; !rest.empty(); ++count) {
      const Utf8Unit unit = next_utf8(rest);
      CHECK(unit.kind == Utf8Unit::kCharacter, "token ", id);
      rest.remove_prefix(unit.length);
      if (count > 0) joins_[join_slot(previous, unit.code_point)] = true;
      previous = unit.code_point;
      if (count > 0 || !rest.empty()) continue;
      if (previous < 128) {
        ascii_[previous] = id;
      } else {
        characters_[previous] = id;
      }
    }
  }
}

int32_t Bpe::character_token(char32_t character) const {
  if (character < 128) return ascii_[character];
  const auto found = characters_.find(character);
  return found == characters_.end() ? -1 : found->second;
}

bool Bpe::may_join(char32_t left, char32_t right) const {
  // Characters without a token become bytes or unknowns, which other rules may join.
  return joins_[join_slot(left, right)] || character_token(left) < 0 || character_token(right) < 0;
}

const Bpe::PairSlot& Bpe::find_pair(int32_t left, int32_t right) const {
  const uint64_t key = pair_key(left, right);
  const size_t mask = pairs_.size() - 1;
  size_t slot = mix(key) & mask;
  while (pairs_[slot].key != key && pairs_[slot].key != UINT64_MAX) slot = (slot + 1) & mask;
  return pairs_[slot];  // an empty slot has no rank
}

bool Bpe::byte_symbols(std::string_view character, std::vector<Symbol>* symbols) const {
  for (char c : character)
    if (definition_.byte_tokens[static_cast<uint8_t>(c)] < 0) return false;
  for (char c : character) symbols->push_back({definition_.byte_tokens[static_cast<uint8_t>(c)], -1, -1, kNone, -1});
  return true;
}

void Bpe::add_symbols(std::string_view word, std::vector<Symbol>* symbols) const {
  if (definition_.byte_level) {
    for (char c : word) {
      const int32_t id = byte_symbols_[static_cast<uint8_t>(c)];
      if (id >= 0) symbols->push_back({id, -1, -1, kNone, -1});
    }
    return;
  }
  // An unknown is held back until a known character follows, so that neighbours can fuse into one. As in the reference,
  // byte tokens do not end the run.
  bool waiting = false;
  const Symbol unknown{definition_.unk, -1, -1, kNone, -1};
  while (!word.empty()) {
    const Utf8Unit unit = next_utf8(word);
    const std::string_view character = word.substr(0, unit.length);
    word.remove_prefix(unit.length);
    const int32_t id = character_token(unit.code_point);
    if (id >= 0) {
      if (waiting) symbols->push_back(unknown);
      waiting = false;
      symbols->push_back({id, -1, -1, kNone, -1});
    } else if (!(definition_.byte_fallback && byte_symbols(character, symbols)) && definition_.unk >= 0) {
      if (waiting && !definition_.fuse_unk) symbols->push_back(unknown);
      waiting = true;
    }
  }
  if (waiting) symbols->push_back(unknown);
}

void Bpe::rank_symbol(Scratch* scratch, int32_t place, bool push) const {
  Symbol& symbol = scratch->symbols[static_cast<size_t>(place)];
  symbol.rank = kNone;
  if (symbol.next < 0) return;
  const PairSlot& pair = find_pair(symbol.id, scratch->symbols[static_cast<size_t>(symbol.next)].id);
  if (pair.rank == kNone) return;
  symbol.rank = pair.rank;
  symbol.result = pair.result;
  scratch->heap.push_back(static_cast<uint64_t>(pair.rank) << 32 | static_cast<uint32_t>(place));
  if (push) std::push_heap(scratch->heap.begin(), scratch->heap.end(), std::greater<>());
}

// The heap may hold entries that a later merge made stale: an entry counts only if its symbol still has that rank.
void Bpe::merge(Scratch* scratch) const {
  std::vector<Symbol>& symbols = scratch->symbols;
  std::vector<uint64_t>& heap = scratch->heap;
  heap.clear();
  const auto count = static_cast<int32_t>(symbols.size());
  for (int32_t i = 0; i < count; ++i) {
    Symbol& symbol = symbols[static_cast<size_t>(i)];
    symbol.prev = i - 1;
    symbol.next = i + 1 < count ? i + 1 : -1;
    rank_symbol(scratch, i, false);
  }
  std::make_heap(heap.begin(), heap.end(), std::greater<>());
  while (!heap.empty()) {
    std::pop_heap(heap.begin(), heap.end(), std::greater<>());
    const uint64_t top = heap.back();
    heap.pop_back();
    const auto place = static_cast<int32_t>(top & UINT32_MAX);
    Symbol& left = symbols[static_cast<size_t>(place)];
    if (left.rank != top >> 32) continue;
    Symbol& right = symbols[static_cast<size_t>(left.next)];
    left.id = left.result;
    left.next = right.next;
    right.rank = kNone;
    if (left.next >= 0) symbols[static_cast<size_t>(left.next)].prev = place;
    rank_symbol(scratch, place, true);
    if (left.prev >= 0) rank_symbol(scratch, left.prev, true);
  }
}

void Bpe::encode(std::string_view word, Scratch* scratch, std::vector<int32_t>* out) const {
  if (word.empty()) return;
  CHECK(word.size() < INT32_MAX, "a word of ", word.size(), " bytes");
  if (definition_.ignore_merges) {
    const auto found = definition_.words.find(std::string(word));
    if (found != definition_.words.end()) {
      out->push_back(found->second);
      return;
    }
  }
  scratch->symbols.clear();
  add_symbols(word, &scratch->symbols);
  if (scratch->symbols.empty()) return;
  merge(scratch);
  for (int32_t i = 0; i >= 0; i = scratch->symbols[static_cast<size_t>(i)].next)
    out->push_back(scratch->symbols[static_cast<size_t>(i)].id);
}

}  // namespace headrace
