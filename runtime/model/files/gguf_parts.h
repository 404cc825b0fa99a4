// The files of a GGUF model that llama-gguf-split has divided, NAME-00001-of-00003.gguf and so on, as one source: the
// bytes of part 2 follow those of part 1. A model in one file is one part. Thread: const methods from any thread.
#pragma once

#include <string>
#include <vector>

#include "runtime/base/input_file.h"
#include "runtime/model/gguf/gguf.h"

namespace headrace {

// The names of all parts, if `path` has the name of one; else the path alone.
std::vector<std::string> gguf_part_names(const std::string& path);

class GgufParts final : public ByteSource {
 public:
  // Throws Error(kBadInput) that names the file if a part is missing, or is of another split.
  explicit GgufParts(const std::string& path);

  const std::string& name() const override { return files_.front().name(); }
  uint64_t size() const override { return begins_.back() + files_.back().size(); }
  // A range may not reach from one part into the next: no tensor does.
  void read(uint64_t offset, void* to, uint64_t bytes) const override;
  const GgufFile& header() const { return header_; }      // the first part's metadata, and the tensors of all parts
  ByteRange range(uint64_t begin, uint64_t bytes) const;  // in the file that has it
  std::vector<FileStamp> stamps() const;

 private:
  void add_header(size_t number);
  void check_tensors() const;

  std::vector<InputFile> files_;
  std::vector<uint64_t> begins_;  // of each file
  GgufFile header_;
};

}  // namespace headrace
