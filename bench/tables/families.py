"""Tables of models whose layers differ: hybrids, windows, experts. A function returns one as Markdown."""
import textwrap

from tables.data import *


def hybrid():
    """Qwen3.6-27B beside llama.cpp, which was measured before 8-bit attention had today's kernel for heads of 256."""
    rows = []
    for tokens in (16384, 61440, 131040):
        llama, before = (find_one("llama_h200_qwen3.6-27b.json", tokens=tokens, program=name)
                         for name in ("llama.cpp", "int8"))
        now = find_one("bench_h200_qwen3.6-27b.json", prompt_tokens=tokens, kv="device")
        other = llama.get("decode_ms")
        rows.append([number(tokens), seconds(llama["prefill_ms"]), seconds(before["prefill_ms"]),
                     seconds(now["prefill"]["ms"]), f"{other:.1f} ms" if other else "",
                     f"{before['decode_ms']:.1f} ms"])
    return table("tokens | prefill, llama.cpp | headrace, same call | a later build | decode, llama.cpp | "
                 "headrace", rows)


def hybrid_partial():
    rows = []
    for name, budget, copy in (("128k", "22 GiB", "int8"), ("256k", "23 GiB", "int4")):
        for row in load(f"partial_h200_qwen3.6-27b_{name}.json")["rows"]:
            if "draft" not in row:
                plain = row
                continue
            rows.append([number(row["prompt_tokens"]), budget, copy, row["draft"].replace("draft-mtp", "MTP"),
                         f"{1e3 / plain['tokens_per_s']:.0f} ms", f"{row['partial']['verify_ms']:.1f} ms",
                         f"{row['partial']['draft_ms']:.1f} ms", f"{row['refresh']['verify_ms']:.0f} ms"])
    return table("tokens | `--vram` | copy | draft | a plain step | a partial step | its draft | a refresh", rows)


def hybrid_drafts():
    rows = find("epyc-2core-hybrid-mtp.json")
    assert all(row["same_tokens"] for row in rows)
    steps = total(rows, "steps")
    by_depth = [sum(row["accepted_by_depth"][depth] for row in rows) / steps for depth in range(3)]
    texts = len({row["text"] for row in rows})
    return textwrap.fill(
        f"The MTP block of that model, in f32 on a CPU, T = 0.8, chains of 3: a step accepts "
        f"{total(rows, 'accepted') / steps:.2f} tokens ({', '.join(f'{share:.2f}' for share in by_depth)} of the "
        f"first, second and third), in {len(rows)} answers of {rows[0]['tokens']} tokens to parts of {texts} books. "
        f"All answers are those of plain decoding.", 120)


def hybrid_plans():
    """No run: what `headrace plan` foretells of Qwen3.6-27B, and the targets for it."""
    rows = []
    for name, card, weights, targets in (
            ("rtx4090_128k", "RTX 4090", "Q4_K_M", (55, 80)), ("rtx4090_256k", "RTX 4090", "Q4_K_M", (38, 50)),
            ("rtx5090_256k", "RTX 5090", "Q4_K_M", (None, 65)),
            ("rtx4080_256k_q3_k", "RTX 4080", "Q3_K", (None, None)),
            ("rtx4080_256k_iq3_xxs", "RTX 4080", "IQ3_XXS", (None, None)),
            ("rtx4080_256k_iq2_xs", "RTX 4080", "IQ2_XS", (None, None))):
        plan = load(f"plan_{name}.json")
        predicted, estimate = plan["predicted"], plan["predicted"]["estimate"]

        def speed(tau):  # with the plan's own number of pending tokens and times of steps
            steps = estimate["pending"] / (1 + tau)
            ms = predicted["refresh"]["ms"] + predicted["draft_ms"]
            ms += steps * (predicted["partial"]["ms"] + predicted["draft_ms"])
            return estimate["tokens_per_refresh"] * 1e3 / ms

        assert plan["fits"] and plan["verify"] == "lossless" and plan["draft"] == "draft-mtp", name
        assert abs(speed(estimate["tau"]) / estimate["tokens_per_s"] - 1) < 1e-3, f"{name}: not plan's rule"
        rows.append([f"{card}, {weights}", number(plan["context_tokens"]), f"{plan['vram_limit_bytes'] / GIB:g} GiB",
                     plan["partial_kv"], f"{predicted['partial']['ms']:.1f} + {predicted['draft_ms']:.1f} ms",
                     f"{predicted['refresh']['ms']:.0f} ms", number(estimate["tokens_per_refresh"]),
                     *(digits(value, 2) + (f" (>= {target})" if target else "")
                       for value, target in zip((estimate["tokens_per_s"], speed(2.0)), targets))])
    return table("planned, not measured | tokens | `--vram` | partial KV | a partial step + draft | a refresh | "
                 "tokens a refresh | tokens/s, 1.05 accepted | 2.0, computed", rows)


def hybrid_refresh():
    row = find_one("partial_h200_qwen3.6-27b_128k.json", draft="none")
    streamed = row["link_bytes_per_token"] * row["decode_tokens"] / row["refresh"]["steps"]
    link = streamed / 1e6 / load("profile_h200.json")["rates"]["to_device_gb_per_s"]
    return textwrap.fill(
        f"- A refresh over an int8 copy at {number(row['prompt_tokens'])} tokens takes "
        f"{row['refresh']['verify_ms']:.0f} ms, where the link needs {link:.1f} ms for its {streamed / 1e9:.2f} GB. "
        f"The target is 1.1 x the larger of the times of link and products. The cause was not traced.",
        120, subsequent_indent="  ")


def heads():
    shapes, of = {}, None
    for row in load("kernel_bench_h200_heads.jsonl"):
        of = shapes.setdefault(row["shape"], []) if "program" in row else of
        of.append(row)

    def cell(width, bench, queries):
        row, = (row for row in shapes[f"llama-3.1-8b, heads of {width}"]
                if (row.get("bench"), row.get("queries"), row.get("cache")) == (bench, queries, "bf16"))
        return f"{digits(row['us'])} us, {row['of_ceiling']:.0%}"

    return table("attention, 61,440 rows in bf16 | queries | heads of 128 | heads of 256", [
        [bench.split("_")[0], number(queries), *(cell(width, bench, queries) for width in (128, 256))]
        for bench, queries in (("prefill_attention", 2048), *(("prefix_attention", n) for n in (1, 16, 64)))])


def windows():
    rows = []
    for shape in ("gemma-3-27b", "gemma-4-e4b", "gemma-4-12b", "gemma-4-31b"):
        for tokens in (16384, 61440):
            row = find_one(f"bench_h200_{shape}.json", prompt_tokens=tokens, kv="auto" if "e4b" in shape else "device")
            rows.append([shape, number(tokens), seconds(row["prefill"]["ms"]), digits(row["decode"]["ms_median"]),
                         gib(row["memory"]["vram_peak_bytes"])])
    return table("Q4_K_M, random weights | tokens | prefill | decode, ms a token | device memory", rows)


def experts():
    rows = []
    for shape in ("qwen3-30b-a3b", "qwen3.6-35b-a3b", "gpt-oss-20b"):
        for tokens in (16384, 61440):
            llama, own = (find_one(f"llama_h200_{shape}.json", tokens=tokens, program=name)
                          for name in ("llama.cpp", "int8"))
            memory = find_one(f"bench_h200_{shape}.json", prompt_tokens=tokens, kv="device")["memory"]
            rows.append([shape, number(tokens), seconds(llama["prefill_ms"]), seconds(own["prefill_ms"]),
                         f"{llama['decode_ms']:.2f} ms", f"{own['decode_ms']:.2f} ms", gib(memory["vram_peak_bytes"])])
    return table("shape | tokens | prefill, llama.cpp | headrace | decode, llama.cpp | headrace | device memory", rows)


def streamed_weights():
    rows = []
    for name, weights, limit in (("", "bf16", "8 GiB"), ("_q4_k_m", "Q4_K_M", "4 GiB")):
        for row in load(f"bench_h200_streamed_weights{name}.json")["rows"]:
            decode = row["decode"]
            rows.append([weights, limit, number(row["prompt_tokens"]), seconds(row["prefill"]["ms"]),
                         f"{decode['ms_median']:.0f} ms", gib(decode["h2d_bytes_per_step"]),
                         f"{100 * decode['link_share_of_peak']:.1f}%"])
    return table("Llama-3.1-8B | `--vram` | tokens | prefill | a step | it streams | of the link's peak", rows)


def experts_in_host():
    rows = []
    for name, shape, limit in (("35b", "qwen3.6-35b-a3b, Q4_K_M", "14 GiB"), ("30b", "qwen3-30b-a3b, Q4_K_M", "11 GiB"),
                               ("gpt-oss", "gpt-oss-20b, MXFP4", "10 GiB")):
        row = load(f"bench_h200_experts_in_host_{name}.json")["rows"][0]
        decode = row["decode"]
        rows.append([shape, limit, number(row["prompt_tokens"]), seconds(row["prefill"]["ms"]),
                     f"{decode['ms_median']:.2f} ms", f"{decode['h2d_bytes_per_step'] / 2**20:.0f} MiB"])
    return table("shape | `--vram` | tokens | prefill | a step | it fetches", rows)


def overturned():
    rows = []
    all_rows = load("overturned_h200_hybrid.json")["rows"]
    for dtype, tokens in (("bf16", 16384), ("bf16", 32768), ("f32", 16384)):
        cells = []
        for copy in ("int8", "int4"):
            of_copy = [row for row in all_rows if (row["dtype"], row["tokens"], row["copy"]) == (dtype, tokens, copy)]
            wrong, judged = (sum(row[key] for row in of_copy) for key in ("overturned", "judged"))
            cells.append(f"{wrong} of {number(judged)}, {100 * wrong / judged:.2f}%")
        rows.append([dtype, number(tokens), *cells])
    return table("computation | tokens | int8 copy | int4 copy", rows)


def second_question():
    result = load("second_question_h200_qwen3.6-27b.json")
    return table("question about 130,731 tokens | first text | tokens not read again", [
        [row["what"], seconds(1e3 * row["first_text_s"]), number(row["cached_tokens"])]
        for row in result["rows"] if not row["what"].startswith(("third", "first question, saved"))])
