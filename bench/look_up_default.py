"""What look-up in the text (--spec-type ngram-simple) gains where the answer quotes its document, and what it costs
where it does not, beside --verify auto: the question whether it can be the default of a model without a draft.

  python3 bench/look_up_default.py HEADRACE MODEL REPORTS.jsonl [--stories 3] [--repeat 2] [--weights keep,q4_k]
      [--flags "--device cuda -c 32K"] > result.json

REPORTS: one object a line with `text`. Batches ask for the first document again word for word and for a summary of it
(greedy), and for a story that has nothing to do with a document, once for each of the first documents (temperature 1).
Each batch is answered with and without look-up in turn, where the KV cache is on the device and where it streams from
host memory. A row has the medians of decoded tokens/s, their ratio, the spread of each, and whether all answers were
the same; `worst_ratio` is the least of them by weights, place and question.
"""
import argparse, json, os, shlex, statistics, sys, tempfile

from headrace_json import output_of

QUESTIONS = {
    "copy": ("Repeat the text above word for word, from its beginning.", 0),
    "summary": ("Write a short summary of the text above.", 0),
    "story": ("Forget the text above. Write a story about a lighthouse keeper and her cat.", 1),
}
PLACES = {"on the device": ["--kv", "device"], "streamed": ["--kv", "host"]}
KINDS = ("none", "ngram-simple")


def requests(a, texts):
    for question, (prompt, temperature) in QUESTIONS.items():
        for number, text in enumerate(texts[:a.stories if question == "story" else 1]):
            body = {"model": "any", "messages": [{"role": "user", "content": text + "\n\n" + prompt}],
                    "max_tokens": a.story_tokens if question == "story" else a.new_tokens,
                    "temperature": temperature, "seed": 7 + number}
            yield {"custom_id": f"{question} {number}", "method": "POST", "url": "/v1/chat/completions", "body": body}


def answers(a, folder, weights, place, kind):
    """By custom_id: tokens/s and the text."""
    results = os.path.join(folder, "results.jsonl")
    if os.path.exists(results):
        os.remove(results)
    command = [a.headrace, "batch", "-m", a.model, "-i", os.path.join(folder, "requests.jsonl"), "-o", results,
               "--spec-type", kind, "--weights", weights, "--in-order", "--ignore-eos", "-q", *PLACES[place], *a.flags]
    output_of(command)
    found = {}
    with open(results, encoding="utf8") as f:
        for line in map(json.loads, f):
            body = line["response"]["body"]
            found[line["custom_id"]] = (body["timings"]["predicted_per_second"], body["choices"][0]["message"]["content"])
    return found


def rows_of(weights, place, runs):
    """`runs`: for each kind, what answers() returned."""
    for name in runs["none"][0]:
        speeds = {kind: [run[name][0] for run in found] for kind, found in runs.items()}
        medians = {kind: statistics.median(values) for kind, values in speeds.items()}
        yield {"weights": weights, "place": place, "question": name.split()[0], "document": int(name.split()[1]),
               "tokens_per_s": {kind: round(value, 2) for kind, value in medians.items()},
               "ratio": round(medians["ngram-simple"] / medians["none"], 4),
               "spread": {kind: round((max(v) - min(v)) / min(v), 4) for kind, v in speeds.items()},
               "same_text": len({run[name][1] for found in runs.values() for run in found}) == 1}


def result_of(a, rows):
    worst = {}
    for row in rows:
        of_place = worst.setdefault(row["weights"], {}).setdefault(row["place"], {})
        of_place[row["question"]] = min(row["ratio"], of_place.get(row["question"], row["ratio"]))
    return {"program": "bench/look_up_default.py", "model": os.path.basename(a.model), "flags": a.flags,
            "new_tokens": a.new_tokens, "story_tokens": a.story_tokens, "repeat": a.repeat,
            "same_text": all(row["same_text"] for row in rows), "worst_ratio": worst, "rows": rows}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("headrace")
    parser.add_argument("model")
    parser.add_argument("reports")
    parser.add_argument("--stories", type=int, default=3)
    parser.add_argument("--characters", type=int, default=60000)
    parser.add_argument("--new-tokens", type=int, default=256)
    parser.add_argument("--story-tokens", type=int, default=400)
    parser.add_argument("--repeat", type=int, default=2)
    parser.add_argument("--weights", default="keep")
    parser.add_argument("--places", default=",".join(PLACES))
    parser.add_argument("--flags", type=shlex.split, default=[])
    a = parser.parse_args()
    with open(a.reports, encoding="utf8") as f:
        texts = [json.loads(line)["text"][:a.characters] for line in f]
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        with open(os.path.join(folder, "requests.jsonl"), "w", encoding="utf8") as f:
            f.writelines(json.dumps(request) + "\n" for request in requests(a, texts))
        for weights in a.weights.split(","):
            for place in a.places.split(","):
                runs = {kind: [] for kind in KINDS}
                for _ in range(a.repeat):
                    for kind, found in runs.items():
                        found.append(answers(a, folder, weights, place, kind))
                rows += rows_of(weights, place, runs)
                for row in rows[-len(runs["none"][0]):]:
                    print(json.dumps(row), file=sys.stderr, flush=True)
    print(json.dumps(result_of(a, rows), indent=1))


if __name__ == "__main__":
    main()
