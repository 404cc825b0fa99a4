#!/usr/bin/env bash
# Prints what CMake takes as CUDAARCHS: the architectures of this machine's GPUs, so that a build takes a third of the
# time of a release's; without a GPU the oldest one that is supported, whose code has the fewest instructions.
caps=$(nvidia-smi --query-gpu=compute_cap --format=csv,noheader 2>/dev/null | tr -d '. ' | awk '$1 + 0 >= 80' | sort -un)
[ -n "$caps" ] || caps=80
sed 's/$/-real/' <<<"$caps" | paste -sd ';'
