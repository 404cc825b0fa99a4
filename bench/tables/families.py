"""Tables of models whose layers differ: hybrids, windows, experts. A function returns one as Markdown."""
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
