"""Tables of partial verification, drafts and the systems of the papers. A function returns one as Markdown."""
import os

from tables.data import *

# Partial verification


def lossless_run(name, tokens, draft, **fields):
    """Means over the texts of a result: one line of the tables below."""
    near = [row for row in load(name)["rows"] if abs(row["prompt_tokens"] - tokens) < 4000]
    plain = [row for row in near if "verify" not in row and row["kv"] == fields.get("kv", row["kv"])]
    rows = [row for row in near if row.get("verify") == "lossless" and row["draft"] == draft
            and all(same(row.get(key), value) for key, value in fields.items())]
    assert rows and plain, (name, tokens, draft, fields)
    assert all(row.get("same_answer", row.get("same_tokens")) for row in rows), f"{name}: a lossless run differs"

    def step(kind):
        return sum(row[kind]["steps"] * (row[kind]["verify_ms"] + row[kind]["draft_ms"]) for row in rows) / total(
            rows, kind, "steps")

    speed, base = mean(rows, "tokens_per_s"), mean(plain, "tokens_per_s")
    return [digits(base, 2), f"{digits(speed, 2 if speed < 100 else 3)} ({digits(speed / base, 2)} x)",
            number(total(rows, "decode_tokens") / total(rows, "refresh", "steps")),
            f"{total(rows, 'overturned') / total(rows, 'judged'):.1%}", digits(step("partial"), 2),
            digits(step("refresh"), 2 if step("refresh") < 100 else 3),
            f"{max(row['vram_peak_bytes'] for row in rows) / 1e9:.1f} GB"]


def lossless():
    head = ("run | draft | plain | lossless, tokens/s | tokens a refresh | overturned | partial step, ms | "
            "refresh, ms | device memory")
    lines = []
    for says, name, tokens, fields in (
            ("H200, 60K, Q4_K, int8 copy", "partial_h200_quarter_streamed.json", 61440, {}),
            ("H200, 60K, bf16, int8 copy", "partial_h200_bf16_int8.json", 61440, {}),
            ("H200, 128K, Q4_K, int8 copy", "partial_h200_131k.json", 130800, {}),
            ("H200, 63K, Qwen3-32B's shape, blocks", "partial_h200_32b.json", 64991, {}),
            ("H100, 30K, Q4_K, int8 copy", "partial_h100_30720.json", 30720, {"kv": "host"}),
            ("the same, all of the cache on the device", "partial_h100_30720.json", 30720, {"kv": "auto"}),
            ("H100, 60K, Q4_K, int8 copy", "partial_h100_copies.json", 61440, {"partial_kv": "int8"}),
            ("H100, 60K, Q4_K, int4 copy", "partial_h100_copies.json", 61440, {"partial_kv": "int4"}),
            ("H100, 60K, Q4_K, blocks", "partial_h100_copies.json", 61440, {"partial_kv": "blocks"})):
        for draft, short in (("none", "none"), ("draft-eagle3", "EAGLE-3")):
            if any(row.get("draft") == draft for row in load(name)["rows"]):
                lines.append([says, short, *lossless_run(name, tokens, draft, **fields)])
    return table(head, grouped(lines))


def quality():
    found = load("quality_h200_copies.json")
    documents = found["all_documents"]

    def needles(kind):
        rows = [row for row in found["needles"] if row.get("partial_kv") == kind]
        return f"{sum(row['found'] for row in rows)} of {len(rows)}"

    def line(kind):
        cold, warm = (next(row for row in documents if row["partial_kv"] == kind and same(row["temperature"], t))
                      for t in (0, 0.8))
        return [kind, f"{cold['lossless']['overturn_rate']:.1%} / {warm['lossless']['overturn_rate']:.1%}",
                f"{cold['approximate']['rouge_l']:.2f} / {warm['approximate']['rouge_l']:.2f}",
                f"{cold['approximate']['same_text']} / {warm['approximate']['same_text']} of {cold['runs']}",
                needles(kind)]

    return table("partial KV | overturned, T 0 / 0.8 | ROUGE-L | the same text | hidden numbers found", [
        ["full KV", "", "", "", needles(None)], *(line(kind) for kind in ("int8", "int4", "blocks"))])


# Drafts

def drafts():
    lines = []
    for name, tokens in (("books", 4090), ("books", 16380), ("long", 61000)):
        for kv in ("device", "host"):
            rows = [row for row in load(f"speculation_bench_h200_{name}.json")["rows"]
                    if abs(row["prompt_tokens"] - tokens) < 100 and row["kv"] == kv and row["text"] != "gpl-3"]
            by = {tree: [row for row in rows if row["tree"] == tree] for tree in ("none", "auto", "60")}
            assert all(row["same_tokens"] for row in by["auto"] + by["60"])
            plain, auto, fixed = (mean(by[tree], "tokens_per_s") for tree in ("none", "auto", "60"))
            lines.append([number(tokens), kv, digits(plain), f"{digits(auto)} ({auto / plain:.2f} x)", digits(fixed),
                          f"{mean(by['auto'], 'tau'):.2f}, {mean(by['60'], 'tau'):.2f}",
                          f"{mean(by['60'], 'draft_ms'):.1f}, {mean(by['60'], 'verify_ms'):.1f}"])
    return table("prompt, tokens | `--kv` | plain, tokens/s | `--tree auto` | 60 nodes | tau (auto, 60) | "
                 "a step of 60: draft, verify, ms", lines)


def exact_runs():
    rows = [row for kind in ("exact", "exact_top-p") for row in find(f"speculation_bench_h200_{kind}.json")
            if "same_tokens" in row]
    return f"{sum(row['same_tokens'] for row in rows)} of {len(rows)} runs gave the tokens of plain decoding."


def look_up():
    name = "epyc-2core-look-up-beside-a-head.json"
    kinds = ("draft-eagle3", "ngram-simple", "draft-eagle3,ngram-simple")
    return table("temperature | EAGLE-3 head | look-up | both in one tree", [
        [f"{t:g}", *(f"{mean(find(name, draft=kind, temperature=t), 'tau'):.2f}" for kind in kinds)]
        for t in (0.0, 0.8)])


def draft_needle():
    names = {"SmolLM2-64K.gguf": "SmolLM2-64K itself", "eagle3": "EAGLE-3 head",
             "small-lm": "small model, trained with 2,048", "longspec": "LongSpec layer"}
    lines = {}
    for run in load("epyc-2core-draft-needle.json")["runs"]:
        if run["draft_window"] in (512, 1024) and "draft_cache" not in run and run["draft"] != "draft-longspec":
            continue
        cache = f"window {number(run['draft_window'])}" if run["draft_window"] else "all"
        if "draft_cache" in run:
            cache += f", and {run['draft_cache']['chunks']} chunks of 32"
        if "draft_rope_theta" in run:
            cache += f", RoPE base {number(run['draft_rope_theta'])}"
        key = (names[os.path.basename(run["draft_model"])], cache)
        all_documents = run["all_documents"]
        lines.setdefault(key, {})[run["prompt_tokens"]] = f"{all_documents['first']}, {all_documents['perplexity']:.2f}"
    return table("draft | its cache | 4,096 tokens | 8,192 tokens", grouped([
        [*key, cells.get(4096, ""), cells.get(8192, "")] for key, cells in lines.items()]))


# The systems of the papers

def systems():
    speedups, plain_speeds = {}, {}
    for name in ("systems_h200.json", "systems_h200_specextend.json", "systems_h100_2k_8k.json"):
        rows = {(row["system"], row["kv"], row["context"], round(row["temperature"], 1)): row
                for row in load(name)["rows"] if row["text"].lower() == "govreport-16k-00" and "error" not in row}
        for (system, *cell), row in rows.items():
            plain = rows["plain", *cell]
            same_build = "plain_of" not in load(name)
            assert not same_build or "approximate" in row["flags"] or row["answer"] == plain["answer"], row
            speedups.setdefault(system, {})[tuple(cell)] = row["tokens_per_s"] / plain["tokens_per_s"]
            if system == "plain":
                plain_speeds.setdefault(tuple(cell), row["tokens_per_s"])

    def line(says, cells, decimals):
        return [says, *(", ".join(number(cells[kv, length, t], decimals) for t in (0.0, 1.0))
                        for kv in ("device", "host") for length in (1024, 4096, 8192, 16384))]

    return table("system | device, 1K | 4K | 8K, H100 | 16K | host, 1K | 4K | 8K, H100 | 16K", [
        line("plain, tokens/s", plain_speeds, 0),
        *(line(system, cells, 2) for system, cells in speedups.items() if system != "plain")])


def papers_specpv_1():
    """SpecPV's Table 1: decoding's speed over plain decoding's, tau, and the tokens of a refresh, by length."""
    rows = load("papers_h200.json")["rows"]
    lengths = (10240, 30720, 61440)

    def cells(system):
        for length in lengths:
            of = [row for row in rows if row["system"] == system and row["context"] == length]
            plain = mean([row for row in rows if row["system"] == "AR" and row["context"] == length], "tokens_per_s")
            speed = mean(of, "tokens_per_s")
            if system == "AR":
                yield f"{digits(plain, 2)} tokens/s"
                continue
            says = f"{number(speed / plain, 1)} x, {number(mean(of, 'tau'), 2)}"
            if "judged" in of[0]:
                says += f"; {number(total(of, 'decode_tokens') / total(of, 'full_passes'))}, " \
                        f"{total(of, 'overturned') / total(of, 'judged'):.0%}, " \
                        f"{total(of, 'rescued') / total(of, 'decode_tokens'):.0%}"
            yield says

    systems_of = list(dict.fromkeys(row["system"] for row in rows))
    return table("system | 10K | 30K | 60K", [[system, *cells(system)] for system in systems_of])
