"""Tables of decoding, prefill, kernels and the disk. A function returns one as Markdown."""
import re
import statistics
import textwrap

from tables.data import *

# Decoding and prefill

SHAPE = "bench_h200_llama-3.1-8b"


def bench(name, tokens, kv="device"):
    return find_one(name + ".json", prompt_tokens=tokens, kv=kv)


def step_ms(name, tokens, kv="device"):
    return bench(name, tokens, kv)["decode"]["ms_median"]


def decode():
    def line(kind, tokens, kv, says):
        row = bench(SHAPE + kind, tokens, kv)
        step = row["decode"]
        disk = step.get("disk_gb_per_s")
        peak = f"disk: {disk:.2f} GB/s" if disk else f"{step['link_share_of_peak']:.1%}" if kv != "device" else ""
        moved = step["h2d_bytes_per_step"]
        return [number(tokens), says, digits(step["ms_median"], 4 if step["ms_median"] > 100 else 3),
                gib(moved) if moved > GIB else f"{moved / 1024:.1f} KiB", peak,
                number(row["prefill"]["tokens_per_s"]), gib(row["memory"]["vram_peak_bytes"])]

    return table("prompt, tokens | `--kv` | decode, ms a token | over the link, a token | of the link's peak | "
                 "prefill, tokens/s | device memory", [
                     line("", 16384, "device", "device"), line("", 16384, "host", "host"),
                     line("", 61440, "device", "device"), line("_prefill", 61440, "host", "host"),
                     line("_vram-22gib", 61440, "auto", "auto, `--vram 22GiB`"),
                     line("_vram-22gib", 131039, "auto", "auto, `--vram 22GiB`"),
                     line("_spill_quarter", 61440, "host", "host, 2.25 GiB of it on disk"),
                     line("_spill_all", 61440, "host", "host, all of it on disk")])


def mend(tokens, cache="bf16"):
    """Q4_K_M weights on an H200, the cache on the device."""
    return find_one("bench_h200_mend.jsonl", program="headrace bench", shape="llama-3.1-8b", weights="q4_k_m",
                    cache=cache, prompt_tokens=tokens)


def quantised():
    def line(gpu, shape, tokens, name, plain=None, later=None):
        row, beside = bench(name, tokens), bench(plain, tokens) if plain else None
        times = (later["step_ms"], later["prefill_ms"]) if later else (row["decode"]["ms_median"], row["prefill"]["ms"])
        return [gpu, shape, number(tokens), f"{times[0]:.2f}", f"{beside['decode']['ms_median']:.2f}" if beside else "",
                seconds(times[1]), seconds(beside["prefill"]["ms"]) if beside else "",
                gib(row["memory"]["vram_peak_bytes"])]

    sizes, plain, h100 = "bench_h200_q4_k_m_prefill_tile", "bench_h200_bf16_fused", "bench_h100_q4_k_m"
    head = "GPU | shape | tokens | decode, ms a token | bf16 weights | prefill | bf16 weights | device memory"
    return table(head, grouped([
        line("H200", "Llama-3.1-8B", 1024, sizes, later=mend(1024)),
        *(line("H200", "Llama-3.1-8B", tokens, sizes, plain, mend(tokens)) for tokens in (16384, 61440)),
        line("H100", "Llama-3.1-8B", 61440, h100, "bench_h100_bf16_beside"),
        line("H100", "Llama-3.1-8B", 131040, h100 + "_131k"),
        line("H100", "Qwen3-32B", 61440, "bench_h100_qwen3-32b_q4_k_m")], 2))


def int8_cache():
    return table("tokens | `--kv` | decode, bf16 cache | int8 cache", [
        *([number(tokens), "device", *(f"{mend(tokens, cache)['step_ms']:.2f} ms" for cache in ("bf16", "int8"))]
          for tokens in (16384, 61440)),
        *([number(tokens), "host", *(f"{bench(name, tokens, 'host')['decode']['ms_median']:.1f} ms"
                                     for name in (plain, "bench_h200_q4_k_m_fused_int8"))]
          for tokens, plain in ((16384, SHAPE), (61440, SHAPE + "_prefill")))])


def cpu():
    def headrace(kv):
        runs = load(f"epyc-2core-gpl3-kv-{kv}.json")
        return [number(runs["median"]["prefill_tokens_per_s"]), number(runs["median"]["decode_tokens_per_s"], 1),
                f"{statistics.median(run['rss_peak_bytes'] for run in runs['runs']) / 2**20:,.0f} MiB"]

    other = load("epyc-2core-gpl3-transformers.json")
    return table("SmolLM2-135M in bf16, 7,678 tokens, EPYC | prefill, tokens/s | decode, tokens/s | resident memory", [
        ["headrace, all resident", *headrace("auto")], ["headrace, `--kv host`", *headrace("host")],
        ["transformers", number(other["prefill_tokens_per_s"]), number(other["decode_tokens_per_s"], 1),
         f"{other['rss_peak_bytes'] / 2**20:,.0f} MiB"]])


def beside_llama():
    rows = load("xeon-2core-llama-beside_gpl3.json")["median"]
    return table("system, weights | prefill, tokens/s | decode, tokens/s | resident memory", [
        [says, number(rows[system]["prefill_tokens_per_s"]), number(rows[system]["decode_tokens_per_s"], 1),
         f"{rows[system]['rss_peak_bytes'] / 2**20:.0f} MiB"]
        for system, says in (("headrace keep", "headrace, kept"), ("headrace dtype", "headrace, dequantised"),
                             ("llama.cpp", "llama.cpp, kept"))])


def processor_time():
    lines = []
    for kind, says in (("short", "AVX-512 BF16"), ("short_avx512", "AVX-512"), ("short_avx2", "AVX2")):
        ms = load(f"epyc-2core-llama-processor-time_{kind}.json")["processor_ms_per_token"]
        lines.append([says, *(digits(ms[key]) for key in ("headrace keep", "headrace dtype", "llama.cpp"))])
    return table("instruction set | kept | dequantised | llama.cpp", lines)


# Perplexity

def perplexity():
    types = {}
    for run in load("epyc-2core-perplexity-int8.json")["runs"]:
        types.setdefault(run["cache_type_k"], {})[run["rows"][0]["document"]] = run["rows"][0]

    def of_all(rows):
        return 2.718281828459045 ** (sum(row["nats"] * row["predicted"] for row in rows) / total(rows, "predicted"))

    lines = []
    for kind, rows in types.items():
        values = [(row["perplexity"], types["bf16"][name]["perplexity"]) for name, row in rows.items()]
        values.append((of_all(rows.values()), of_all(types["bf16"].values())))
        lines.append([kind, *(f"{value:.2f}" + (f" ({value / plain - 1:+.2%})" if kind != "bf16" else "")
                              for value, plain in values)])
    return table("KV cache | Frankenstein | Great Expectations | Moby Dick | all tokens", lines)


# Kernels

def products():
    def times(name, weights, **fields):
        rows = {row["rows"]: row["us"] / 1000 for row in load(name)
                if row.get("bench") == "products of a step" and row["weights"] == weights
                and all(row.get(key) == value for key, value in fields.items())}
        return [digits(rows[count]) for count in (1, 8, 64)]

    return table("weights | 1 row | 8 | 64", [
        ["Q4_K_M", *times("kernel_bench_h200_q4_k_m_many_rows.jsonl", "Q4_K_M", build="now")],
        *([weights, *times("kernel_bench_h200_other_types.jsonl", weights, build=None)]
          for weights in ("Q4_K", "IQ4_NL", "IQ4_XS", "Q3_K", "Q2_K")),
        *([f"{weights}, H100", *times("kernel_bench_h100_step.jsonl", weights)] for weights in ("Q4_K", "Q8_0"))])


def attention():
    counts = (1, 8, 64)
    return table("KV cache | " + " | ".join(f"{count} quer{'y' if count == 1 else 'ies'}" for count in counts), [
        [cache, *(digits(find_one("bench_h200_mend.jsonl", bench="prefix_attention", rows=61440, cache=cache,
                                  queries=count)["us"]) for count in counts)] for cache in ("bf16", "int8", "int4")])


def loading():
    cpu_run, gpu = load("load_epyc-2core_q4_k_m.json"), load("load_h100_q4_k_m.txt")
    ms = cpu_run["ms"]
    best = {(where, what): min(runs) for where in ("warm", "cold") for what, runs in ms[where].items()}
    names = {key.split(",")[0]: key for key in ms["warm"]}
    warm, cold = gpu.split("cold\n", 1)

    def times(text, pattern, unit):
        found = [float(value) * unit for value in re.findall(pattern, text)]
        least, most = seconds(min(found)), seconds(max(found))
        return least if least == most else f"{least} to {most}"

    read = r"copied, ([\d.]+) s"
    return table("file, machine | what | page cache | disk", [
        ["1.18 GB, EPYC, best", "reading, two threads", seconds(best["warm", names["read into memory"]]),
         seconds(best["cold", "read into memory, 2 threads"])],
        ["", "loading", seconds(best["warm", names["headrace"]]), seconds(best["cold", "headrace, loaded"])],
        ["4.92 GB, H100", "`dd` to `/dev/null`", times(warm, read, 1000), times(cold, read, 1000)],
        ["", "loading", times(warm, r"loaded in (\d+) ms", 1), times(cold, r"loaded in ([\d.]+) s", 1000)]])


def tokenizing():
    median = load("epyc-2core-tokenizer.json")["median_s"]
    return f"Tokenizing a book of 994 KB takes {median * 1000:.0f} ms of one EPYC core."


# Disk, prefixes, server, profile

def disk_rate():
    shares = [f"{run['spill_by_fio_percent']}% of fio's rate ({says}, {run['rounds']} rounds, standard error "
              f"{run['error_percent']}%)" for says, run in (
                  ("H200", load("spill_fio_h200.json")),
                  ("EPYC, the CPU as device", load("spill_fio_epyc-2core.json")))]
    return textwrap.fill(f"It reaches {' and '.join(shares)}.", 120)


def disk_steps():
    run = load("spill_step_bench_h200.json")["summary"]
    return textwrap.fill(
        f"The median of {run['steps']} steps on the H200 is {number(run['ms_median'])} ms, "
        f"{run['over_floor_median']:.3f} of the floor. The disk is busy for {run['disk_busy_share_median']:.1%} of it, "
        f"and verifying delays it by {run['verify_late_share']:.1%}.", 120)


def prefixes():
    def seconds(name, what):
        times = sorted(row["ttft_ms"] / 1000 for row in find(name, what=what))
        return f"{times[0]:.2f} to {times[-1]:.2f} s"

    now, memory = "prefix_bench_h200.json", "prefix_bench_h200_memory.json"
    files = [row[when]["ms"] / 1000 for row in find(now, what="saved") for when in ("disk_before", "disk_after")]
    runs = load("epyc-2core-gpl3-prefix.json")["runs"]
    share = runs[1]["timings"]["ttft_ms"] / runs[0]["timings"]["ttft_ms"]
    return table("what | first token after", [
        ["no prefix cache", seconds(now, "plain")],
        ["saving (7.5 GiB written beside prefill)", seconds(now, "saving")],
        ["another question about the saved document", seconds(now, "saved")],
        ["only reading the same files, just before and after", f"{min(files):.2f} to {max(files):.2f} s"],
        ["another question, a machine with a faster disk", seconds(memory, "saved")],
        ["another question, a folder in memory", seconds(memory, "saved in memory")],
        ["CPU, SmolLM2-135M, the GPL-3: the second question, beside the first", f"{share:.1%} of its time"]])


def server():
    run = load("epyc-2core-server-overhead.json")
    decode_run, serve, chat = run["decode_ms_per_token"], run["question_server"], run["question_chat"]

    def line(what, values, target=""):
        return [what, f"{values['median']:.1%}", target]

    return table("what | median | target", [
        ["a request of one token, as its client sees it, less its run", f"{run['request_ms']['median']:.2f} ms", "1 ms"],
        line("time a token of the stream, over `generate`", decode_run["stream_over_generate"], "2%"),
        line("the connection thread's share of the processor time", decode_run["stream_share_of_processor"]),
        *([f"first token of a second question of {run['tokens']['short']} or {run['tokens']['long']} tokens, over the "
           f"engine's time{where}", f"{run['short']['median']:.1%}, {run['long']['median']:.1%}", "5%"]
          for where, run in (("", serve), ("; in a chat on a pipe", chat)))])


def profile():
    rates, fio = load("profile_h200.json"), load("fio_h200.json")
    disk = [f"{test['test'].split(',')[0]}s of {test['profile_gb_per_s']:.2f} GB/s ({test['fio_gb_per_s']:.2f})"
            for test in fio["tests"] if "1024 KiB" in test["test"]]
    return textwrap.fill(
        f"On one H200 `headrace profile` has {rates['rates']['to_device_gb_per_s']:.1f} GB/s to the device and "
        f"{rates['rates']['to_host_gb_per_s']:.1f} to the host, and of the disk, fio in turns beside it, "
        f"{' and '.join(disk)}.", 120)


# Prefill in 8 bits

def prefill_in_8_bits():
    rows = []
    for shape in ("llama-3.1-8b", "qwen3-32b"):
        name = f"llama_h200_{shape}.json"
        for tokens in sorted({row["tokens"] for row in load(name)["rows"]}):
            times = [find_one(name, tokens=tokens, program="llama.cpp")["prefill_ms"]]
            times += [statistics.median(row["prefill_ms"] for row in find(
                "prefill_h200_int8.json", model=shape, tokens=tokens, prefill_type=kind)) for kind in ("bf16", "int8")]
            rows.append([shape, number(tokens), *map(seconds, times)])
    return table("Q4_K_M, random weights | tokens | llama.cpp | bf16 | int8", rows)


def perplexity_in_8_bits():
    rows = []
    for name, weights in (("keep", "as in the file (Q4_1, head Q8_0)"), ("q4k", "the same, the rest in Q4_K")):
        every = load(f"quality_h200_int8_{name}.json")["all_documents"]
        plain = every["against"]["perplexity"]
        more = (every["perplexity"] / plain - 1) * 100
        rows.append([weights, number(plain, 3), f"{number(every['perplexity'], 3)} (+{more:.2f}%)", f"{every['kl']:.4f}",
                     f"{every['top1']:.3f}"])
    return table("weights | bf16 | int8 | KL, nats | same first token", rows)


def needles_in_8_bits():
    found = {}
    for run in load("needles_h200_int8.json")["runs"]:
        hits = sum(needle["found"] for needle in run["needles"])
        found[run["prompt_tokens"], run["prefill_type"]] = f"{hits} of {len(run['needles'])}"
    counts = {tokens: f"{found[tokens, 'bf16']} and {found[tokens, 'int8']} in {number(tokens)} tokens"
              for tokens in sorted({tokens for tokens, _ in found})}
    return textwrap.fill("Of the numbers of seven digits that were hidden at 10, 50 and 90% of each of the three books "
                         f"prefill in bf16 and in int8 found {', '.join(counts.values())}.", 120)


def summaries_in_8_bits():
    def scores(rouge):
        return " / ".join(f"{rouge[kind]:.2f}" for kind in ("rouge_1", "rouge_2", "rouge_l")) if rouge else ""
    return table("run | against the base's summary | against the human's", [
        [{"base": "bf16 (the base)"}.get(row["run"], row["run"]), scores(row.get("against_base")),
         scores(row["against_the_human"])] for row in load("summaries_h200_int8.json")["rows"]])
