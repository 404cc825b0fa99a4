// headrace cache: lists, verifies and prunes the folder of --prefix-cache. Never prints the text of a prompt.
#include <algorithm>
#include <cstdio>
#include <ctime>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <system_error>
#include <vector>

#include "cli/commands.h"
#include "cli/print/format.h"
#include "runtime/prefix/store.h"

namespace headrace {
namespace {

using nlohmann::ordered_json;

constexpr size_t kNameDigits = 12;

// A saved prompt: a block of rows without a continuation, and all blocks before it.
struct Kept {
  const PrefixEntry* last;
  uint64_t bytes = 0, shared_bytes = 0;  // shared: with other prompts
  bool draft = false;                    // includes blocks for a draft
  int64_t states = 0;                    // positions with recurrent states, at which a later prompt may begin
};

std::vector<Kept> kept_prompts(const PrefixIndex& index) {
  std::map<PrefixKey, int> prompts;                             // number of prompts that use a block
  std::map<PrefixKey, std::vector<const PrefixEntry*>> beside;  // blocks for drafts and of states, by those of rows
  std::set<PrefixKey> continued;
  for (const auto& [key, entry] : index.entries()) {
    if (entry.block.kind == PrefixBlockKind::kRows) continued.insert(entry.block.parent);
  }
  std::vector<Kept> kept;
  for (const auto& [key, entry] : index.entries()) {
    if (entry.block.kind != PrefixBlockKind::kRows) {
      beside[entry.block.parent].push_back(&entry);
      continue;
    }
    if (!continued.contains(key)) kept.push_back({.last = &entry});
  }
  const auto walk = [&](const Kept& prompt, const auto& visit) {
    for (const PrefixEntry* one = prompt.last; one != nullptr; one = index.find(one->block.parent)) visit(*one);
  };
  for (const Kept& prompt : kept) walk(prompt, [&](const PrefixEntry& one) { ++prompts[one.block.key]; });
  for (Kept& prompt : kept) {
    walk(prompt, [&](const PrefixEntry& one) {
      uint64_t bytes = one.bytes;
      for (const PrefixEntry* const other : beside[one.block.key]) {
        bytes += other->bytes;
        prompt.draft |= other->block.kind == PrefixBlockKind::kDraft;
        prompt.states += other->block.kind == PrefixBlockKind::kStates ? 1 : 0;
      }
      prompt.bytes += bytes;
      if (prompts[one.block.key] > 1) prompt.shared_bytes += bytes;
    });
  }
  std::sort(kept.begin(), kept.end(), [](const Kept& a, const Kept& b) { return a.last->used_ns > b.last->used_ns; });
  return kept;
}

int64_t tokens_of(const Kept& prompt) { return prompt.last->block.first_row + prompt.last->block.rows; }

std::string time_text(int64_t ns) {
  const std::time_t seconds = static_cast<std::time_t>(ns / 1'000'000'000);
  std::tm parts{};
  char text[32] = "?";
  if (::gmtime_r(&seconds, &parts) != nullptr) std::strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%SZ", &parts);
  return text;
}

std::string leftovers_text(const PrefixStore& store) {
  if (store.leftover_bytes() == 0) return "";
  return format_bytes(store.leftover_bytes()) +
         " more are being written, or are leftovers that the next writer removes\n";
}

ordered_json damaged_json(const std::vector<PrefixStore::Damaged>& damaged) {
  ordered_json list = ordered_json::array();
  for (const PrefixStore::Damaged& one : damaged) list.push_back({{"file", one.file}, {"error", one.what}});
  return list;
}

void print(const ordered_json& object) {
  std::puts(object.dump(-1, ' ', false, ordered_json::error_handler_t::replace).c_str());
}

ExitCode list(const CacheArgs& args, const PrefixStore& store) {
  const std::vector<Kept> kept = kept_prompts(store.index());
  if (args.json) {
    ordered_json prompts = ordered_json::array();
    for (const Kept& prompt : kept) {
      const PrefixBlock& block = prompt.last->block;
      prompts.push_back({{"name", key_text(block.key)},
                         {"tokens", tokens_of(prompt)},
                         {"bytes", prompt.bytes},
                         {"shared_bytes", prompt.shared_bytes},
                         {"model", block.model},
                         {"identity", key_text(block.identity)},
                         {"draft", prompt.draft},
                         {"states", prompt.states},
                         {"last_used", time_text(prompt.last->used_ns)}});
    }
    print({{"folder", store.folder()},
           {"format", kPrefixFormat},
           {"bytes", store.index().bytes()},
           {"leftover_bytes", store.leftover_bytes()},
           {"prompts", prompts},
           {"damaged", damaged_json(store.damaged())}});
    return ExitCode::kDone;
  }
  if (!kept.empty())
    std::printf("%-12s %10s %12s %12s  %-20s  %s\n", "name", "tokens", "bytes", "shared", "last used", "model");
  for (const Kept& prompt : kept) {
    const std::string states = prompt.states > 0 ? str(", states at ", prompt.states, " positions") : "";
    std::printf("%-12s %10s %12s %12s  %-20s  %s%s%s\n",
                key_text(prompt.last->block.key).substr(0, kNameDigits).c_str(),
                format_count(tokens_of(prompt)).c_str(), format_bytes(prompt.bytes).c_str(),
                format_bytes(prompt.shared_bytes).c_str(), time_text(prompt.last->used_ns).c_str(),
                prompt.last->block.model.c_str(), prompt.draft ? ", with a draft" : "", states.c_str());
  }
  std::printf("%s: %s prompts, %s\n", store.folder().c_str(), format_count(static_cast<int64_t>(kept.size())).c_str(),
              format_bytes(store.index().bytes()).c_str());
  std::fputs(leftovers_text(store).c_str(), stdout);
  for (const PrefixStore::Damaged& one : store.damaged()) {
    std::printf("damaged: %s %s\n", one.file.c_str(), one.what.c_str());
  }
  return ExitCode::kDone;
}

ExitCode verify(const CacheArgs& args, const PrefixStore& store) {
  const std::vector<PrefixStore::Damaged> bad = store.verify();
  const size_t blocks = store.index().entries().size();
  if (args.json) {
    print({{"folder", store.folder()},
           {"blocks", blocks},
           {"bytes", store.index().bytes()},
           {"leftover_bytes", store.leftover_bytes()},
           {"damaged", damaged_json(bad)}});
  } else {
    for (const PrefixStore::Damaged& one : bad) std::printf("damaged: %s: %s\n", one.file.c_str(), one.what.c_str());
    std::printf("%s: %s blocks, %s, %zu damaged\n", store.folder().c_str(),
                format_count(static_cast<int64_t>(blocks)).c_str(), format_bytes(store.index().bytes()).c_str(),
                bad.size());
    std::fputs(leftovers_text(store).c_str(), stdout);
  }
  return bad.empty() ? ExitCode::kDone : ExitCode::kStorage;
}

ExitCode prune(const CacheArgs& args, PrefixStore* store) {
  if (!store->writes()) throw_error(ExitCode::kStorage, args.folder, "cannot be pruned: " + store->why_not());
  const uint64_t leftovers = store->leftover_bytes();  // already removed
  const uint64_t before = leftovers + store->index().bytes();
  const int64_t gone = store->prune(args.limit_bytes);
  const uint64_t left = store->index().bytes();
  if (args.json) {
    print({{"folder", store->folder()},
           {"removed_blocks", gone},
           {"removed_bytes", before - left},
           {"leftover_bytes", leftovers},
           {"bytes", left}});
  } else {
    std::printf("%s: %s of %s removed\n", store->folder().c_str(), format_bytes(before - left).c_str(),
                format_bytes(before).c_str());
  }
  return ExitCode::kDone;
}

}  // namespace

ExitCode run_command(const CacheArgs& args) {
  std::error_code error;
  if (!std::filesystem::is_directory(args.folder, error)) {
    const bool absent = !error || error == std::errc::no_such_file_or_directory;
    throw_error(ExitCode::kStorage, args.folder, absent ? "is not a folder" : error.message(),
                "Name the folder that was given to --prefix-cache.");
  }
  const bool prune_it = args.action == CacheAction::kPrune, empty = std::filesystem::is_empty(args.folder, error);
  if (error) throw_error(ExitCode::kStorage, args.folder, error.message());
  if (!PrefixStore::is_one(args.folder) && (prune_it || !empty)) {  // an empty folder may become a cache
    throw_error(ExitCode::kStorage, args.folder,
                str("holds no saved prefixes", prune_it ? ": nothing in it is removed" : ""),
                "Name the folder that was given to --prefix-cache.");
  }
  PrefixStore store({.folder = args.folder}, prune_it ? PrefixStore::Use::kRun : PrefixStore::Use::kLook);
  switch (args.action) {
    case CacheAction::kList:
      return list(args, store);
    case CacheAction::kVerify:
      return verify(args, store);
    case CacheAction::kPrune:
      return prune(args, &store);
  }
  return ExitCode::kInternal;
}

}  // namespace headrace
