#!/usr/bin/env bash
# Ends with status 1, and with what to install, on a machine with an NVIDIA GPU but without nvcc 12 or newer, where a
# build would be for the CPU alone. HEADRACE_CUDA=OFF asks for that build. CUDACXX names another nvcc.
set -euo pipefail
[ "${HEADRACE_CUDA:-AUTO}" != OFF ] || exit 0

has_gpu() {
  compgen -G '/dev/nvidia[0-9]*' >/dev/null && return 0
  command -v lspci >/dev/null && grep -Eiq '(VGA|3D|Display).*NVIDIA' <<<"$(lspci 2>/dev/null)"
}
has_gpu || exit 0

nvcc=${CUDACXX:-$(command -v nvcc || echo /usr/local/cuda/bin/nvcc)}
release=$("$nvcc" --version 2>/dev/null | sed -n 's/.*release \([0-9]*\)\..*/\1/p') || release=
[ "${release:-0}" -lt 12 ] || exit 0

found="no nvcc to build for it"
[ -z "$release" ] || found="its nvcc is version $release, and 12 is needed"
cat >&2 <<TEXT
This machine has an NVIDIA GPU, but $found. Install the CUDA toolkit:
  Debian, Ubuntu  NVIDIA's repository (developer.nvidia.com/cuda-downloads), then: apt install cuda-toolkit
  Fedora          the same repository, then: dnf install cuda-toolkit
  Arch            pacman -S cuda
An nvcc in another place is given by CUDACXX=/path/to/nvcc. A program for the CPU alone: HEADRACE_CUDA=OFF, as in
  HEADRACE_CUDA=OFF bash cli/quickstart.sh
TEXT
exit 1
