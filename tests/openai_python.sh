#!/usr/bin/env bash
# A Python environment with the openai package, from PyPI: bash tests/openai_python.sh FOLDER makes it there.
set -euo pipefail
python3 -c 'import ensurepip' 2>/dev/null || { echo "openai_python.sh: python3-venv is missing" >&2; exit 1; }
python3 -m venv "$1"
"$1/bin/pip" -q install openai
