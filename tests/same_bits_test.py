#!/usr/bin/env python3
"""same_bits.py tested with a few of its runs: two records are equal, and a check of one passes; a check reports a seed
that was changed, a token that was changed, a run that is lost, and prefixes that were recorded.

  python3 tests/same_bits_test.py PROGRAM
"""

import json
import os
import re
import subprocess
import sys
import tempfile

SCRIPT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "same_bits.py")
ONLY = r"^(family/llama2/(cold|warm|lossless)|cache/deep/int8,int8|batch/plain|chat/plain|prefix/(plain|eagle3))$"
RUNS = 8


def same_bits(action, program, file, *more):
    command = [sys.executable, SCRIPT, action, program, file, "--only", ONLY, *more]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return done.returncode, done.stdout + done.stderr


def expect(condition, what):
    if not condition:
        sys.exit(f"same_bits_test.py: {what}")


def read(path):
    with open(path, encoding="utf-8") as file:
        return [json.loads(line) for line in file]


def write(path, lines):
    with open(path, "w", encoding="utf-8") as file:
        file.writelines(json.dumps(line) + "\n" for line in lines)


def with_change(lines, name, change):
    """The lines of a record, of which `change` has changed one run."""
    changed = json.loads(json.dumps(lines))
    for line in changed[1:]:
        if line["run"] == name:
            change(line)
    return changed


def replace_seed(run):
    run["steps"][0][run["steps"][0].index("--seed") + 1] = "8"


def replace_token(run):
    run["answers"][0]["lines"][0]["token_ids"][5] ^= 1


def main(program):
    with tempfile.TemporaryDirectory() as folder:
        first, second, changed, saved = (os.path.join(folder, name) for name in ("a", "b", "c", "saved"))
        for path, more in ((first, ["--prefixes", saved]), (second, [])):
            status, said = same_bits("record", program, path, *more)
            expect(status == 0 and f"{RUNS} runs recorded, 0 answers are errors" in said, f"record says {said}")
        lines = read(first)
        expect(lines == read(second), "two records of one program differ")
        expect(len(lines) == RUNS + 1 and all(answer["lines"] for run in lines[1:] for answer in run["answers"]),
               "a run has no answer")
        cached = [line.get("cached") for run in lines if run.get("run") == "prefix/plain" for answer in run["answers"]
                  for line in answer["lines"]]
        expect(cached[0] == 0 and all(cached[1:]), f"saved prefixes were not hit: {cached}")

        status, said = same_bits("check", program, first, "--prefixes", saved)
        expect(status == 0 and f"{RUNS} runs compared" in said and ", 0 differ" in said and "2 hits; 0 misses" in said,
               f"check says {said}")
        write(changed, with_change(with_change(lines, "family/llama2/warm", replace_seed), "chat/plain", replace_token))
        status, said = same_bits("check", program, changed)
        expect(status == 1 and ", 2 differ" in said, f"changes are not reported: {said}")
        expect(re.search(r"family/llama2/warm:\n(.*\n)*  logprobs from 0 on", said), f"a seed is not reported: {said}")
        expect(re.search(r"chat/plain:\n  answer 1, token_ids from 5 on", said), f"a token is not reported: {said}")
        write(changed, lines[:-1])
        status, said = same_bits("check", program, changed)
        expect(status == 1 and "record it again" in said, f"a lost run is not reported: {said}")


if __name__ == "__main__":
    main(sys.argv[1])
