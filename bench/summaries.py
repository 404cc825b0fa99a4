"""How much of a model's summaries stays when its prompts are read in 8 bits, and when its weights have 4 bits: ROUGE.

  python3 bench/summaries.py HEADRACE MODEL REPORTS.jsonl [...] [--new-tokens 128] > result.json

REPORTS: one object a line with `text` and `summary` (a human's). Each text is summarised greedily with the system
prompt that SmolLM2 was trained on: with bf16 weights and bf16 prefill (the base), with --prefill-type int8, and with
--weights q4_k. The result has, for the last two, ROUGE-1, ROUGE-2 and ROUGE-L against the base's summaries, the share
of summaries that are the same, and for all three ROUGE against the human's. F1 over words in small letters, averaged.
"""
import argparse, collections, json, os, re, subprocess, sys, tempfile

SYSTEM = ("Provide a concise, objective summary of the input text in up to three sentences, focusing on key actions and "
          "intentions without using second or third person pronouns.")
RUNS = {"base": [], "prefill in int8": ["--prefill-type", "int8"], "weights in q4_k": ["--weights", "q4_k"]}


def words(text):
    return re.findall(r"[a-z0-9]+", text.lower())


def f1(common, a, b):
    return 2 * common / (a + b) if a + b else 1.0


def rouge_n(a, b, n):
    grams = [collections.Counter(zip(*(x[i:] for i in range(n)))) for x in (a, b)]
    return f1(sum((grams[0] & grams[1]).values()), sum(grams[0].values()), sum(grams[1].values()))


def rouge_l(a, b):
    row = [0] * (len(b) + 1)
    for x in a:
        before = 0
        for j, y in enumerate(b, 1):
            before, row[j] = row[j], before + 1 if x == y else max(row[j], row[j - 1])
    return f1(row[-1], len(a), len(b))


def compare(texts, references):
    pairs = [(words(a), words(b)) for a, b in zip(texts, references)]
    mean = lambda score: round(sum(score(a, b) for a, b in pairs) / len(pairs), 4)
    return {"rouge_1": mean(lambda a, b: rouge_n(a, b, 1)), "rouge_2": mean(lambda a, b: rouge_n(a, b, 2)),
            "rouge_l": mean(rouge_l)}


def summaries(a, reports, flags, folder):
    requests, answers = os.path.join(folder, "requests.jsonl"), os.path.join(folder, "answers.jsonl")
    with open(requests, "w", encoding="utf8") as f:
        for number, report in enumerate(reports):
            messages = [{"role": "system", "content": SYSTEM}, {"role": "user", "content": report["text"]}]
            f.write(json.dumps({"custom_id": str(number), "method": "POST", "url": "/v1/chat/completions", "body": {
                "model": "m", "messages": messages, "temperature": 0, "max_tokens": a.new_tokens}}) + "\n")
    command = [a.headrace, "batch", "-m", a.model, "-i", requests, "-o", answers, "--dtype", "bf16", *flags]
    if "--prefill-type" not in flags:
        command += ["--prefill-type", "bf16"]
    if "--weights" not in flags:
        command += ["--weights", "dtype"]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"{' '.join(command)}: exit code {done.returncode}\n{done.stderr[-2000:]}")
    texts = {}
    with open(answers, encoding="utf8") as f:
        for line in f:
            row = json.loads(line)
            texts[int(row["custom_id"])] = row["response"]["body"]["choices"][0]["message"]["content"]
    os.remove(answers)
    return [texts[number] for number in range(len(reports))]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("headrace")
    parser.add_argument("model")
    parser.add_argument("reports", nargs="+")
    parser.add_argument("--new-tokens", type=int, default=128)
    a = parser.parse_args()
    reports = []
    for path in a.reports:
        with open(path, encoding="utf8") as f:
            reports += [json.loads(line) for line in f]
    with tempfile.TemporaryDirectory() as folder:
        texts = {name: summaries(a, reports, flags, folder) for name, flags in RUNS.items()}
    people, rows = [report["summary"] for report in reports], []
    for name, found in texts.items():
        row = {"run": name, "against_the_human": compare(found, people)}
        if name != "base":
            row["against_base"] = compare(found, texts["base"])
            row["same_text"] = sum(x == y for x, y in zip(found, texts["base"]))
        rows.append(row)
    print(json.dumps({"program": "bench/summaries.py", "files": [os.path.basename(path) for path in a.reports],
                      "summaries": len(reports), "new_tokens": a.new_tokens, "rows": rows}, indent=1))


if __name__ == "__main__":
    main()
