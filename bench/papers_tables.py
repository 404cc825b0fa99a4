"""What bench/papers.py runs and prints: for each table of a paper its rows as flags, its cells, the paper's figures.

The papers' figures are of their own models and cards: SpecPV (arXiv 2512.02337) Llama-3.1-8B on an A100, SpecExtend
(2505.20776) Vicuna-7B on an A100, LongSpec (2502.17421) Vicuna-7B on an A100. tau is accepted draft tokens a step, as
SpecPV counts it; LongSpec's figures, which count the target's own token, are given less one.
"""
import collections
import re
import statistics

DRAFTS = ("eagle3", "yarn", "small", "itself", "longspec")
K = 1024
HEAD = "--spec-type draft-eagle3 --model-draft eagle3 --tree eagle2:60,7,10"
YARN = "--spec-type draft-eagle3 --model-draft yarn --tree eagle2:60,7,10 --draft-window 0"
SMALL = "--spec-type draft-simple --model-draft small"
PARTIAL = ("--partial-kv blocks --block-score specpv --block-reduce {reduce} --block-queries tree --block-window 128 "
           "--partial-budget {budget}")


def partial(mode, budget, reduce="mean", interval=20):
    auto = mode == "lossless" and interval == 20
    return (f"{HEAD} --verify {mode} " + PARTIAL.format(reduce=reduce, budget=budget)
            + ("" if auto else f" --refresh-interval {interval}"))


SPECPV_1 = [
    ("AR", "--verify full -n 64"),  # a step takes as long whatever the text is
    ("SpecPV-4K, approximate", partial("approximate", 4 * K)),
    ("EAGLE-3", f"{HEAD} --verify full"),
    ("SpecPV-4K, lossless", partial("lossless", 4 * K)),
    ("int8 copy, lossless", "--spec-type draft-eagle3 --model-draft eagle3 --verify lossless --partial-kv int8"),
    ("TriForce", f"{SMALL} --tree chain:6 --verify lossless --partial-kv blocks --partial-budget 4096 --pending chain"),
    ("EAGLE-3, whole text", f"{HEAD} --draft-window 0 --verify full"),
    ("EAGLE-3, YaRN", f"{YARN} --verify full"),
    ("SpecPV-2K, approximate", partial("approximate", 2 * K)),
    ("SpecPV-8K, approximate", partial("approximate", 8 * K)),
    ("SpecPV-2K, lossless", partial("lossless", 2 * K)),
    ("SpecPV-8K, lossless", partial("lossless", 8 * K)),
]
BASE = [("AR", "--verify full"), ("EAGLE-3", f"{HEAD} --verify full")]
BUDGETS = BASE + [(f"SpecPV, budget {budget}", partial("approximate", budget)) for budget in (4096, 512, 2048)]


def retrieval(draft, shape="", tree="opt:50,10,0.7"):
    kinds = {"small": SMALL, "eagle3": "--spec-type draft-eagle3 --model-draft eagle3",
             "itself": "--spec-type draft-simple --model-draft itself"}
    return f"{kinds[draft]} --draft-cache retrieval{shape} --tree {tree} --verify full"


def of_cache(draft, cache, tree="opt:50,10,0.7"):
    return retrieval(draft, tree=tree).replace("--draft-cache retrieval", cache)


def needle(draft, cache):
    return of_cache(draft, cache).split(" --tree")[0]


SPECEXTEND_2 = [("AR", "--verify full")]
for says, draft, window in (("small model", "small", 1024), ("EAGLE-3", "eagle3", 2048)):
    SPECEXTEND_2 += [(f"{says}, SpecExtend", retrieval(draft)),
                     (f"{says}, whole text", of_cache(draft, "--draft-window 0")),
                     (f"{says}, StreamingLLM", of_cache(draft, f"--draft-window {window}"))]
SWEEP = [("AR", "--verify full -n 64"), ("StreamingLLM", of_cache("small", "--draft-window 1024"))]
SWEEP += [(f"{1024 // rows} chunks of {rows}, every 4", retrieval("small", f":{1024 // rows},{rows},4"))
          for rows in (16, 32, 64, 128)]
SWEEP += [(f"{chunks} chunks of 32, every 4", retrieval("small", f":{chunks},32,4")) for chunks in (8, 16, 64)]
SWEEP += [(f"32 chunks of 32, every {every}", retrieval("small", f":32,32,{every}")) for every in (1, 8, 16, 64)]
NEEDLES = [(f"{says}, {cache or 'whole text'}", needle(draft, flags))
           for says, draft, window in (("small model", "small", 1024), ("the target's own small model", "itself", 1024),
                                       ("EAGLE-3", "eagle3", 2048))
           for cache, flags in ((f"StreamingLLM, {window}", f"--draft-window {window}"),
                                ("SpecExtend, retrieval", "--draft-cache retrieval"), ("", "--draft-window 0"))]

TABLES = {
    "specpv-1": {
        "title": "SpecPV, Table 1: continuing books, by length and budget", "texts": "books",
        "lengths": [10 * K * i for i in (6, 1, 3, 2, 4, 5)], "kv": ["host", "device"], "systems": SPECPV_1,
        "cells": "speed", "base": "AR",
        "paper": {"EAGLE-3 with YaRN, full verification": {"60K": "3.11 x, tau 3.48"},
                  "SpecPV-4K, approximate": {"60K": "6.15 x, tau 3.56"}}},
    "specpv-2": {
        "title": "SpecPV, Table 2: summaries beside full verification, by budget", "texts": "reports",
        "lengths": [16 * K], "kv": ["device"], "cells": "similarity", "base": "AR",
        "systems": BUDGETS,
        "paper": {"EAGLE-3 (the noise of full verification)": {"GovReport": "ROUGE-L 0.773", "QMSum": "ROUGE-L 0.812"},
                  "SpecPV-4K": {"GovReport": "ROUGE-L 0.625", "QMSum": "ROUGE-L 0.612"},
                  "SpecPV-2K": {"GovReport": "ROUGE-L 0.56", "QMSum": ""}}},
    "specpv-2-books": {
        "title": "The same on books", "texts": "books", "lengths": [16 * K], "kv": ["device"], "cells": "similarity",
        "base": "AR", "paper": {},
        "systems": BUDGETS},
    "specpv-4": {
        "title": "SpecPV, Table 4: how a block's scores are joined, budget 4,096", "texts": "reports",
        "lengths": [16 * K], "kv": ["device"], "cells": "similarity", "base": "AR", "paper": {},
        "systems": BASE + [(f"SpecPV, {reduce}", partial("approximate", 4096, reduce))
                           for reduce in ("mean", "max", "last")]},
    "specpv-6": {
        "title": "SpecPV, Figure 6: tokens between refreshes, budget 4,096", "texts": "reports",
        "lengths": [16 * K], "kv": ["host"], "cells": "similarity", "base": "AR", "paper": {},
        "systems": BASE + [(f"SpecPV, interval {interval}", partial("approximate", 4096, interval=interval))
                           for interval in (20, 8, 40, 64, 128)]},
    "specextend-1": {
        "title": "SpecExtend, Table 1: what drafts find", "needles": True, "lengths": [8 * K, 4 * K],
        "systems": NEEDLES, "cells": "needles",
        "paper": {"whole text": {"needle": "found 0.081, perplexity 8.31"},
                  "StreamingLLM": {"needle": "found 0.166, perplexity 2.44"},
                  "SpecExtend": {"needle": "found 0.823, perplexity 2.24"},
                  "TriForce (a 7B draft)": {"needle": "found 0.976, perplexity 2.19"}}},
    "specextend-2": {
        "title": "SpecExtend, Tables 2 and 6: GovReport by length", "texts": "reports",
        "lengths": [K, 2 * K, 4 * K, 8 * K, 16 * K], "kv": ["device"], "systems": SPECEXTEND_2, "cells": "speed",
        "base": "AR", "groups": lambda lengths: [[length] for length in lengths],  # texts of each length
        "paper": {"68M, whole text": dict(zip(("1K", "2K", "4K", "8K", "16K"), (
                      "tau 1.73", "tau 0.64", "tau 0.60", "tau 0.62", "tau 0.59"))),
                  "68M, SpecExtend (over whole text)": dict(zip(("1K", "2K", "4K", "8K", "16K"), (
                      "1.28 x, tau 2.80", "1.97 x, tau 2.52", "1.82 x, tau 2.04", "2.15 x, tau 2.06",
                      "2.04 x, tau 2.07"))),
                  "EAGLE, whole text": dict(zip(("1K", "2K", "4K", "8K", "16K"), (
                      "tau 3.61", "tau 3.04", "tau 2.27", "tau 1.35", "tau 1.00"))),
                  "EAGLE, SpecExtend (over whole text)": dict(zip(("1K", "2K", "4K", "8K", "16K"), (
                      "1.01 x, tau 3.58", "1.06 x, tau 3.08", "1.29 x, tau 2.80", "1.98 x, tau 2.82",
                      "1.91 x, tau 2.51"))),
                  "retrieval over StreamingLLM (68M)": dict(zip(("1K", "2K", "4K", "8K", "16K"), (
                      "1.01 x, tau 1.04 x", "1.22 x, tau 1.42 x", "1.10 x, tau 1.24 x", "1.03 x, tau 1.12 x",
                      "1.15 x, tau 1.21 x")))}},
    "specextend-5": {
        "title": "SpecExtend, Table 5: size, number and frequency of chunks, 8K", "texts": "reports",
        "lengths": [8 * K], "kv": ["device"], "systems": SWEEP, "cells": "speed", "base": "AR",
        "paper": {"chunk of 1 to 128 tokens": {"8K": "speeds differ by less than 8%; best 32"},
                  "every 1 to 128 steps": {"8K": "speeds differ by less than 4%; best 4 (68M), 8 (EAGLE)"},
                  "cache": {"8K": "best 1K (68M), 2K (EAGLE)"}}},
    "longspec-3": {
        "title": "LongSpec: summaries of GovReport", "texts": "reports", "lengths": [16 * K, 4 * K], "kv": ["device"],
        "cells": "speed", "base": "AR", "groups": lambda lengths: [[length] for length in lengths],
        "systems": [("AR", "--verify full"),
                    ("LongSpec", "--spec-type draft-longspec --model-draft longspec --tree beams:4,16,16,16,16 "
                                 "--verify full"),
                    ("LongSpec, --tree auto", "--spec-type draft-longspec --model-draft longspec --verify full")],
        "paper": {"LongSpec over FlashAttention": {"GovReport": "2.23 x, tau 2.57"}}},
}


# ---- cells ----------------------------------------------------------------------------------------------------------

def words(text):
    return re.findall(r"\w+", text.lower())


def rouge_l(a, b):
    """F1 of the longest common subsequence of words."""
    a, b = words(a), words(b)
    row = [0] * (len(b) + 1)
    for x in a:
        before = 0
        for j, y in enumerate(b, 1):
            before, row[j] = row[j], before + 1 if x == y else max(row[j], row[j - 1])
    return 2 * row[-1] / (len(a) + len(b)) if a or b else 1.0


def length_name(tokens):
    return f"{tokens // K}K" if tokens % K == 0 else str(tokens)


def columns_of(table, rows):
    """(context, kv), in the table's order of lengths from small to large."""
    return sorted({(row["context"], row.get("kv", "")) for row in rows})


def by_system(table, rows):
    named = collections.OrderedDict((system, []) for system, _ in table["systems"])
    for row in rows:
        named.setdefault(row["system"], []).append(row)
    return {system: found for system, found in named.items() if found}


def values(table, rows):
    """For each system and column: what its runs gave, text by text, beside the base's run of the same text."""
    base = {(row["text"], row["context"], row["kv"]): row for row in rows if row["system"] == table.get("base")}
    found = collections.defaultdict(lambda: collections.defaultdict(list))
    for row in rows:
        cell = found[row["system"], (row["context"], row.get("kv", ""))]
        if table["cells"] == "needles":
            of_all = row["all_documents"]
            cell["found"] += [one["first"] / one["tokens"] for one in row["rows"]]
            cell["perplexity"].append(of_all["perplexity"])
            continue
        plain = base.get((row["text"], row["context"], row["kv"]))
        cell["tokens_per_s"].append(row["tokens_per_s"])
        if "tau" in row:
            cell["tau"].append(row["tau"])
        if plain is None or row is plain:
            continue
        cell["speedup"].append(row["tokens_per_s"] / plain["tokens_per_s"])
        cell["speedup_with_prefill"].append(row["tokens_per_s_with_prefill"] / plain["tokens_per_s_with_prefill"])
        if table["cells"] == "similarity":
            cell["rouge_l"].append(rouge_l(row["answer_text"], plain["answer_text"]))
            cell["equal"].append(1.0 if row["answer"] == plain["answer"] else 0.0)
        if "judged" in row and row["judged"] > 0:
            cell["overturned"].append(row["overturn_rate"])
    return found


def faults(table, rows):
    """Rows with a text that should begin as AR's and does not: all but approximate ones."""
    base = {(row["text"], row["context"], row["kv"]): row for row in rows if row["system"] == table.get("base")}
    flags, found = dict(table["systems"]), []
    for row in rows:
        plain = base.get((row.get("text"), row["context"], row.get("kv")))
        if plain is None or "approximate" in flags.get(row["system"], "approximate"):
            continue
        texts = [one["answer_text"].rstrip("\ufffd") for one in (row, plain)]  # a cut character at the end
        if not texts[0].startswith(texts[1]) and not texts[1].startswith(texts[0]):
            found.append(f"{row['system']}, {row['text']}, {row['context']} tokens, {row['kv']}")
    return found


def summary(table, rows):
    out = []
    for (system, (context, kv)), cell in values(table, rows).items():
        line = {"system": system, "context": context, "kv": kv, "texts": max(map(len, cell.values()))}
        for name, numbers in cell.items():
            numbers = [number for number in numbers if number is not None]
            if not numbers:
                continue
            line[name] = round(statistics.fmean(numbers), 4)
            if len(numbers) > 1:
                line[name + "_spread"] = round(statistics.stdev(numbers), 4)
        out.append(line)
    return out


def explain(table):
    return {"speed": "Cells: decoding's speed-up over AR, and tau; of AR tokens/s. Mean and standard deviation over "
                     "the texts.",
            "similarity": "Cells: ROUGE-L over words and the share of texts that equal AR's; speed-up over AR; tau; "
                          "the share of pending tokens that refreshes found wrong.",
            "needles": "Cells: the share of the number's tokens that the draft ranks first, and their perplexity."}[
                table["cells"]]


def cell_text(kind, cell, spread):
    if kind == "needles":
        found = [number for number in cell["perplexity"] if number is not None]
        return spread(cell["found"]) + (f", {found[0]:.2f}" if found else "")
    if not cell["speedup"]:
        return spread(cell["tokens_per_s"]) + " tokens/s"
    parts = [spread(cell["speedup"]) + " x"]
    if cell["tau"]:
        parts.append("tau " + spread(cell["tau"]))
    if kind == "similarity":
        equal = f"{sum(cell['equal']):.0f} of {len(cell['equal'])} equal"
        parts = ["ROUGE-L " + spread(cell["rouge_l"]), equal, *parts]
        if cell["overturned"]:
            parts.append(f"{100 * statistics.fmean(cell['overturned']):.1f}% wrong")
    return ", ".join(parts)


def grid(head, lines):
    text = ["| " + " | ".join(line) + " |" for line in [head, *lines]]
    text.insert(1, "|---" * len(head) + "|")
    return "\n".join(text)


def markdown(table, rows, spread):
    columns, found = columns_of(table, rows), values(table, rows)
    head = [""] + [length_name(context) + (f", {kv}" if kv else "") for context, kv in columns]
    return grid(head, [[system] + [cell_text(table["cells"], found[system, column], spread)
                                   if (system, column) in found else "" for column in columns]
                       for system in by_system(table, rows)])


def paper_markdown(table):
    names = list(collections.OrderedDict.fromkeys(name for line in table["paper"].values() for name in line))
    return grid([""] + names, [[says] + [line.get(name, "") for name in names] for says, line in table["paper"].items()])
