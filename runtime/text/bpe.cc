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

constexpr int32_t kInside = -1;  // a place within a symbol
constexpr size_t kMaxKeptPlaces = 65536;

// The places of the symbol that begins at `place`, and of the one that ends before it.
size_t count_at(const std::vector<int32_t>& places, size_t place) {
  const bool single = place + 1 == places.size() || places[place + 1] >= 0;
  return single ? 1 : static_cast<size_t>(-1 - places[place + 1]);
}
size_t count_before(const std::vector<int32_t>& places, size_t place) {
  const int32_t last = places[place - 1];
  return last >= 0 ? 1 : static_cast<size_t>(-1 - last);
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
  joins_.resize(kJoinBits);
  if (definition_.byte_level) {
    build_bytes();
  } else {
    build_characters();
  }
  if (definition_.whole_line_ends) build_line_ends();
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

void Bpe::build_bytes() {
  for (const auto& [word, id] : definition_.words) {
    if (word.size() == 1) byte_symbols_[static_cast<uint8_t>(word[0])] = id;
    for (size_t i = 1; i < word.size(); ++i) {
      joins_[join_slot(static_cast<uint8_t>(word[i - 1]), static_cast<uint8_t>(word[i]))] = true;
    }
  }
}

void Bpe::build_characters() {
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

void Bpe::build_line_ends() {
  for (const auto& [word, id] : definition_.words) {
    if (word.find_first_not_of('\n') != std::string::npos) continue;
    if (word.size() >= line_ends_.size()) line_ends_.resize(word.size() + 1, -1);
    line_ends_[word.size()] = id;
  }
}

// The token that a word is, where such words are not split; else -1.
int32_t Bpe::whole_word(std::string_view word) const {
  if (word.size() < line_ends_.size() && word.find_first_not_of('\n') == std::string_view::npos)
    return line_ends_[word.size()];
  if (!definition_.ignore_merges) return -1;
  const auto found = definition_.words.find(std::string(word));
  return found == definition_.words.end() ? -1 : found->second;
}

int32_t Bpe::character_token(char32_t character) const {
  if (character < 128) return ascii_[character];
  const auto found = characters_.find(character);
  return found == characters_.end() ? -1 : found->second;
}

bool Bpe::may_join(char32_t left, char32_t right) const {
  // Characters without a token become bytes or unknowns, which other rules may join; bytes without one are left out.
  if (definition_.byte_level)
    return joins_[join_slot(left, right)] || byte_symbols_[left] < 0 || byte_symbols_[right] < 0;
  return joins_[join_slot(left, right)] || character_token(left) < 0 || character_token(right) < 0;
}

const Bpe::PairSlot& Bpe::find_pair(int32_t left, int32_t right) const {
  const uint64_t key = pair_key(left, right);
  const size_t mask = pairs_.size() - 1;
  size_t slot = mix(key) & mask;
  while (pairs_[slot].key != key && pairs_[slot].key != UINT64_MAX) slot = (slot + 1) & mask;
  return pairs_[slot];  // an empty slot has no rank
}

bool Bpe::byte_symbols(std::string_view character, std::vector<int32_t>* symbols) const {
  for (char c : character)
    if (definition_.byte_tokens[static_cast<uint8_t>(c)] < 0) return false;
  for (char c : character) symbols->push_back(definition_.byte_tokens[static_cast<uint8_t>(c)]);
  return true;
}

void Bpe::add_symbols(std::string_view word, std::vector<int32_t>* symbols) const {
  symbols->reserve(word.size());
  if (definition_.byte_level) {
    for (char c : word) {
      const int32_t id = byte_symbols_[static_cast<uint8_t>(c)];
      if (id >= 0) symbols->push_back(id);
    }
    return;
  }
  // An unknown is held back until a known character follows, so that neighbours can fuse into one. As in the reference,
  // byte tokens do not end the run.
  bool waiting = false;
  while (!word.empty()) {
    const Utf8Unit unit = next_utf8(word);
    const std::string_view character = word.substr(0, unit.length);
    word.remove_prefix(unit.length);
    const int32_t id = character_token(unit.code_point);
    if (id >= 0) {
      if (waiting) symbols->push_back(definition_.unk);
      waiting = false;
      symbols->push_back(id);
    } else if (!(definition_.byte_fallback && byte_symbols(character, symbols)) && definition_.unk >= 0) {
      if (waiting && !definition_.fuse_unk) symbols->push_back(definition_.unk);
      waiting = true;
    }
  }
  if (waiting) symbols->push_back(definition_.unk);
}

// The pair of the symbol at `place` and the next one. Null: it has no next one, or they do not merge.
const Bpe::PairSlot* Bpe::pair_at(const std::vector<int32_t>& places, size_t place) const {
  const size_t next = place + count_at(places, place);
  if (next == places.size()) return nullptr;
  const PairSlot& pair = find_pair(places[place], places[next]);
  return pair.rank == kNone ? nullptr : &pair;
}

void Bpe::offer(size_t place, Scratch* scratch) const {
  const PairSlot* const pair = pair_at(scratch->places, place);
  if (pair == nullptr) return;
  scratch->heap.push_back(static_cast<uint64_t>(pair->rank) << 32 | place);
  std::push_heap(scratch->heap.begin(), scratch->heap.end(), std::greater<>());
}

// The heap may hold entries that a later merge made stale: an entry counts only if a symbol still begins at its place,
// and has a pair of that rank.
void Bpe::merge(Scratch* scratch) const {
  std::vector<int32_t>& places = scratch->places;
  std::vector<uint64_t>& heap = scratch->heap;
  heap.clear();
  for (size_t i = 0; i < places.size(); ++i) {
    const PairSlot* const pair = pair_at(places, i);
    if (pair != nullptr) heap.push_back(static_cast<uint64_t>(pair->rank) << 32 | i);
  }
  std::make_heap(heap.begin(), heap.end(), std::greater<>());
  while (!heap.empty()) {
    std::pop_heap(heap.begin(), heap.end(), std::greater<>());
    const uint64_t top = heap.back();
    heap.pop_back();
    const auto place = static_cast<size_t>(top & UINT32_MAX);
    const PairSlot* const pair = places[place] < 0 ? nullptr : pair_at(places, place);
    if (pair == nullptr || pair->rank != top >> 32) continue;
    const size_t left = count_at(places, place), count = left + count_at(places, place + left);
    places[place + left] = kInside;
    places[place] = pair->result;
    places[place + 1] = places[place + count - 1] = -1 - static_cast<int32_t>(count);
    offer(place, scratch);
    if (place > 0) offer(place - count_before(places, place), scratch);
  }
}

void Bpe::encode(std::string_view word, Scratch* scratch, std::vector<int32_t>* out) const {
  if (word.empty()) return;
  CHECK(word.size() < INT32_MAX, "a word of ", word.size(), " bytes");
  if (const int32_t whole = whole_word(word); whole >= 0) {
    out->push_back(whole);
    return;
  }
  std::vector<int32_t>& places = scratch->places;
  places.clear();
  add_symbols(word, &places);
  merge(scratch);
  for (size_t i = 0; i < places.size(); i += count_at(places, i)) out->push_back(places[i]);
  if (places.size() > kMaxKeptPlaces) *scratch = {};  // a long word's memory is not kept beside the next one's
}

}  // namespace headrace
