"""Writes kernels/weights/grid_words.h: the grids of IQ2_XXS, IQ2_XS, IQ2_S, IQ3_XXS and IQ3_S, which are data of the
GGUF format, from the tables of the gguf package (0.19.0 on PyPI).

  python3 kernels/weights/make_grids.py > kernels/weights/grid_words.h
"""
import gguf.quants as quants

NAMES = {"IQ2_XXS": "2Xxs", "IQ2_XS": "2Xs", "IQ2_S": "2S", "IQ3_XXS": "3Xxs", "IQ3_S": "3S"}

print("""// Made by make_grids.py from the tables of the gguf package (0.19.0 on PyPI), which are data of the GGUF format. A word
// has a hexadecimal digit for each weight, the first one lowest: the number of its level (grids.h).
#pragma once

#include <cstdint>

namespace headrace {

template <typename Word_, int kEntries_>
struct GridWords {
  using Word = Word_;
  static constexpr int kEntries = kEntries_;
  Word words[kEntries];
};

// clang-format off""")
for name, short in NAMES.items():
    kind = getattr(quants, name)
    kind.init_grid()
    entries, values = kind.grid_shape
    levels = [float(level) for level in kind.grid_map]
    words = []
    for entry in kind.grid.reshape(entries, values):
        word = sum(levels.index(float(value)) << 4 * i for i, value in enumerate(entry))
        words.append(f"0x{word:0{values}x}")
    print(f"constexpr GridWords<uint{4 * values}_t, {entries}> kGrid{short} = {{{{")
    per_line = 9 if values == 8 else 14
    for i in range(0, entries, per_line):
        print("    " + ", ".join(words[i:i + per_line]) + ",")
    print("}};")
print("""// clang-format on

}  // namespace headrace""")
