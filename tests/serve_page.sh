#!/usr/bin/env bash
# The page of `headrace serve` in headless Chromium: each of its states, with a screenshot. page_program_test runs the
# same; this keeps the screenshots.
#   bash tests/serve_page.sh [HEADRACE [FOLDER]]   HEADRACE: the program; none: build/release/cli/headrace
#                                                  FOLDER: where the screenshots stay; none: nowhere
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

bash tests/install.sh model page
program=$(realpath "${1:-build/release/cli/headrace}")
model=$(bash tests/fetch_model.sh)
root=$(mktemp -d)
trap 'rm -rf "$root"' EXIT
folder=${2:-$root}
mkdir -p "$folder"
python3 tests/serve_page.py "$program" "$model" "$(command -v chromium)" "$root"
[ "$folder" = "$root" ] || cp "$root"/*.png "$folder"
