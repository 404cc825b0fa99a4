#!/usr/bin/env bash
# The first five minutes: installs what the build needs, builds, fetches a small real model (94 MiB, once) and lets it
# summarize a long document that every Debian has. From any directory, as root or with sudo; a second time it is quick.
#   bash cli/quickstart.sh [OPTION...]             options of headrace summarize
# On a machine with an NVIDIA GPU it needs nvcc 12 or newer; HEADRACE_CUDA=OFF builds for the CPU.
#   bash cli/quickstart.sh speculate [OPTION...]   with SmolLM2-64K and an EAGLE-3 draft: several tokens a pass
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)

speculate=no targets=(headrace headrace_manual)
if [ "${1:-}" = speculate ]; then
  speculate=yes targets+=(make_smollm2_64k)
  shift
fi
bash "$root/cli/check_cuda.sh"
bash "$root/tests/install.sh" build tests model
cd "$root"
mkdir -p build
export CUDAARCHS="${CUDAARCHS:-$(bash tests/cuda_archs.sh)}"
if ! cmake --preset release -DHEADRACE_CUDA="${HEADRACE_CUDA:-AUTO}" >build/release.log 2>&1; then
  cat build/release.log >&2
  exit 1
fi
cmake --build build/release -j "${JOBS:-$(nproc)}" --target "${targets[@]}" >&2
echo "To install the program, its man pages and completion for bash, zsh and fish:" >&2
echo "  cmake --install $root/build/release" >&2
if [ "$speculate" = yes ]; then
  model=$(bash tests/smollm2_64k.sh build/release)
  set -- --spec-type draft-eagle3 -md tests/data/eagle3 "$@"
else
  model=$(bash tests/fetch_model.sh)
fi

document=/usr/share/common-licenses/GPL-3
command=(build/release/cli/headrace summarize "$document" -m "$model" "$@")
printf '\n$'; printf ' %q' "${command[@]}"; printf '\n'
exec "${command[@]}"
