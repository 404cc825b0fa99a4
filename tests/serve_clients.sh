#!/usr/bin/env bash
# Structured answers, calls of tools, files and /v1/responses through real clients: openai, litellm, LangChain,
# LlamaIndex.
#   bash tests/serve_clients.sh [HEADRACE] [PYTHON]
# HEADRACE: the program; none: build/release/cli/headrace. PYTHON: a python that has the packages; none: that of
# clients_python.sh.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

. tests/serving.sh
prepare_serving "${1:-build/release/cli/headrace}"
python=${2:-$(bash tests/clients_python.sh)}
start_server --chat-template-file tests/data/tools.jinja
LITELLM_LOCAL_MODEL_COST_MAP=True "$python" tests/serve_clients.py "$address"
stop_server serve_clients.sh
