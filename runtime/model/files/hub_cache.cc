#include "runtime/model/files/hub_cache.h"

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <vector>

#include "cache/base.h"
#include "runtime/base/file_hints.h"
#include "runtime/base/input_file.h"

namespace headrace {
namespace {

namespace fs = std::filesystem;

std::string environment(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

// Empty if no cache location is configured.
std::string hub_directory() {
  if (const std::string cache = environment("HF_HUB_CACHE"); !cache.empty()) return cache;
  if (const std::string home = environment("HF_HOME"); !home.empty()) return home + "/hub";
  if (const std::string xdg = environment("XDG_CACHE_HOME"); !xdg.empty()) return xdg + "/huggingface/hub";
  const std::string home = environment("HOME");
  return home.empty() ? "" : home + "/.cache/huggingface/hub";
}

bool plain_name(const std::string& name) {
  if (name.empty() || name.front() == '.') return false;
  for (const char c : name)
    if (!(c >= 'a' && c <= 'z') && !(c >= 'A' && c <= 'Z') && !(c >= '0' && c <= '9') && c != '-' && c != '_' &&
        c != '.')
      return false;
  return true;
}

// "org/name", as the hub writes it.
bool hub_name(const std::string& model, std::string* directory) {
  const size_t slash = model.find('/');
  if (slash == std::string::npos || !plain_name(model.substr(0, slash)) || !plain_name(model.substr(slash + 1)))
    return false;
  *directory = "models--" + model.substr(0, slash) + "--" + model.substr(slash + 1);
  return true;
}

bool exists(const std::string& path) {
  std::error_code ignored;
  return fs::exists(path, ignored);
}

std::vector<std::string> snapshots_in(const std::string& repository) {
  std::vector<std::string> names;
  std::error_code ignored;
  for (const auto& entry : fs::directory_iterator(repository + "/snapshots", ignored))
    if (entry.is_directory(ignored)) names.push_back(entry.path().string());
  std::sort(names.begin(), names.end());
  return names;
}

[[noreturn]] void refuse_revision(const std::string& where, const std::string& what,
                                  const std::vector<std::string>& snapshots) {
  if (snapshots.empty())
    throw_error(ExitCode::kBadInput, where, what + ", and there is no snapshot", "download the model again");
  std::string paths;
  for (const std::string& path : snapshots) paths += "\n  " + printable(path);
  throw_error(ExitCode::kBadInput, where, what, "download the model again, or give a snapshot as the model:" + paths);
}

std::string snapshot_of(const std::string& repository) {
  const std::string reference = repository + "/refs/main";
  const std::vector<std::string> snapshots = snapshots_in(repository);
  if (!exists(reference)) {  // the model was fetched by revision
    if (snapshots.size() == 1) return snapshots.front();
    refuse_revision(repository, "has no refs/main to choose a snapshot", snapshots);
  }
  std::string revision = read_small_file(reference, 4096);
  while (!revision.empty() && (revision.back() == '\n' || revision.back() == '\r' || revision.back() == ' '))
    revision.pop_back();
  if (!plain_name(revision))
    throw_error(ExitCode::kBadInput, reference, "holds \"" + printable(revision) + "\", which is not a revision");
  const std::string snapshot = repository + "/snapshots/" + revision;
  if (!exists(snapshot)) refuse_revision(snapshot, "does not exist, though " + reference + " names it", snapshots);
  return snapshot;
}

}  // namespace

std::string find_model(const std::string& model) {
  if (model.empty()) throw_error(ExitCode::kBadInput, "--model", "is empty");
  if (model.find('\0') != std::string::npos)
    throw_error(ExitCode::kBadInput, printable(model), "a path with a NUL byte");
  if (is_there(model)) return model;
  const std::string hint = "give a Hugging Face directory, a .gguf file, or org/name of a downloaded model";
  std::string name;
  if (!hub_name(model, &name))
    throw_error(ExitCode::kBadInput, printable(model), "there is no such file or directory", hint);
  const std::string hub = hub_directory();
  if (hub.empty())
    throw_error(ExitCode::kBadInput, model,
                "there is no such file or directory, and HOME, under which the hub cache lies, is not set", hint);
  const std::string repository = hub + "/" + name;
  if (!exists(repository))
    throw_error(ExitCode::kBadInput, model,
                "there is no such file or directory, and no " + repository + " in the hub cache",
                "Download it: hf download " + model);
  return snapshot_of(repository);
}

}  // namespace headrace
