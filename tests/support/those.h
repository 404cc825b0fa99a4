// Parameters of a suite that is about some of a table's combinations. Header only.
#pragma once

#include <vector>

namespace headrace::testing {

// Those for which keep() is true. A suite is instantiated with them alone: a combination that does not exist is not
// generated, so that every test that is skipped is one that something on this machine prevents.
template <typename Param, typename Keep>
std::vector<Param> those(std::vector<Param> all, const Keep& keep) {
  std::erase_if(all, [&](const Param& param) { return !keep(param); });
  return all;
}

}  // namespace headrace::testing
