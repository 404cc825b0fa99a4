#!/usr/bin/env python3
"""The lines of systems_bench as one JSON object and as tables.

  systems_table.py FILE... [--json RESULTS.json] [--page] [--contexts 1024,2048]

FILE: lines of systems_bench, or a JSON object that this program wrote. Of a cell with several texts the page has the
means; a text that some systems have not run is in no table of the page. A lossless system's tokens are compared with
those of the plain row of the same cell: the answers' hashes must be equal. Where a file says that its plain rows are of
another build ("plain_of": "another build"), they are compared with those of the other systems of the cell.
--page: decoding speed alone, the tables of docs/measuring.md. Without it every figure, by text and length; --contexts
names lengths that were meant to be measured.
"""
import argparse
import json
import statistics


def read(path):
    """The head, and rows by system, text, context, place of the KV cache and temperature."""
    text = open(path).read()
    head, rows = {}, {}
    try:
        head = json.loads(text)
        lines = head.pop("rows", [])
    except json.JSONDecodeError:
        lines = [parsed for parsed in map(parse_line, text.splitlines()) if parsed]
    for row in lines:
        if "system" in row:
            rows[(row["system"], row["text"].lower(), row["context"], row["kv"], row["temperature"])] = row
        elif "failed" in row:
            print(f"{row['failed']} did not run: {row['error']}")
        else:
            head = row
    return head, rows


def parse_line(line):
    try:
        return json.loads(line)
    except json.JSONDecodeError:  # a run was killed while it wrote
        return None


def acceptance(row):
    """Of a draft's first guesses the accepted ones; without a draft, of pending tokens those that refreshes confirmed."""
    if row.get("offered_by_depth"):
        return row["accepted_by_depth"][0] / row["offered_by_depth"][0]
    if row.get("judged"):
        return 1 - row["overturn_rate"]
    return None


def complete(head, rows):
    for key, row in rows.items():
        if "error" in row:
            continue
        row["acceptance"] = acceptance(row)
        row["tokens_per_full_pass"] = row["decode_tokens"] / max(1, row["full_passes"])
        plain = rows.get(("plain", *key[1:]))
        if not plain or "error" in plain:
            continue
        row["speedup"] = row["tokens_per_s"] / plain["tokens_per_s"]
        row["speedup_with_prefill"] = row["tokens_per_s_with_prefill"] / plain["tokens_per_s_with_prefill"]
        if head.get("plain_of") != "another build":
            row["same_answer"] = row["answer"] == plain["answer"]
        elif row is not plain:
            row["same_answer"] = len({other["answer"] for other_key, other in rows.items() if lossless(other)
                                      and other_key[0] != "plain" and other_key[1:] == key[1:]}) == 1


def lossless(row):
    return "error" not in row and "approximate" not in row["flags"]


def mean(rows, field, digits):
    values = [row[field] for row in rows if row.get(field) is not None]
    return f"{statistics.mean(values):.{digits}f}" if values else "-"


def values_of(rows, index):
    return list(dict.fromkeys(key[index] for key in rows))


def compared(rows):
    """The rows of the texts that every system has run; of the others it prints how far they came."""
    counts = {text: sum(key[1] == text for key in rows) for text in values_of(rows, 1)}
    for text, count in counts.items():
        if count < max(counts.values()):
            print(f"In no table: {text}, {count} of {max(counts.values())} cells")
    return {key: row for key, row in rows.items() if counts[key[1]] == max(counts.values())}


def print_table(rows, columns, cell_of):
    """A row for each system; a column for each (context, kv, temperature), with its heading."""
    print("| system | " + " | ".join(columns.values()) + " |")
    print("|---" * (1 + len(columns)) + "|")
    for system in values_of(rows, 0):
        cells = [cell_of([row for key, row in rows.items() if key[0] == system and key[2:] == column])
                 for column in columns]
        print(f"| {system} | " + " | ".join(cells) + " |")


def print_page(rows):
    rows = compared(rows)
    contexts, temperatures = sorted(values_of(rows, 2)), values_of(rows, 4)
    for kv in values_of(rows, 3):
        print(f"\nKV cache: {kv}; tokens/s of decoding (speed-up)\n")
        columns = {(context, kv, t): f"{context // 1024}K, T {t:g}" for t in temperatures for context in contexts}
        print_table(rows, columns, lambda found: f"{mean(found, 'tokens_per_s', 0)} ({mean(found, 'speedup', 2)})")


FIGURES = {"tau": ("tau", 2), "acceptance": ("acceptance", 2), "tokens a full pass": ("tokens_per_full_pass", 1),
           "tokens/s with prefill": ("tokens_per_s_with_prefill", 0), "decode tokens/s": ("tokens_per_s", 0),
           "speed-up of decoding": ("speedup", 2)}


def print_tables(heads, rows, contexts):
    """A table for each text, length and place of the KV cache; a row for each system, a cell for all temperatures."""
    temperatures = values_of(rows, 4)
    print("# The systems of the papers, every figure\n")
    print("Written by `bench/systems_table.py`. A cell has the figures at temperature "
          + " / ".join(f"{t:g}" for t in temperatures) + "; -: the system has no such figure; n.m.: not measured.")
    for head in heads:
        for name in ("note", "not_measured"):
            if name in head:
                print(f"\n{head[name]}.")
    for text in values_of(rows, 1):
        print(f"\n## {text}")
        for context in sorted(set(contexts) | set(values_of(rows, 2))):
            found = {key: row for key, row in rows.items() if key[1:3] == (text, context)}
            if not found:
                print(f"\n### {context:,} tokens: not measured")
            for kv in values_of(found, 3):
                size = next(row["prompt_tokens"] for row in found.values())
                print(f"\n### {size:,} tokens, KV cache: {kv}\n")
                print_figures(rows, text, context, kv, temperatures)


def print_figures(rows, text, context, kv, temperatures):
    print("| system | " + " | ".join(FIGURES) + " |")
    print("|---" * (1 + len(FIGURES)) + "|")
    missing = []
    for system in values_of(rows, 0):
        cells = [rows.get((system, text, context, kv, t)) for t in temperatures]
        if not any(cells):
            missing.append(system)
        elif all(cell and "error" in cell for cell in cells):
            print(f"| {system} | {cells[0]['error']} |" + " |" * (len(FIGURES) - 1))
        else:
            print(f"| {system} | " + " | ".join(
                " / ".join(mean([cell], field, digits) if cell else "n.m." for cell in cells)
                for field, digits in FIGURES.values()) + " |")
    if missing:
        print("\nNot measured: " + ("the other systems." if len(missing) > 3 else "; ".join(missing) + "."))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="+")
    parser.add_argument("--json", help="of one file alone")
    parser.add_argument("--page", action="store_true")
    parser.add_argument("--contexts", type=lambda text: [int(tokens) for tokens in text.split(",")], default=[])
    args = parser.parse_args()
    if args.json and len(args.files) > 1:
        parser.error("--json takes one file")
    heads, rows = [], {}
    for path in args.files:
        head, found = read(path)
        complete(head, found)
        heads.append(head)
        for key, row in found.items():
            rows.setdefault(key, row)  # plain rows are the first file's
    print_page(rows) if args.page else print_tables(heads, rows, args.contexts)
    different = [key for key, row in rows.items() if row.get("same_answer") is False and lossless(row)]
    print(f"\n{len(rows)} cells; lossless ones with another answer than they should have: {len(different)}",
          *different, sep="\n")
    if args.json:
        with open(args.json, "w") as file:
            head = json.dumps(heads[0])[:-1]
            file.write(head + ', "rows": [\n' + ",\n".join(map(json.dumps, rows.values())) + "\n]}\n")


main()
