#!/usr/bin/env bash
# The first five minutes: installs what the build needs, builds, fetches a small real model (94 MiB, once) and lets it
# summarize a long document that every Debian has. From any directory, as root or with sudo; a second time it is quick.
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)

bash "$root/tests/install.sh" build tests model
cd "$root"
mkdir -p build
if ! cmake --preset release >build/release.log 2>&1; then
  cat build/release.log >&2
  exit 1
fi
cmake --build build/release -j "${JOBS:-$(nproc)}" --target headrace >&2
model=$(bash tests/fetch_model.sh)

document=/usr/share/common-licenses/GPL-3
command=(build/release/cli/headrace summarize "$document" -m "$model" "$@")
printf '\n$'; printf ' %q' "${command[@]}"; printf '\n'
exec "${command[@]}"
