#!/usr/bin/env bash
# A server as its users have it: the openai Python package, curl, and a soak of 200 requests by 8 clients, of which a
# fifth are cancelled and a tenth are malformed. Every answer must equal that of `headrace generate`.
#   bash tests/serve_openai.sh [HEADRACE]      HEADRACE: the program; none: build/release/cli/headrace
# By hand or at night: it fetches the package from PyPI into a temporary environment, and takes some minutes.
# REQUESTS is the number of requests of the soak.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

. tests/serving.sh
prepare_serving "${1:-build/release/cli/headrace}"
bash tests/openai_python.sh "$root/python"
start_server --prefix-cache "$root/prefixes"

# curl: a key, a stream whose last event ends it, an error in OpenAI's form.
code() { curl -s -o "$root/body" -w '%{http_code}' "$@"; }
[ "$(code "$address/health")" = 200 ]
[ "$(code "$address/v1/models")" = 401 ]
auth=(-H 'Authorization: Bearer sesame')
[ "$(code "${auth[@]}" "$address/v1/completions" -d '{"model":"m","prompt":"x","n":2}')" = 400 ]
grep -q '"message":"request: n 2 is not supported' "$root/body"
curl -sN "${auth[@]}" "$address/v1/completions" -d '{"model":"m","prompt":"One, two,","max_tokens":4,"stream":true}' >"$root/body"
[ "$(grep -c '^data: {' "$root/body")" -ge 2 ] && [ "$(tail -n 2 "$root/body" | head -n 1)" = 'data: [DONE]' ]
echo "serve_openai.sh: curl agrees"

"$root/python/bin/python" tests/serve_openai.py "$address" "$program" "$model" "$server" "${REQUESTS:-200}"

stop_server serve_openai.sh
if grep -q 'Tell me about number' "$root/log"; then
  echo "serve_openai.sh: the log has a prompt" >&2
  exit 1
fi
echo "serve_openai.sh: the server ended with status 0"
