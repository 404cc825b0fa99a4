#!/usr/bin/env bash
# Prints what CMake takes as CUDAARCHS: the architectures of this machine's GPUs, so that a build takes a fifth of the
# time of a release's. For a GPU that nvcc does not know it adds the newest architecture with code that the driver can
# compile; without a GPU it prints the oldest that is supported, with such code.
nvcc=$(command -v nvcc || echo /usr/local/cuda/bin/nvcc)
known=$("$nvcc" --list-gpu-arch 2>/dev/null | sed -n 's/^compute_//p' | sort -n)
archs=()
for cap in $(nvidia-smi --query-gpu=compute_cap --format=csv,noheader 2>/dev/null | tr -d '. ' | awk '$1 + 0 >= 80' | sort -un); do
  if grep -qx "$cap" <<<"$known"; then archs+=("$cap-real"); else archs+=("$(tail -1 <<<"$known")"); fi
done
[ ${#archs[@]} -gt 0 ] && [ -n "${archs[0]}" ] || archs=(80)
printf '%s\n' "${archs[@]}" | sort -u | paste -sd ';'
