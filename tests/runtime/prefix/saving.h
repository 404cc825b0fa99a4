// Saving made-up rows, as the tests of the store and of its faults do. Header only.
#pragma once

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "offload/device/device.h"
#include "runtime/prefix/saver.h"
#include "tests/runtime/prefix/blocks.h"

namespace headrace::testing {

inline std::vector<std::string> files_in(const std::string& folder) {
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    names.push_back(entry.path().filename().string());
  }
  std::sort(names.begin(), names.end());
  return names;
}

// What a part of a block holds, by its place.
inline std::byte made_up_byte(const PrefixBlock& block, size_t part) {
  return static_cast<std::byte>(block.first_row / 512 * 16 + static_cast<int64_t>(part) + 1);
}

// Saves them with bytes of made_up_byte(); what went wrong, or nothing. What is saved is in the store's index.
inline std::string save_blocks(PrefixStore& store, const std::vector<PrefixBlock>& blocks) {
  const std::unique_ptr<Device> device = open_device({.choice = DeviceChoice::kCpu, .threads = 1});
  std::vector<PinnedBuffer> parts;
  std::vector<PrefixSaver::Source> sources;
  for (size_t i = 0; i < blocks.size(); ++i) {
    for (size_t part = 0; part < blocks[i].checksums.size(); ++part) {
      parts.push_back(device->allocate_pinned(blocks[i].part_bytes, "a part"));
      std::memset(parts.back().data(), static_cast<int>(made_up_byte(blocks[i], part)), blocks[i].part_bytes);
      sources.push_back({.block = i, .part = part, .data = parts.back().data(), .on_device = false, .runs = {}});
    }
  }
  PrefixSaver saver(*device, store, blocks);
  saver.save(device->make_event(), sources);
  for (uint64_t written = 0; !saver.wait_some(1000, &written);) {
  }
  for (const PrefixBlock& block : saver.saved()) store.add(block);
  return saver.failure();
}

}  // namespace headrace::testing
