"""What look-up in the text (--spec-type ngram-simple) gains where the answer quotes its document, and what it costs
where it does not, beside --verify auto: the question whether it can be the default of a model without a draft.

  python3 bench/look_up_default.py HEADRACE MODEL REPORTS.jsonl [--documents 4] [--new-tokens 256] [--repeat 3]
      [--flags "--device cuda -c 32K"] > result.json

REPORTS: one object a line with `text`. Each document is asked four questions: two whose answers quote it (greedy), a
summary (greedy), and a story at temperature 1 that has nothing to do with it. Each is answered with and without look-up
in turn, where the KV cache is on the device and where it streams from host memory. A row has the medians of decoded
tokens/s, their ratio, the tokens per step, and whether all answers were the same. At the end: the worst ratio, and the
worst one of each question.
"""
import argparse, json, os, shlex, statistics, sys, tempfile

from headrace_json import json_of

QUESTIONS = {
    "copy": ("Repeat the text above word for word, from its beginning.", ["--temp", "0"]),
    "extract": ("List the sentences of the text above that have a number in them, word for word.", ["--temp", "0"]),
    "summary": ("Write a short summary of the text above.", ["--temp", "0"]),
    "story": ("Forget the text above. Write a story about a lighthouse keeper and her cat.", ["--temp", "1"]),
}
PLACES = {"on the device": ["--kv", "device"], "streamed": ["--kv", "host"]}


def answer(a, document, question, flags):
    prompt, sampling = QUESTIONS[question]
    command = [a.headrace, "generate", "-m", a.model, "-f", document, "-p", "\n\n" + prompt, "-n", str(a.new_tokens),
               "--ignore-eos", "--json", "-q", *sampling, *flags, *a.flags]
    return json_of(command)


def row(a, place, document, question):
    runs = {"none": [], "ngram-simple": []}
    for _ in range(a.repeat):
        for kind, found in runs.items():
            found.append(answer(a, document, question, ["--spec-type", kind, *PLACES[place]]))
    speeds = {kind: [run["timings"]["decode_tokens_per_s"] for run in found] for kind, found in runs.items()}
    medians = {kind: statistics.median(values) for kind, values in speeds.items()}
    with_it = runs["ngram-simple"][0]
    return {"place": place, "document": os.path.basename(document), "question": question,
            "prompt_tokens": with_it["prompt_tokens"], "verify": with_it["speculation"]["verify"],
            "tokens_per_s": {kind: round(value, 2) for kind, value in medians.items()},
            "ratio": round(medians["ngram-simple"] / medians["none"], 4),
            "spread": round(max((max(v) - min(v)) / min(v) for v in speeds.values()), 4),
            "tokens_per_step": round(with_it["speculation"]["tokens_per_step"], 3),
            "same_text": len({tuple(run["token_ids"]) for found in runs.values() for run in found}) == 1}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("headrace")
    parser.add_argument("model")
    parser.add_argument("reports")
    parser.add_argument("--documents", type=int, default=4)
    parser.add_argument("--characters", type=int, default=60000)
    parser.add_argument("--new-tokens", type=int, default=256)
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--places", default=",".join(PLACES))
    parser.add_argument("--flags", type=shlex.split, default=[])
    a = parser.parse_args()
    with open(a.reports, encoding="utf8") as f:
        texts = [json.loads(line)["text"][:a.characters] for line in f][:a.documents]
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        for number, text in enumerate(texts):
            document = os.path.join(folder, f"{number}.txt")
            with open(document, "w", encoding="utf8") as f:
                f.write(text)
            for place in a.places.split(","):
                for question in QUESTIONS:
                    rows.append(row(a, place, document, question))
                    print(json.dumps(rows[-1]), file=sys.stderr, flush=True)
    worst = {place: {question: min(r["ratio"] for r in rows if r["question"] == question and r["place"] == place)
                     for question in QUESTIONS} for place in a.places.split(",")}
    print(json.dumps({"program": "bench/look_up_default.py", "model": os.path.basename(a.model), "flags": a.flags,
                      "new_tokens": a.new_tokens, "repeat": a.repeat, "same_text": all(r["same_text"] for r in rows),
                      "worst_ratio": worst, "rows": rows}, indent=1))


if __name__ == "__main__":
    main()
