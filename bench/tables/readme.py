"""README's table, and its comparison with other programs. A function returns one as Markdown."""
import textwrap

from tables.data import *
from tables.partial import lossless_run
from tables.speed import SHAPE, bench, mend, step_ms


def readme():
    host = bench(SHAPE + "_prefill", 61440, "host")
    half = bench(SHAPE + "_vram-22gib", 131039, "auto")
    packed, planned = bench("bench_h200_q4_k_m_prefill_tile", 61440), load("plan_rtx4090.json")
    spilled = bench(SHAPE + "_spill_quarter", 61440, "host")["decode"]
    saved = [sorted(row["ttft_ms"] / 1000 for row in find(name, what=what)) for name, what in (
        ("prefix_bench_h200.json", "saved"), ("prefix_bench_h200_memory.json", "saved in memory"))]
    resident = load("epyc-2core-gpl3-kv-auto.json")["median"]
    other = load("epyc-2core-gpl3-transformers.json")
    return table("work | figure", [
        ["decode, 61,440 tokens, cache on the device", f"{step_ms(SHAPE, 61440):.2f} ms a token"],
        ["the same with Q4_K_M weights", f"{mend(61440)['step_ms']:.2f} ms a token, "
         f"{gib(packed['memory']['vram_peak_bytes'])} of device memory; prefill {mend(61440)['prefill_ms'] / 1000:.2f} s"],
        ["decode, 61,440 tokens, all of the cache in host memory",
         f"{host['decode']['ms_median']:.1f} ms a token; {gib(host['decode']['h2d_bytes_per_step'])} over the link, "
         f"{host['decode']['link_share_of_peak']:.1%} of peak"],
        ["decode, 131,039 tokens, `--vram 22GiB`", f"{half['decode']['ms_median']:.1f} ms a token, "
         f"{half['decode']['link_share_of_peak']:.1%} of peak"],
        ["prefill, 61,440 tokens, cache to host memory",
         f"{host['prefill']['ms'] / 1000:.2f} s ({number(host['prefill']['tokens_per_s'])} tokens/s)"],
        [f"a step with a quarter of that cache on a disk that gives {spilled['disk_gb_per_s']:.1f} GB/s",
         f"{spilled['ms_median'] / 1000:.2f} s"],
        ["first token of the second question about a saved document of 61,440 tokens",
         f"{saved[0][0]:.2f} to {saved[0][-1]:.2f} s from a disk, {saved[1][0]:.2f} to {saved[1][-1]:.2f} s from memory"],
        [f"**RTX 4090, planned, not measured:** Qwen3.6-27B, Q4_K_M, {number(planned['context_tokens'])} tokens",
         f"first token after {planned['predicted']['prefill']['ms'] / 1000:.1f} s, "
         f"{planned['predicted']['tokens_per_s']:.0f} tokens/s, lossless"],
        ["SmolLM2-135M, 7,678 tokens, 2 CPU cores", f"prefill {number(resident['prefill_tokens_per_s'])} tokens/s, decode "
         f"{number(resident['decode_tokens_per_s'], 1)} (transformers: {number(other['prefill_tokens_per_s'])} and "
         f"{number(other['decode_tokens_per_s'], 1)})"]])


def why_not():
    there, here = (find_one("llama_h200_qwen3.6-27b.json", tokens=61440, program=program)
                   for program in ("llama.cpp", "int8"))
    cores = load("xeon-2core-llama-beside_gpl3.json")["median"]
    rates = {system: f"{number(row['prefill_tokens_per_s'])} and {number(row['decode_tokens_per_s'])}"
             for system, row in cores.items()}
    lossless = lossless_run("partial_h200_quarter_streamed.json", 61440, "none")[1].split(" ")[0]
    small, host = bench(SHAPE + "_vram-22gib", 61440, "auto"), bench(SHAPE + "_prefill", 61440, "host")
    memory = small["memory"]
    points = [
        f"**llama.cpp** runs more models on more hardware. With the cache on the GPU, it reads 61,440 tokens of "
        f"Qwen3.6-27B in {seconds(there['prefill_ms'])} and writes a token in {digits(there['decode_ms'])} ms (Q4_K_M, "
        f"H200); Headrace takes {seconds(here['prefill_ms'])} and {digits(here['decode_ms'])} ms. On two CPU cores it "
        f"reads and writes {rates['llama.cpp']} tokens/s with SmolLM2-135M, Headrace {rates['headrace keep']}. For a "
        f"cache that does not fit the GPU it moves layers or attention to the CPU (not measured). Headrace streams it: "
        f"{lossless} tokens/s with the shape of Llama-3.1-8B, lossless.",
        "**Ollama** is easier to install, and manages models. It computes with ggml, the library of llama.cpp.",
        f"**vLLM** answers many requests at a time, which Headrace does not. The cache of a running request has to fit "
        f"the GPU beside the weights (not measured). For Llama-3.1-8B in bf16 and 61,440 tokens both take "
        f"{gib(memory['weights_bytes'] + host['decode']['h2d_bytes_per_step'])}; Headrace runs it in "
        f"{gib(memory['vram_peak_bytes'])}, work space included, at {small['decode']['ms_median']:.1f} ms a token."]
    return "\n".join(textwrap.fill(point, 120, initial_indent="- ", subsequent_indent="  ") for point in points)
