#!/usr/bin/env python3
"""The lines of systems_bench as one JSON object and as tables, one for each place of the KV cache and temperature.

  systems_table.py LINES.jsonl [--json RESULTS.json] [--page]

Of a cell with several texts the means are taken; a text that some systems have not run is in the JSON, but in no table.
A lossless system's tokens are compared with those of the plain row of the same cell: the answers' hashes must be equal.
--page: fewer and smaller tables, those of docs/measuring.md.
"""
import argparse
import json
import statistics


def read(path):
    head, rows = None, {}
    for line in open(path):
        try:
            row = json.loads(line)
        except json.JSONDecodeError:  # a run was killed while it wrote
            continue
        if "system" in row:
            rows[(row["system"], row["text"], row["context"], row["kv"], row["temperature"])] = row
        elif "failed" in row:
            print(f"{row['failed']} did not run: {row['error']}")
        else:
            head = row
    return head, rows


def acceptance(row):
    """Of a draft's first guesses the accepted ones; without a draft, of pending tokens those that refreshes confirmed."""
    if row.get("offered_by_depth"):
        return row["accepted_by_depth"][0] / row["offered_by_depth"][0]
    if row.get("judged"):
        return 1 - row["overturn_rate"]
    return None


def complete(rows):
    for (system, text, context, kv, temperature), row in rows.items():
        if "error" in row:
            continue
        plain = rows.get(("plain", text, context, kv, temperature))
        row["acceptance"] = acceptance(row)
        row["tokens_per_full_pass"] = row["decode_tokens"] / max(1, row["full_passes"])
        if plain and "error" not in plain:
            row["speedup"] = row["tokens_per_s"] / plain["tokens_per_s"]
            row["speedup_with_prefill"] = row["tokens_per_s_with_prefill"] / plain["tokens_per_s_with_prefill"]
            row["same_answer"] = row["answer"] == plain["answer"]


def mean(rows, field, digits):
    values = [row[field] for row in rows if row.get(field) is not None]
    return f"{statistics.mean(values):.{digits}f}" if values else "-"


def cell(rows):
    if not rows:
        return "not run"
    if any("error" in row for row in rows):
        return next(row["error"] for row in rows if "error" in row)
    return ", ".join([mean(rows, "tau", 2), mean(rows, "acceptance", 2), mean(rows, "tokens_per_full_pass", 1),
                      mean(rows, "tokens_per_s_with_prefill", 0), mean(rows, "tokens_per_s", 0),
                      mean(rows, "speedup", 2) + " x"])


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
    contexts, places, temperatures = sorted(values_of(rows, 2)), values_of(rows, 3), values_of(rows, 4)
    for kv in places:
        print(f"\nKV cache: {kv}; tokens/s of decoding (speed-up)\n")
        columns = {(context, kv, t): f"{context // 1024}K, T {t:g}" for t in temperatures for context in contexts}
        print_table(rows, columns, lambda found: f"{mean(found, 'tokens_per_s', 0)} ({mean(found, 'speedup', 2)})")
    longest = contexts[-1]
    print(f"\n{longest} tokens; tau, acceptance, tokens a full pass\n")
    columns = {(longest, kv, t): f"{kv}, T {t:g}" for kv in places for t in temperatures}
    print_table(rows, columns, lambda found: ", ".join(
        [mean(found, "tau", 2), mean(found, "acceptance", 2), mean(found, "tokens_per_full_pass", 1)]))


def print_tables(rows):
    print("Cells: tau, acceptance, tokens a full pass, tokens/s with prefill, decode tokens/s, speed-up of decoding")
    contexts = sorted(values_of(rows, 2))
    for kv in values_of(rows, 3):
        for temperature in values_of(rows, 4):
            print(f"\nKV cache: {kv}, temperature {temperature:g}\n")
            print_table(rows, {(context, kv, temperature): f"{context:,} tokens" for context in contexts}, cell)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("lines")
    parser.add_argument("--json")
    parser.add_argument("--page", action="store_true")
    args = parser.parse_args()
    head, rows = read(args.lines)
    complete(rows)
    (print_page if args.page else print_tables)(compared(rows))
    different = [key for key, row in rows.items() if row.get("same_answer") is False and "approximate" not in row["flags"]]
    print(f"\n{len(rows)} cells; lossless ones that differ from plain decoding: {len(different)}", *different, sep="\n")
    if args.json:
        with open(args.json, "w") as file:
            head = json.dumps(head)[:-1]
            file.write(head + ', "rows": [\n' + ",\n".join(map(json.dumps, rows.values())) + "\n]}\n")


main()
