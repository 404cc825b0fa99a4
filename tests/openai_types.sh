#!/usr/bin/env bash
# Checks the answers of `headrace batch` against the types of the openai Python package: bash tests/openai_types.sh
# [HEADRACE]. By hand or at night: it fetches the package from PyPI into a temporary environment.
# HEADRACE: the program; none: build/release/cli/headrace.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

bash tests/install.sh model
program=$(realpath "${1:-build/release/cli/headrace}")
model=$(bash tests/fetch_model.sh)
root=$(mktemp -d)
trap 'rm -rf "$root"' EXIT
bash tests/openai_python.sh "$root/python"

cat >"$root/requests.jsonl" <<'JSON'
{"custom_id": "chat", "method": "POST", "url": "/v1/chat/completions", "body": {"model": "m", "messages": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Name a color."}], "max_tokens": 8}}
{"custom_id": "stop", "method": "POST", "url": "/v1/completions", "body": {"model": "m", "prompt": "One, two, three,", "stop": [" six"]}}
{"custom_id": "length", "method": "POST", "url": "/v1/completions", "body": {"model": "m", "prompt": "Once", "max_tokens": 3, "temperature": 0.8, "seed": 1}}
{"custom_id": "chat top 2", "method": "POST", "url": "/v1/chat/completions", "body": {"model": "m", "messages": [{"role": "user", "content": "Name a color."}], "max_tokens": 8, "logprobs": true, "top_logprobs": 2}}
{"custom_id": "top 2", "method": "POST", "url": "/v1/completions", "body": {"model": "m", "prompt": "Once", "max_tokens": 3, "logprobs": 2}}
{"custom_id": "bad", "method": "POST", "url": "/v1/chat/completions", "body": {"model": "m", "messages": []}}
JSON
"$program" batch -m "$model" -i "$root/requests.jsonl" -o "$root/results.jsonl" -q 2>/dev/null || [ $? -eq 3 ]
"$root/python/bin/python" - "$root/results.jsonl" <<'PYTHON'
import json, sys
from openai.types import Completion, ErrorObject
from openai.types.chat import ChatCompletion

kinds = {}
for line in open(sys.argv[1], encoding="utf-8"):
    line = json.loads(line)
    body = line["response"]["body"]
    if line["response"]["status_code"] == 200:
        kind = {"chat.completion": ChatCompletion, "text_completion": Completion}[body["object"]]
        answer = kind.model_validate(body, strict=True)
        log_probs = answer.choices[0].logprobs
        assert (log_probs is not None) == line["custom_id"].endswith("top 2"), log_probs
        if log_probs is not None:
            tops = [len(t) for t in log_probs.top_logprobs] if kind is Completion else [
                len(t.top_logprobs) for t in log_probs.content]
            assert len(tops) == answer.usage.completion_tokens and set(tops) <= {2, 3}, tops
        kinds[line["custom_id"]] = f"{kind.__name__} {answer.choices[0].finish_reason}"
    else:
        kinds[line["custom_id"]] = type(ErrorObject.model_validate(body["error"], strict=True)).__name__
wanted = {"stop": "Completion stop", "length": "Completion length", "top 2": "Completion length", "bad": "ErrorObject"}
for chat in ("chat", "chat top 2"):
    assert kinds.pop(chat).startswith("ChatCompletion "), kinds
assert kinds == wanted, kinds
print("openai_types.sh: six answers are of openai's types")
PYTHON
