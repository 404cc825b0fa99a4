"""bench/papers.py with programs that stand in for systems_bench and headrace: what it runs, keeps, continues and prints.

  python3 tests/papers_test.py
"""
import json
import os
import subprocess
import sys
import tempfile

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
sys.dont_write_bytecode = True
sys.path.insert(0, os.path.join(ROOT, "bench"))
import papers_tables  # noqa: E402

# Writes a row for each text, system and length that is not there yet, at most as many as LIMIT says.
BENCH = r'''#!/usr/bin/env python3
import json, os, sys
args, positional, flags, i = sys.argv[1:], [], {}, 0
while i < len(args):
    if args[i] == "--answers": flags[args[i]] = [""]; i += 1
    elif args[i].startswith("-"): flags.setdefault(args[i], []).append(args[i + 1]); i += 2
    else: positional.append(args[i]); i += 1
out, left = flags["--out"][0], int(os.environ.get("LIMIT", "1000"))
done = set()
if os.path.exists(out):
    for line in open(out):
        row = json.loads(line)
        if "system" in row: done.add((row["system"], row["text"], row["context"], row["kv"]))
drafts = {model.split("=")[0] for model in flags.get("--model", [])}
with open(out, "a") as file:
    print(json.dumps({"program": "systems_bench", "machine": {"cpu": "a test"}}), file=file)
    for text in positional[2:]:
        words = open(text).read().split()
        for line in open(positional[1]):
            name, of_system = (part.strip() for part in line.split("|"))
            if "--only" in flags and name not in flags["--only"]: continue
            if "--model-draft" in of_system and of_system.split("--model-draft ")[1].split()[0] not in drafts: continue
            for tokens in map(int, flags["--tokens"][0].split(",")):
                for kv in flags["--kv"][0].split(","):
                    key = (name, os.path.basename(text)[:-4], tokens, kv)
                    if key in done or left == 0: continue
                    left -= 1
                    same = "approximate" not in of_system
                    row = dict(zip(("system", "text", "context", "kv"), key), tokens_per_s=10.0 if name == "AR" else 25.0,
                               tokens_per_s_with_prefill=5.0, answer="same" if same else "other",
                               answer_text="one two three four" if same else "one two five four")
                    if os.environ.get("BROKEN") == name: row["answer_text"] = "seven " + row["answer_text"]
                    if name != "AR": row.update(tau=1.5, judged=100, overturn_rate=0.03)
                    print(json.dumps(row), file=file)
'''
HEADRACE = r'''#!/usr/bin/env python3
import json, sys
assert sys.argv[1:4] == ["bench", "quality", "--draft-needle"], sys.argv
print(json.dumps({"machine": {"cpu": "a test"}, "rows": [{"first": 3, "tokens": 7}, {"first": 7, "tokens": 7}],
                  "all_documents": {"perplexity": 2.5}}))
'''


def program(path, text):
    os.makedirs(os.path.dirname(path))
    with open(path, "w", encoding="utf-8") as file:
        file.write(text)
    os.chmod(path, 0o755)


def papers(folder, *more, **environment):
    command = [sys.executable, os.path.join(ROOT, "bench/papers.py"), os.path.join(folder, "build"), "target",
               "--data", os.path.join(folder, "data"), "--out", os.path.join(folder, "out"), "--eagle3", "head",
               "--small", "small", *more]
    return subprocess.run(command, capture_output=True, text=True, env={**os.environ, **environment})


def lines(folder, table):
    with open(os.path.join(folder, "out", table + ".jsonl"), encoding="utf-8") as file:
        return [row for row in map(json.loads, file) if "system" in row]


def page(folder):
    with open(os.path.join(folder, "out", "papers.md"), encoding="utf-8") as file:
        return file.read()


def test_scores():
    assert papers_tables.rouge_l("The same text.", "the same text") == 1
    assert papers_tables.rouge_l("one two three four", "one two five four") == 0.75
    assert papers_tables.rouge_l("", "") == 1 and papers_tables.rouge_l("a", "") == 0
    assert papers_tables.length_name(10240) == "10K" and papers_tables.length_name(500) == "500"


def test_a_table_is_continued(folder):
    flags = ["--table", "specpv-1", "--lengths", "1K,2K", "--texts", "2", "--kv", "device"]
    assert papers(folder, *flags, LIMIT="5").returncode == 0
    assert len(lines(folder, "specpv-1")) == 5
    assert papers(folder, *flags).returncode == 0
    rows = lines(folder, "specpv-1")
    keys = [(row["system"], row["text"], row["context"]) for row in rows]
    with_drafts = [name for name, of in papers_tables.SPECPV_1 if "--model-draft yarn" not in of]
    assert len(keys) == len(set(keys)) == 2 * 2 * len(with_drafts), len(keys)
    text = page(folder)
    assert "| AR | 10.00 ± 0.00 tokens/s | 10.00 ± 0.00 tokens/s |" in text, text
    assert "| SpecPV-4K, approximate | 2.50 ± 0.00 x, tau 1.50 ± 0.00 |" in text, text
    assert "6.15 x, tau 3.56" in text and "a test" in text
    with open(os.path.join(folder, "out", "papers.json"), encoding="utf-8") as file:
        table = json.load(file)["tables"]["specpv-1"]
    cell = next(c for c in table["cells"] if c["system"] == "EAGLE-3" and c["context"] == 2048)
    assert cell["speedup"] == 2.5 and cell["texts"] == 2 and cell["speedup_spread"] == 0
    assert table["faults"] == []


def test_similarity_and_needles(folder):
    assert papers(folder, "--table", "specpv-2", "--table", "specextend-1", "--texts", "3", "--lengths",
                  "4K").returncode == 0
    text = page(folder)
    assert "ROUGE-L 0.75 ± 0.00, 0 of 3 equal, 2.50 ± 0.00 x, tau 1.50 ± 0.00, 3.0% wrong" in text, text
    assert "ROUGE-L 1.00 ± 0.00, 3 of 3 equal" in text, text
    assert "| small model, SpecExtend, retrieval | 0.71 ± 0.40, 2.50 |" in text, text
    assert "itself" not in "".join(row["flags"] for row in lines(folder, "specextend-1"))  # it was not given


def test_a_lossless_row_that_differs_is_said(folder):
    done = papers(folder, "--table", "specpv-1", "--lengths", "1K", "--texts", "1", "--kv", "device", BROKEN="EAGLE-3")
    assert done.returncode == 1, done
    assert "EAGLE-3" in done.stderr and "differs" in done.stderr, done.stderr
    assert "**Differs from plain decoding:** EAGLE-3" in page(folder)


def test_wrong_words(folder):
    for more, says in ((["--table", "none"], "invalid choice"), (["--lengths", "4Q"], "'4Q' is not a number")):
        done = papers(folder, *more)
        assert done.returncode == 2 and says in done.stderr, done.stderr


def main():
    test_scores()
    for test in (test_a_table_is_continued, test_similarity_and_needles, test_a_lossless_row_that_differs_is_said,
                 test_wrong_words):
        with tempfile.TemporaryDirectory() as folder:
            program(os.path.join(folder, "build/bench/systems_bench"), BENCH)
            program(os.path.join(folder, "build/cli/headrace"), HEADRACE)
            for name, text in (("books/a.txt", "word " * 9000), ("books/b.txt", "other " * 9000)):
                os.makedirs(os.path.dirname(os.path.join(folder, "data", name)), exist_ok=True)
                with open(os.path.join(folder, "data", name), "w", encoding="utf-8") as file:
                    file.write(text)
            os.makedirs(os.path.join(folder, "data/govreport"))
            with open(os.path.join(folder, "data/govreport/4K.jsonl"), "w", encoding="utf-8") as file:
                for i in range(4):
                    print(json.dumps({"id": str(i), "text": f"report {i} " * 3000}), file=file)
            test(folder)
    print("papers_test: passed")


main()
