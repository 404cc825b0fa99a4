#!/usr/bin/env bash
# Makes SmolLM2-64K once and prints its path: SmolLM2-135M-Instruct, fetched by fetch_model.sh, with the long-context
# update of tests/data/smollm2-64k merged (65,536 positions instead of 8,192). Kept beside it; moved into place only when
# whole and of the right checksum. smollm2_64k.sh BUILD, a build folder that holds make_smollm2_64k.
set -euo pipefail

readonly SHA256=1d14928b55dbd368a85d36250d8a5c17a99f57284dc44e02c2cb3e3c48408d17
readonly BYTES=187941952

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
build=${1:?usage: smollm2_64k.sh BUILD}
source=$(bash "$root/tests/fetch_model.sh")
cache=$(dirname "$source")
model=$cache/SmolLM2-64K.gguf

# As in fetch_model.sh: the checksum was read before the move.
if [ -f "$model" ] && [ "$(stat -c %s "$model")" = "$BYTES" ]; then
  echo "$model"
  exit 0
fi

work=$(mktemp -d "$cache/.make.XXXXXX")
trap 'rm -rf "$work"' EXIT
echo "Making $(basename "$model") (179 MiB) in $cache" >&2
"$build/tests/tools/make_smollm2_64k" "$source" "$root/tests/data/smollm2-64k/smollm2-64k.npz" "$work/model.gguf" >&2
made=$(sha256sum <"$work/model.gguf" | cut -d' ' -f1)
if [ "$made" != "$SHA256" ]; then
  echo "smollm2_64k.sh: the model that was made has the wrong checksum: $made" >&2
  exit 1
fi
mv -f "$work/model.gguf" "$model"
echo "$model"
