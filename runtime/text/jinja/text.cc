#include "runtime/text/jinja/text.h"

#include <algorithm>

namespace headrace::jinja {

Text::Text(std::string bytes, Origin origin) : bytes_(std::move(bytes)) {
  if (origin == Origin::kMessage && !bytes_.empty()) foreign_.emplace_back(0, bytes_.size());
}

void Text::append(std::string_view bytes, Origin origin) {
  if (bytes.empty()) return;
  const size_t begin = bytes_.size();
  bytes_.append(bytes);
  if (origin == Origin::kTemplate) return;
  if (!foreign_.empty() && foreign_.back().second == begin) {
    foreign_.back().second = bytes_.size();
  } else {
    foreign_.emplace_back(begin, bytes_.size());
  }
}

void Text::append(const Text& text) {
  for (const Run& run : text.runs()) append(run.bytes, run.origin);
}

Text Text::slice(size_t begin, size_t end) const {
  Text out;
  out.bytes_ = bytes_.substr(begin, end - begin);
  auto range = std::partition_point(foreign_.begin(), foreign_.end(), [&](const auto& r) { return r.second <= begin; });
  for (; range != foreign_.end() && range->first < end; ++range)
    out.foreign_.emplace_back(std::max(range->first, begin) - begin, std::min(range->second, end) - begin);
  return out;
}

std::vector<Text::Run> Text::runs() const& {
  std::vector<Run> out;
  const std::string_view all = bytes_;
  size_t done = 0;
  for (const auto& [begin, end] : foreign_) {
    if (done < begin) out.push_back({all.substr(done, begin - done), Origin::kTemplate});
    out.push_back({all.substr(begin, end - begin), Origin::kMessage});
    done = end;
  }
  if (done < all.size()) out.push_back({all.substr(done), Origin::kTemplate});
  return out;
}

Origin Text::origin_at(size_t at) const {
  const auto range =
      std::partition_point(foreign_.begin(), foreign_.end(), [&](const auto& r) { return r.second <= at; });
  return range != foreign_.end() && range->first <= at ? Origin::kMessage : Origin::kTemplate;
}

}  // namespace headrace::jinja
