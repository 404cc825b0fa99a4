#!/usr/bin/env bash
# The page of `headrace serve` in headless Chromium: each of its states, with a screenshot.
#   bash tests/serve_page.sh [HEADRACE [FOLDER]]   HEADRACE: the program; none: build/release/cli/headrace
#                                                  FOLDER: where the screenshots stay; none: nowhere
# By hand or at night: it installs Chromium and fetches the playwright package from PyPI into a temporary environment.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

bash tests/install.sh model page
python3 -c 'import ensurepip' 2>/dev/null || { echo "serve_page.sh: python3-venv is missing" >&2; exit 1; }
program=$(realpath "${1:-build/release/cli/headrace}")
model=$(bash tests/fetch_model.sh)
root=$(mktemp -d)
pids=()
trap '[ ${#pids[@]} -eq 0 ] || kill "${pids[@]}" 2>/dev/null; rm -rf "$root"' EXIT
python3 -m venv "$root/python"
"$root/python/bin/pip" -q install playwright
echo sesame >"$root/keys"

serve() {  # LOG FLAG...: prints the address
  "$program" serve -m "$model" -c 4096 --port 0 "${@:2}" 2>"$1" >/dev/null &
  echo $! >"$1.pid"
  for _ in $(seq 300); do
    grep -q '^listening on ' "$1" && break
    sleep 0.1
  done
  sed -n 's/^listening on //p' "$1"
}
open=$(serve "$root/open")
locked=$(serve "$root/locked" --api-key-file "$root/keys")
pids=("$(cat "$root/open.pid")" "$(cat "$root/locked.pid")")
folder=${2:-$root/screenshots}
mkdir -p "$folder"
"$root/python/bin/python" tests/serve_page.py "$open" "$locked" "$(command -v chromium)" "$folder"
