// What a saved prefix gives: the time to the first token of a question about a document, computed, computed and saved,
// and behind the saved document; beside what the disk reads from the same files, just before and just after. Turn by
// turn, so that a disk which others use too is the same for all. One JSON object on stdout, the machine named.
//   prefix_bench --shape llama-3.1-8b --folder DIR [--tokens 61440] [--question 64] [-n 16] [--kv auto]
//                [--repeat 3] [--device cuda] [--seed 0] [--memory DIR]
// --memory: a folder on no disk (/dev/shm/…) that the cache is copied to: what a question takes beside the disk.
#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "bench/figures.h"
#include "bench/machine.h"
#include "bench/program.h"
#include "runtime/base/random.h"
#include "runtime/engine/engine.h"
#include "runtime/model/files/shapes.h"
#include "runtime/model/random_checkpoint.h"
#include "runtime/prefix/store.h"

namespace headrace::bench {
namespace {

using nlohmann::ordered_json;

struct Args {
  std::string shape = "llama-3.1-8b", folder, memory;
  KvMode kv = KvMode::kAuto;
  DeviceChoice device = DeviceChoice::kAuto;
  int64_t tokens = 61440, question = 64, new_tokens = 16;
  int repeat = 3;
  uint64_t seed = 0;
};

void add_flags(CLI::App& app, Args& args) {
  app.add_option("--shape", args.shape);
  app.add_option("--folder", args.folder)->required();
  app.add_option("--memory", args.memory);
  app.add_option("--tokens", args.tokens);
  app.add_option("--question", args.question);
  app.add_option("-n", args.new_tokens);
  add_choice<KvMode>(app, "--kv", &args.kv,
                     {{"auto", KvMode::kAuto}, {"device", KvMode::kDevice}, {"host", KvMode::kHost}});
  app.add_option("--repeat", args.repeat);
  add_device(app, &args.device);
  app.add_option("--seed", args.seed);
}

std::vector<int32_t> made_up(int64_t count, int64_t vocab, uint64_t seed) {
  std::vector<int32_t> ids;
  for (int64_t i = 0; i < count; ++i) {
    ids.push_back(
        static_cast<int32_t>(mix64(seed * 1'000'003 + static_cast<uint64_t>(i)) % static_cast<uint64_t>(vocab)));
  }
  return ids;
}

// Bytes a second that threads read from the cache's own files, past the page cache, as the loader asks for them.
ordered_json disk_rate(const std::string& folder) {
  const PrefixStore store({.folder = folder}, PrefixStore::Use::kLook);
  struct Part {
    const File* file;
    uint64_t offset, bytes;
  };
  std::vector<File> files;
  files.reserve(store.index().entries().size());
  std::vector<Part> parts;
  uint64_t bytes = 0, largest = 0;
  for (const auto& [key, entry] : store.index().entries()) {
    files.push_back(store.open_data(key));
    for (uint64_t part = 0; part < entry.block.checksums.size(); ++part) {
      parts.push_back({&files.back(), part * entry.block.part_bytes, entry.block.part_bytes});
      bytes += entry.block.part_bytes;
      largest = std::max(largest, entry.block.part_bytes);
    }
  }
  std::sort(parts.begin(), parts.end(), [](const Part& a, const Part& b) { return a.offset < b.offset; });
  constexpr size_t kThreads = 8;
  std::atomic<size_t> next{0};
  const Clock::time_point start = Clock::now();
  std::vector<std::thread> threads;
  for (size_t i = 0; i < kThreads; ++i) {
    threads.emplace_back([&] {
      void* const memory = std::aligned_alloc(kPageBytes, whole_pages(largest));
      for (size_t at = next++; at < parts.size(); at = next++) {
        parts[at].file->read(parts[at].offset, {static_cast<std::byte*>(memory), parts[at].bytes});
      }
      std::free(memory);
    });
  }
  for (std::thread& thread : threads) thread.join();
  const double ms = ms_since(start);
  return {{"bytes", bytes},
          {"ms", ms},
          {"gb_per_s", static_cast<double>(bytes) / ms / 1e6},
          {"direct", !files.empty() && files.front().direct()}};
}

class Bench {
 public:
  explicit Bench(const Args& args) : args_(args), shape_(find_shape(args.shape)) {}

  ordered_json run() {
    ordered_json out = {{"program", "prefix_bench"}, {"machine", machine_json()}};
    const std::vector<int32_t> first = prompt(1), second = prompt(2);
    ordered_json rows = ordered_json::array();
    Engine plain(options(""), make_random_checkpoint(shape_.name, shape_.config, args_.seed));
    Engine engine(options(args_.folder), make_random_checkpoint(shape_.name, shape_.config, args_.seed));
    out["device"] = engine.device().name();
    for (Engine* each : {&plain, &engine}) {  // warms up
      each->generate(made_up(4096, shape_.config.vocab, 9), run_options(), nullptr);
    }
    const GenerateResult plain_second = plain.generate(second, run_options(), nullptr);
    for (int i = 0; i < args_.repeat; ++i) {
      rows.push_back(row("plain", plain.generate(first, run_options(), nullptr)));
      clear();
      rows.push_back(row("saving", engine.generate(first, run_options(), nullptr)));
      const ordered_json before = disk_rate(args_.folder);
      const GenerateResult hit = engine.generate(second, run_options(), nullptr);
      rows.push_back(row("saved", hit));
      rows.back()["same_tokens"] = hit.token_ids == plain_second.token_ids;
      rows.back()["disk_before"] = before;
      rows.back()["disk_after"] = disk_rate(args_.folder);
    }
    if (!args_.memory.empty()) {
      std::filesystem::copy(args_.folder, args_.memory);
      Engine beside(options(args_.memory), make_random_checkpoint(shape_.name, shape_.config, args_.seed));
      for (int i = 0; i <= args_.repeat; ++i)
        rows.push_back(row("saved in memory", beside.generate(second, run_options(), nullptr)));
    }
    out["tokens"] = first.size();
    out["rows"] = rows;
    return out;
  }

 private:
  // The engine has the lock; it looks again before each run.
  void clear() const {
    for (const auto& file : std::filesystem::directory_iterator(args_.folder)) {
      const std::string suffix = file.path().extension().string();
      if (suffix == PrefixStore::kManifestSuffix || suffix == PrefixStore::kDataSuffix) {
        std::filesystem::remove(file.path());
      }
    }
  }
  std::vector<int32_t> prompt(uint64_t question) const {
    std::vector<int32_t> ids = made_up(args_.tokens, shape_.config.vocab, 100);
    const std::vector<int32_t> asked = made_up(args_.question, shape_.config.vocab, question);
    ids.insert(ids.end(), asked.begin(), asked.end());
    return ids;
  }
  EngineOptions options(const std::string& folder) const {
    EngineOptions options;
    options.device.choice = args_.device;
    options.want_tokenizer = false;
    options.kv = args_.kv;
    options.prefix_cache.folder = folder;
    return options;
  }
  GenerateOptions run_options() const {
    return {.max_tokens = args_.new_tokens, .sampling = {.temperature = 0.8f, .seed = 3}, .ignore_eos = true};
  }
  static ordered_json row(const char* what, const GenerateResult& result) {
    ordered_json line = {{"what", what},
                         {"ttft_ms", result.timings.ttft_ms},
                         {"host_wait_ms", result.timings.host_wait_ms},
                         {"cached_tokens", result.prefix.rows},
                         {"read_bytes", result.prefix.read_bytes},
                         {"saved_bytes", result.prefix.saved_bytes},
                         {"save_wait_ms", result.prefix.save_wait_ms},
                         {"notes", result.prefix.notes}};
    std::fprintf(stderr, "%s\n", line.dump().c_str());
    return line;
  }

  const Args args_;
  const Shape shape_;
};

}  // namespace
}  // namespace headrace::bench

int main(int argc, char** argv) {
  using namespace headrace::bench;
  Args args;
  CLI::App app("What a saved prefix gives", "prefix_bench");
  add_flags(app, args);
  return run_program(app, argc, argv, [&] { return Bench(args).run(); });
}
