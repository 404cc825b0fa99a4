#!/usr/bin/env python3
"""The tables of the papers (SpecPV, SpecExtend, LongSpec) on this machine, with the papers' figures beside.

  python3 bench/papers.py BUILD TARGET --data DIR --out DIR [--table specpv-1]... [--eagle3 DIR] [--yarn DIR]
                          [--small DIR] [--itself DIR] [--longspec DIR] [--texts 20] [--lengths 10K,30K,60K]
                          [--kv device,host] [-n 256] [--minutes 8] [--device cuda] [--vram 22GiB] [--only ROW]...

BUILD: a build folder with bench/systems_bench and cli/headrace. TARGET: the reader's model, or SmolLM2-64K, inflated by
bench/inflate.py or as it is. --data: a folder with books/*.txt and govreport/*.jsonl ({"text": ...} a line). Drafts:
--eagle3 an EAGLE-3 head, --yarn one trained for long texts by YaRN, --small a small model with the target's tokenizer,
--itself a model that is cheaper than the target but writes as it does, --longspec a LongSpec layer. A row whose draft
is not given is left out. TARGET has to fit the longest --lengths.

Rows are kept in OUT/TABLE.jsonl as they come, and a row that is there is not run again: the same command goes on where
it was stopped, by hand or by --minutes. OUT/papers.json and OUT/papers.md are written anew each time, from all tables
whose rows are in OUT. All cells of one table should be of one card: the rows name it, and the page says if they differ.
"""
import argparse
import json
import os
import re
import statistics
import subprocess
import sys
import time

sys.dont_write_bytecode = True
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import papers_tables  # noqa: E402

SUMMARISE, CONTINUE = "Write a short summary of the text above.", "Continue the story above in its own style."


def tokens_of(text):
    match = re.fullmatch(r"(\d+)(K?)", text)
    if not match:
        raise argparse.ArgumentTypeError(f"'{text}' is not a number of tokens such as 4096 or 4K")
    return int(match[1]) * (1024 if match[2] else 1)


def arguments(argv):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("build")
    parser.add_argument("target")
    parser.add_argument("--data", required=True)
    parser.add_argument("--out", required=True)
    parser.add_argument("--table", action="append", choices=list(papers_tables.TABLES))
    for name in papers_tables.DRAFTS:
        parser.add_argument("--" + name)
    parser.add_argument("--texts", type=int, default=20)
    parser.add_argument("--lengths", type=lambda text: [tokens_of(one) for one in text.split(",")])
    parser.add_argument("--kv", type=lambda text: text.split(","))
    parser.add_argument("-n", "--new-tokens", type=int, default=256)
    parser.add_argument("--minutes", type=float, default=0)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--vram")
    parser.add_argument("--only", action="append", help="rows of these names alone")
    return parser.parse_args(argv)


def read_lines(path):
    if not os.path.exists(path):
        return []
    rows = []
    with open(path, encoding="utf-8") as file:
        for line in file:
            try:
                rows.append(json.loads(line))
            except ValueError:  # the program was stopped inside a line
                pass
    return rows


# ---- texts ----------------------------------------------------------------------------------------------------------

def write_text(folder, name, text):
    os.makedirs(folder, exist_ok=True)
    path = os.path.join(folder, name + ".txt")
    if not os.path.exists(path):
        with open(path, "w", encoding="utf-8") as file:
            file.write(text)
    return path


def books(a, longest, count):
    """Parts of books that are long enough, the first of each book, then the second, and so on."""
    size = longest * 6  # bytes: more than any tokenizer takes for such a prompt; systems_bench cuts it
    folder = os.path.join(a.data, "books")
    texts = []
    for name in sorted(os.listdir(folder)):
        with open(os.path.join(folder, name), encoding="utf-8", errors="replace") as file:
            texts.append((os.path.splitext(name)[0], file.read()))
    parts = [(part, name, text[part * size:(part + 1) * size]) for name, text in texts
             for part in range(max(1, len(text) // size))]
    parts.sort(key=lambda part: part[0])
    return [write_text(os.path.join(a.out, "texts"), f"{name}-{size}-{part}", text)
            for part, name, text in parts[:count]]


def reports(a, longest, count):
    """Government reports of the length in thousands that is next to `longest` tokens."""
    folder = os.path.join(a.data, "govreport")
    lengths = {tokens_of(name[:-6]): name for name in os.listdir(folder) if re.fullmatch(r"\d+K\.jsonl", name)}
    nearest = min(lengths, key=lambda length: (length < longest, abs(length - longest)))
    rows = read_lines(os.path.join(folder, lengths[nearest]))
    return [write_text(os.path.join(a.out, "texts"), f"govreport-{lengths[nearest][:-6]}-{i:02}", row["text"])
            for i, row in enumerate(rows[:count])]


# ---- runs -----------------------------------------------------------------------------------------------------------

class Clock:
    def __init__(self, minutes):
        self.end = time.monotonic() + 60 * minutes if minutes > 0 else None

    def left(self):  # minutes; None: no limit
        return None if self.end is None else (self.end - time.monotonic()) / 60

    def over(self):
        return self.end is not None and self.left() <= 0


def run(command):
    print("papers:", " ".join(command), file=sys.stderr, flush=True)
    done = subprocess.run(command, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    if done.returncode:
        print(f"papers: exit code {done.returncode}: {done.stderr[-2000:]}", file=sys.stderr, flush=True)
    return done


def run_systems(a, name, table, clock):
    lengths = a.lengths or table["lengths"]
    systems = os.path.join(a.out, name + ".systems.txt")
    with open(systems, "w", encoding="utf-8") as file:
        for system, flags in table["systems"]:
            file.write(f"{system} | {flags}\n")
    for length_group in table.get("groups", lambda all_lengths: [all_lengths])(lengths):
        texts = (books if table["texts"] == "books" else reports)(a, max(length_group), a.texts)
        if clock.over():
            return
        command = [os.path.join(a.build, "bench", "systems_bench"), a.target, systems, *texts,
                   "--out", os.path.join(a.out, name + ".jsonl"), "--tokens", ",".join(map(str, length_group)),
                   "--kv", ",".join(a.kv or table["kv"]), "--temp", "0", "-n", str(a.new_tokens), "--device", a.device,
                   "--answers", "--instruction", CONTINUE if table["texts"] == "books" else SUMMARISE]
        for draft in papers_tables.DRAFTS:
            if getattr(a, draft):
                command += ["--model", f"{draft}={getattr(a, draft)}"]
        for only in a.only or []:
            command += ["--only", only]
        if a.vram:
            command += ["--vram", a.vram]
        if clock.left() is not None:
            command += ["--minutes", f"{clock.left():.3f}"]
        run(command)


def run_needles(a, name, table, clock):
    path = os.path.join(a.out, name + ".jsonl")
    done = {(row["system"], row["context"]) for row in read_lines(path)}
    folder = os.path.join(a.data, "books")
    documents = [os.path.join(folder, book) for book in sorted(os.listdir(folder))][:max(1, a.texts // 3)]
    for system, flags in table["systems"]:
        words = flags.split()
        draft = words[words.index("--model-draft") + 1]
        if not getattr(a, draft) or (a.only and system not in a.only):
            continue
        words[words.index("--model-draft") + 1] = getattr(a, draft)
        for length in a.lengths or table["lengths"]:
            if (system, length) in done or clock.over():
                continue
            command = [os.path.join(a.build, "cli", "headrace"), "bench", "quality", "--draft-needle", "-m", a.target,
                       "--prompt-tokens", str(length), "--device", a.device, "--json", "-q", *words,
                       *(["--vram", a.vram] if a.vram else [])]
            for document in documents:
                command += ["--documents", document]
            answer = run(command)
            if answer.returncode == 0:
                report = json.loads(answer.stdout)
                row = {"system": system, "context": length, "flags": flags, **report}
                with open(path, "a", encoding="utf-8") as file:
                    file.write(json.dumps(row) + "\n")


# ---- the page -------------------------------------------------------------------------------------------------------

def machines(rows):
    found = []
    for row in rows:
        machine = row.get("machine")
        if machine is not None and machine not in found:
            found.append(machine)
    return found


def machine_text(machine):
    return ", ".join(str(value) for key, value in machine.items() if key in ("device", "cpu", "gpu", "cores"))


def spread(values):
    """The mean, and the standard deviation over the texts if there are several."""
    mean = statistics.fmean(values)
    return f"{mean:.2f}" + (f" ± {statistics.stdev(values):.2f}" if len(values) > 1 else "")


def write_page(a):
    """Returns the lossless rows whose text is not plain decoding's."""
    wrong = []
    result, page = {"program": "bench/papers.py", "tables": {}}, ["# The papers' tables", ""]
    for name, table in papers_tables.TABLES.items():
        rows = read_lines(os.path.join(a.out, name + ".jsonl"))
        if not any("system" in row for row in rows):
            continue
        cells = [row for row in rows if "system" in row and "error" not in row]
        faults = papers_tables.faults(table, cells)
        wrong += faults
        result["tables"][name] = {"title": table["title"], "machines": machines(rows), "faults": faults,
                                  "paper": table["paper"],
                                  "cells": papers_tables.summary(table, cells),
                                  "failed": [row for row in rows if "error" in row]}
        page += [f"## {table['title']}", ""]
        page += [f"{machine_text(machine)}." for machine in machines(rows)]
        if len(machines(rows)) > 1 and not table.get("needles"):
            page.append("**Cells are of different machines.**")
        page += ["**Differs from plain decoding:** " + fault for fault in faults]
        page += ["", papers_tables.explain(table), "", papers_tables.markdown(table, cells, spread), ""]
        page += [f"{row.get('system', row.get('failed'))}: {row['error']}" for row in rows if "error" in row]
        if table["paper"]:
            page += ["The paper's figures (its models and cards):", "", papers_tables.paper_markdown(table), ""]
    for suffix, text in (("json", json.dumps(result, indent=1, ensure_ascii=False) + "\n"),
                         ("md", "\n".join(page) + "\n")):
        with open(os.path.join(a.out, "papers." + suffix), "w", encoding="utf-8") as file:
            file.write(text)
    return wrong


def main(argv):
    a = arguments(argv)
    os.makedirs(a.out, exist_ok=True)
    clock = Clock(a.minutes)
    for name in a.table or papers_tables.TABLES:
        table = papers_tables.TABLES[name]
        if not clock.over():
            (run_needles if table.get("needles") else run_systems)(a, name, table, clock)
            write_page(a)
    wrong = write_page(a)
    print(os.path.join(a.out, "papers.md"))
    if wrong:
        sys.exit("papers: differs from plain decoding: " + "; ".join(wrong))


if __name__ == "__main__":
    main(sys.argv[1:])
