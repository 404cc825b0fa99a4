"""Prefill of llama.cpp and of headrace, in bf16 and in 8 bits, in turns on one GPU: a shape with random Q4_K_M weights.

  python3 bench/llama_gpu.py HEADRACE LLAMA_BENCH --shape llama-3.1-8b --tokens 61440 [131040 ...] [--rounds 3]
      --work DIR > result.json

LLAMA_BENCH is llama.cpp's llama-bench, built with CUDA. It needs a file, so the script writes one to DIR: the layers of
the shape with random blocks, in the types that Q4_K_M takes for each matrix, and no vocabulary. llama-bench reads it
with flash attention and ubatches of 2,048 rows. Each run is a process of its own; the times are of the prompt alone.
"""
import argparse, json, os, statistics, struct, subprocess, sys
import numpy as np

SHAPES = {
    "llama-3.1-8b": dict(arch="llama", layers=32, hidden=4096, heads=32, kv=8, dim=128, ffn=14336, vocab=128256,
                         theta=500000.0, qk_norm=False),
    "qwen3-32b": dict(arch="qwen3", layers=64, hidden=5120, heads=64, kv=8, dim=128, ffn=25600, vocab=151936,
                      theta=1000000.0, qk_norm=True),
}
F32, Q4_K, Q6_K = 0, 12, 14
BLOCK_BYTES = {Q4_K: 144, Q6_K: 210}  # of 256 values
ALIGNMENT = 32


def is_larger(layer, layers):
    eighth = layers // 8
    return layer < eighth or layer >= 7 * layers // 8 or (layer - eighth) % 3 == 2


def tensors(s):
    """Name, shape with the innermost size first, type."""
    hidden, q, kv = s["hidden"], s["heads"] * s["dim"], s["kv"] * s["dim"]
    yield "token_embd.weight", (hidden, s["vocab"]), Q4_K
    yield "output_norm.weight", (hidden,), F32
    yield "output.weight", (hidden, s["vocab"]), Q6_K
    for n in range(s["layers"]):
        larger = Q6_K if is_larger(n, s["layers"]) else Q4_K
        for name, shape, kind in [
                ("attn_norm", (hidden,), F32), ("attn_q", (hidden, q), Q4_K), ("attn_k", (hidden, kv), Q4_K),
                ("attn_v", (hidden, kv), larger), ("attn_output", (q, hidden), Q4_K), ("ffn_norm", (hidden,), F32),
                ("ffn_gate", (hidden, s["ffn"]), Q4_K), ("ffn_up", (hidden, s["ffn"]), Q4_K),
                ("ffn_down", (s["ffn"], hidden), larger)]:
            yield f"blk.{n}.{name}.weight", shape, kind
        if s["qk_norm"]:
            yield f"blk.{n}.attn_q_norm.weight", (s["dim"],), F32
            yield f"blk.{n}.attn_k_norm.weight", (s["dim"],), F32


def content(shape, kind, rng):
    count = int(np.prod(shape))
    if kind == F32:
        return np.ones(count, np.float32).tobytes()
    blocks = rng.integers(0, 256, (count // 256, BLOCK_BYTES[kind]), np.uint8)
    scale = np.frombuffer(np.float16(1e-4).tobytes(), np.uint8)
    if kind == Q4_K:
        blocks[:, 0:2] = scale  # d; dmin makes the values' mean 0
        blocks[:, 2:4] = scale
    else:
        blocks[:, 208:210] = scale
    return blocks.tobytes()


def text(value):
    raw = value.encode()
    return struct.pack("<Q", len(raw)) + raw


def write_gguf(path, s):
    arch = s["arch"]
    integers = {"block_count": s["layers"], "context_length": 262144, "embedding_length": s["hidden"],
                "feed_forward_length": s["ffn"], "attention.head_count": s["heads"],
                "attention.head_count_kv": s["kv"], "attention.key_length": s["dim"],
                "attention.value_length": s["dim"], "vocab_size": s["vocab"]}
    if arch == "llama":
        integers["rope.dimension_count"] = s["dim"]
    pairs = [("general.architecture", 8, text(arch)), ("tokenizer.ggml.model", 8, text("no_vocab")),
             ("general.file_type", 4, struct.pack("<I", 15))]
    pairs += [(f"{arch}.{key}", 4, struct.pack("<I", value)) for key, value in integers.items()]
    pairs += [(f"{arch}.attention.layer_norm_rms_epsilon", 6, struct.pack("<f", 1e-5)),
              (f"{arch}.rope.freq_base", 6, struct.pack("<f", s["theta"]))]
    listed, head, offset = list(tensors(s)), b"", 0
    for name, shape, kind in listed:
        head += text(name) + struct.pack(f"<I{len(shape)}QIQ", len(shape), *shape, kind, offset)
        count = int(np.prod(shape))
        size = 4 * count if kind == F32 else count // 256 * BLOCK_BYTES[kind]
        offset += -(-size // ALIGNMENT) * ALIGNMENT
    rng = np.random.default_rng(1)
    with open(path, "wb") as f:
        f.write(b"GGUF" + struct.pack("<IQQ", 3, len(listed), len(pairs)))
        f.write(b"".join(text(key) + struct.pack("<I", kind) + value for key, kind, value in pairs) + head)
        for _, shape, kind in listed:
            f.write(b"\0" * (-f.tell() % ALIGNMENT))
            f.write(content(shape, kind, rng))
        f.write(b"\0" * (-f.tell() % ALIGNMENT))


def run(command):
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"{' '.join(command)}: exit code {done.returncode}\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
    return json.loads(done.stdout)


def llama(program, path, tokens):
    row = run([program, "-m", path, "-p", str(tokens), "-n", "0", "-b", "2048", "-ub", "2048", "-fa", "1", "-ngl",
               "999", "-r", "1", "-o", "json"])[0]
    return row["avg_ns"] / 1e6, row["gpu_info"]


def headrace(program, shape, tokens, kind):
    report = run([program, "bench", "--shape", shape, "--weights", "q4_k_m", "-p", str(tokens), "-n", "1", "--kv",
                  "device", "--prefill-type", kind, "--json"])
    return report["rows"][0]["prefill"]["ms"]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("headrace")
    parser.add_argument("llama_bench")
    parser.add_argument("--shape", choices=SHAPES, required=True)
    parser.add_argument("--tokens", type=int, nargs="+", required=True)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--work", required=True)
    a = parser.parse_args()
    path = os.path.join(a.work, f"{a.shape}.gguf")
    write_gguf(path, SHAPES[a.shape])
    rows, device = [], ""
    for tokens in a.tokens:
        times = {"llama.cpp": [], "bf16": [], "int8": []}
        for _ in range(a.rounds):
            ms, device = llama(a.llama_bench, path, tokens)
            times["llama.cpp"].append(ms)
            for kind in ("bf16", "int8"):
                times[kind].append(headrace(a.headrace, a.shape, tokens, kind))
        rows += [{"tokens": tokens, "program": name, "prefill_ms": statistics.median(runs), "runs_ms": runs}
                 for name, runs in times.items()]
    os.remove(path)
    print(json.dumps({"program": "bench/llama_gpu.py", "device": device, "shape": a.shape, "weights": "Q4_K_M, random",
                      "rows": rows}, indent=1))


if __name__ == "__main__":
    main()
