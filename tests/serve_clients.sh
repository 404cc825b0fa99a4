#!/usr/bin/env bash
# Structured answers, calls of tools and /v1/responses through real clients: openai, litellm, LangChain, LlamaIndex.
#   bash tests/serve_clients.sh [HEADRACE] [PYTHON]
# HEADRACE: the program; none: build/release/cli/headrace. PYTHON: a python that has the packages; none: they are fetched
# from PyPI into a temporary environment. By hand or at night: it takes some minutes.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

bash tests/install.sh model
program=$(realpath "${1:-build/release/cli/headrace}")
model=$(bash tests/fetch_model.sh)
root=$(mktemp -d)
server=
trap '[ -z "$server" ] || kill "$server" 2>/dev/null; rm -rf "$root"' EXIT
python=${2:-$root/python/bin/python}
if [ $# -lt 2 ]; then
  bash tests/openai_python.sh "$root/python"
  "$root/python/bin/pip" -q install litellm langchain-openai llama-index-llms-openai-like jsonschema
fi
echo sesame >"$root/keys"

"$program" serve -m "$model" -c 4096 --port 0 --queue 8 --api-key-file "$root/keys" \
  --chat-template-file tests/data/tools.jinja 2>"$root/log" &
server=$!
for _ in $(seq 300); do
  grep -q '^listening on ' "$root/log" && break
  kill -0 "$server" || { cat "$root/log" >&2; exit 1; }
  sleep 0.1
done
address=$(sed -n 's/^listening on //p' "$root/log")
LITELLM_LOCAL_MODEL_COST_MAP=True "$python" tests/serve_clients.py "$address"

kill -TERM "$server"
status=0
wait "$server" || status=$?
server=
[ "$status" -eq 0 ] || { echo "serve_clients.sh: the server ended with status $status" >&2; exit 1; }
