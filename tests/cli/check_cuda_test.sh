#!/usr/bin/env bash
# cli/check_cuda.sh with a GPU that lspci names, and nvcc missing, old and new.
set -euo pipefail
check=$(cd "$(dirname "${BASH_SOURCE[0]}")/../../cli" && pwd)/check_cuda.sh
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
PATH=$folder:/usr/bin:/bin
unset HEADRACE_CUDA CUDACXX

program() {  # NAME OUTPUT
  printf '#!/bin/sh\necho "%s"\n' "$2" >"$folder/$1"
  chmod +x "$folder/$1"
}
expect() {  # STATUS TEXT [VARIABLE=VALUE...]
  local status=0 text
  text=$(env "${@:3}" bash "$check" 2>&1) || status=$?
  if [ "$status" -ne "$1" ] || ! grep -q "$2" <<<"$text"; then
    echo "wanted status $1 and '$2', got $status: $text" >&2
    exit 1
  fi
}

program lspci "01:00.0 VGA compatible controller: NVIDIA Corporation AD102 [GeForce RTX 4090]"
program nvcc_11 "Cuda compilation tools, release 11.8, V11.8.89"
program nvcc_12 "Cuda compilation tools, release 12.4, V12.4.131"
expect 1 "no nvcc to build for it" CUDACXX=/none
expect 1 "apt install cuda-toolkit" CUDACXX=/none
expect 1 "HEADRACE_CUDA=OFF bash cli/quickstart.sh" CUDACXX=/none
expect 1 "version 11, and 12 is needed" CUDACXX="$folder/nvcc_11"
expect 0 "^$" CUDACXX="$folder/nvcc_12"
expect 0 "^$" CUDACXX=/none HEADRACE_CUDA=OFF
if ! compgen -G '/dev/nvidia[0-9]*' >/dev/null; then
  program lspci "00:02.0 VGA compatible controller: Intel Corporation UHD Graphics"
  expect 0 "^$" CUDACXX=/none
fi
