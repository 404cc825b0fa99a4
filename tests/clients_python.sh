#!/usr/bin/env bash
# Prints a python that has the clients whose requests the server is tested with (clients.txt): openai, litellm,
# LangChain, LlamaIndex. They come from PyPI, once, and are kept beside the real model (fetch_model.sh); some 500 MB.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"

cache=${HEADRACE_CACHE:-${XDG_CACHE_HOME:-${HOME:?}/.cache}/headrace/models}
folder=$cache/clients-$(sha256sum <clients.txt | cut -c 1-12)
if [ ! -x "$folder/bin/python" ]; then
  python3 -c 'import ensurepip' 2>/dev/null || { echo "clients_python.sh: python3-venv is missing" >&2; exit 1; }
  mkdir -p "$cache"
  made=$(mktemp -d "$cache/.make.XXXXXX")
  trap 'rm -rf "$made"' EXIT
  python3 -m venv "$made"
  "$made/bin/pip" -q install --no-compile -r clients.txt >&2
  mv -T "$made" "$folder" 2>/dev/null || [ -x "$folder/bin/python" ]  # another of these may have been faster
fi
echo "$folder/bin/python"
