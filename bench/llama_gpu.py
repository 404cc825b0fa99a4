"""llama.cpp and headrace in turns on one GPU, a shape with random Q4_K_M weights (gpt-oss: MXFP4): prefill, in bf16 and in 8 bits, and
decode steps behind it.

  python3 bench/llama_gpu.py HEADRACE LLAMA_BENCH --shape llama-3.1-8b --tokens 61440 [131040 ...] [--rounds 3]
      [--decode 32] [--prefill-types bf16,int8] --work DIR > result.json

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
    # delta: key heads, value heads, and the size of both, of the three of four layers that have a recurrent state.
    "qwen3.6-27b": dict(arch="qwen35", layers=64, hidden=5120, heads=24, kv=4, dim=256, ffn=17408, vocab=248320,
                        theta=10000000.0, qk_norm=True, rotated=64, delta=(16, 48, 128)),
    # experts: how many there are, how many a token uses, and their width.
    "qwen3-30b-a3b": dict(arch="qwen3moe", layers=48, hidden=2048, heads=32, kv=4, dim=128, ffn=0, vocab=151936,
                          theta=1000000.0, qk_norm=True, experts=(128, 8, 768)),
    # shared: the width of an expert that all tokens have.
    "qwen3.6-35b-a3b": dict(arch="qwen35moe", layers=40, hidden=2048, heads=16, kv=2, dim=256, ffn=0, vocab=248320,
                            theta=10000000.0, qk_norm=True, rotated=64, delta=(16, 32, 128), experts=(256, 8, 512),
                            shared=512),
    # Experts in MXFP4, all else in Q8_0; biases, sinks, windows in every second layer, and YaRN.
    "gpt-oss-20b": dict(arch="gpt-oss", layers=24, hidden=2880, heads=64, kv=8, dim=64, ffn=2880, vocab=201088,
                        theta=150000.0, qk_norm=False, experts=(32, 4, 2880), weights="mxfp4", window=128,
                        yarn=(32.0, 4096)),
}
F32, Q8_0, Q4_K, Q5_K, Q6_K, MXFP4 = 0, 8, 12, 13, 14, 39
BLOCKS = {Q4_K: (256, 144), Q5_K: (256, 176), Q6_K: (256, 210), Q8_0: (32, 34), MXFP4: (32, 17)}  # values, bytes
ALIGNMENT = 32


def is_larger(layer, layers):
    eighth = layers // 8
    return layer < eighth or layer >= 7 * layers // 8 or (layer - eighth) % 3 == 2


def is_recurrent(layer, s):
    return "delta" in s and (layer + 1) % 4 != 0


def attention(s, larger):
    hidden, q, kv, gates = s["hidden"], s["heads"] * s["dim"], s["kv"] * s["dim"], 2 if "delta" in s else 1
    yield from [("attn_q.weight", (hidden, gates * q), Q4_K), ("attn_k.weight", (hidden, kv), Q4_K),
                ("attn_v.weight", (hidden, kv), larger), ("attn_output.weight", (q, hidden), Q4_K)]
    if s["qk_norm"]:
        yield from [("attn_q_norm.weight", (s["dim"],), F32), ("attn_k_norm.weight", (s["dim"],), F32)]


def gpt_oss_layer(s):
    """Weights and their biases, which gpt-oss alone has."""
    hidden, q, kv, (count, _, width) = s["hidden"], s["heads"] * s["dim"], s["kv"] * s["dim"], s["experts"]
    for name, shape in [("attn_q", (hidden, q)), ("attn_k", (hidden, kv)), ("attn_v", (hidden, kv)),
                        ("attn_output", (q, hidden))]:
        yield from [(f"{name}.weight", shape, Q8_0), (f"{name}.bias", shape[1:], F32)]
    yield from [("attn_sinks.weight", (s["heads"],), F32), ("ffn_gate_inp.weight", (hidden, count), F32),
                ("ffn_gate_inp.bias", (count,), F32)]
    for name, shape in [("ffn_gate_exps", (hidden, width, count)), ("ffn_up_exps", (hidden, width, count)),
                        ("ffn_down_exps", (width, hidden, count))]:
        yield from [(f"{name}.weight", shape, MXFP4), (f"{name}.bias", shape[1:], F32)]


def recurrence(s):
    hidden, (k_heads, v_heads, dim) = s["hidden"], s["delta"]
    channels, v = (2 * k_heads + v_heads) * dim, v_heads * dim
    yield from [("attn_qkv.weight", (hidden, channels), Q5_K), ("attn_gate.weight", (hidden, v), Q4_K),
                ("ssm_conv1d.weight", (4, channels), F32), ("ssm_dt.bias", (v_heads,), F32), ("ssm_a", (v_heads,), F32),
                ("ssm_alpha.weight", (hidden, v_heads), Q4_K), ("ssm_beta.weight", (hidden, v_heads), Q4_K),
                ("ssm_norm.weight", (dim,), F32), ("ssm_out.weight", (v, hidden), Q4_K)]


def feed_forward(s, larger):
    hidden, ffn = s["hidden"], s["ffn"]
    if "experts" not in s:
        return [("ffn_gate", (hidden, ffn), Q4_K), ("ffn_up", (hidden, ffn), Q4_K), ("ffn_down", (ffn, hidden), larger)]
    count, _, width = s["experts"]
    parts = [("ffn_gate_inp", (hidden, count), F32), ("ffn_gate_exps", (hidden, width, count), Q4_K),
             ("ffn_up_exps", (hidden, width, count), Q4_K), ("ffn_down_exps", (width, hidden, count), larger)]
    if "shared" in s:
        shared = s["shared"]
        parts += [("ffn_gate_inp_shexp", (hidden, 1), F32), ("ffn_gate_shexp", (hidden, shared), Q4_K),
                  ("ffn_up_shexp", (hidden, shared), Q4_K), ("ffn_down_shexp", (shared, hidden), larger)]
    return parts


def tensors(s):
    """Name, shape with the innermost size first, type."""
    hidden, floats = s["hidden"], s.get("weights") == "mxfp4"
    yield "token_embd.weight", (hidden, s["vocab"]), Q8_0 if floats else Q4_K
    yield "output_norm.weight", (hidden,), F32
    yield "output.weight", (hidden, s["vocab"]), Q8_0 if floats else Q6_K
    for n in range(s["layers"]):
        if floats:
            for name, shape, kind in [("attn_norm.weight", (hidden,), F32),
                                      ("post_attention_norm.weight", (hidden,), F32), *gpt_oss_layer(s)]:
                yield f"blk.{n}.{name}", shape, kind
            continue
        larger = Q6_K if is_larger(n, s["layers"]) else Q4_K
        yield f"blk.{n}.attn_norm.weight", (hidden,), F32
        for name, shape, kind in recurrence(s) if is_recurrent(n, s) else attention(s, larger):
            yield f"blk.{n}.{name}", shape, kind
        yield f"blk.{n}.{'post_attention_norm' if 'delta' in s else 'ffn_norm'}.weight", (hidden,), F32
        for name, shape, kind in feed_forward(s, larger):
            yield f"blk.{n}.{name}.weight", shape, kind


MOST_BLOCKS = 1 << 16  # of random bytes; longer tensors repeat them


def content(name, shape, kind, rng):
    count = int(np.prod(shape))
    if name.endswith("bias") or "sinks" in name:
        return np.zeros(count, np.float32).tobytes()
    if kind == F32 and len(shape) > 1 and "conv1d" not in name:  # a router: experts are chosen by chance
        return rng.standard_normal(count, np.float32).tobytes()
    if kind == F32:
        return np.full(count, -1.0 if name.endswith("ssm_a") else 1.0, np.float32).tobytes()
    values, size = BLOCKS[kind]
    blocks = rng.integers(0, 256, (min(count // values, MOST_BLOCKS), size), np.uint8)
    scale = np.frombuffer(np.float16(1e-4).tobytes(), np.uint8)
    if kind in (Q4_K, Q5_K):
        blocks[:, 0:2] = scale  # d; dmin makes the values' mean 0
        blocks[:, 2:4] = scale
    elif kind == Q8_0:
        blocks[:, 0:2] = scale
    elif kind == MXFP4:
        blocks[:, 0] = 120  # 2^-7
    else:
        blocks[:, 208:210] = scale
    whole = blocks.tobytes()
    size *= count // values
    return (whole * -(-size // len(whole)))[:size]


def text(value):
    raw = value.encode()
    return struct.pack("<Q", len(raw)) + raw


# GPT-2's characters of the 256 bytes, in the order of the bytes.
def byte_characters():
    shown = [*range(33, 127), *range(161, 173), *range(174, 256)]
    hidden = [byte for byte in range(256) if byte not in shown]
    return [chr(byte) if byte in shown else chr(256 + hidden.index(byte)) for byte in range(256)]


def array(kind, values):
    return struct.pack("<IQ", kind, len(values)) + b"".join(values)


# A token for each byte, and others that no text has.
def vocabulary(size):
    tokens = [*byte_characters(), "<|im_end|>", "ZZ", *(f"word{i}" for i in range(size - 258))]
    return [("tokenizer.ggml.model", 8, text("gpt2")), ("tokenizer.ggml.pre", 8, text("qwen2")),
            ("tokenizer.ggml.tokens", 9, array(8, [text(token) for token in tokens])),
            ("tokenizer.ggml.token_type", 9, array(5, [struct.pack("<i", 3 if i == 256 else 1) for i in range(size)])),
            ("tokenizer.ggml.merges", 9, array(8, [text("Z Z")])), ("tokenizer.ggml.eos_token_id", 4, struct.pack("<I", 256))]


def write_gguf(path, s, words=False):
    arch = s["arch"]
    integers = {"block_count": s["layers"], "context_length": 262144, "embedding_length": s["hidden"],
                "feed_forward_length": s["ffn"], "attention.head_count": s["heads"],
                "attention.head_count_kv": s["kv"], "attention.key_length": s["dim"],
                "attention.value_length": s["dim"], "vocab_size": s["vocab"]}
    if arch != "qwen3":
        integers["rope.dimension_count"] = s.get("rotated", s["dim"])
    if "delta" in s:
        k_heads, v_heads, dim = s["delta"]
        integers |= {"ssm.conv_kernel": 4, "ssm.state_size": dim, "ssm.group_count": k_heads,
                     "ssm.time_step_rank": v_heads, "ssm.inner_size": v_heads * dim, "full_attention_interval": 4}
    if "experts" in s:
        count, used, width = s["experts"]
        integers |= {"expert_count": count, "expert_used_count": used, "expert_feed_forward_length": width}
    if "shared" in s:
        integers["expert_shared_feed_forward_length"] = s["shared"]
    pairs = [("general.architecture", 8, text(arch)), ("general.file_type", 4, struct.pack("<I", 15)),
             *(vocabulary(s["vocab"]) if words else [("tokenizer.ggml.model", 8, text("no_vocab"))])]
    pairs += [(f"{arch}.{key}", 4, struct.pack("<I", value)) for key, value in integers.items()]
    pairs += [(f"{arch}.attention.layer_norm_rms_epsilon", 6, struct.pack("<f", 1e-5)),
              (f"{arch}.rope.freq_base", 6, struct.pack("<f", s["theta"]))]
    if "window" in s:
        factor, original = s["yarn"]
        pairs += [(f"{arch}.attention.sliding_window", 4, struct.pack("<I", s["window"])),
                  (f"{arch}.rope.scaling.type", 8, text("yarn")),
                  (f"{arch}.rope.scaling.factor", 6, struct.pack("<f", factor)),
                  (f"{arch}.rope.scaling.original_context_length", 4, struct.pack("<I", original))]
    if "delta" in s:
        pairs.append((f"{arch}.rope.dimension_sections", 9, struct.pack("<IQ4i", 5, 4, 11, 11, 10, 0)))
    listed, head, offset = list(tensors(s)), b"", 0
    for name, shape, kind in listed:
        head += text(name) + struct.pack(f"<I{len(shape)}QIQ", len(shape), *shape, kind, offset)
        count = int(np.prod(shape))
        size = 4 * count if kind == F32 else count // BLOCKS[kind][0] * BLOCKS[kind][1]
        offset += -(-size // ALIGNMENT) * ALIGNMENT
    rng = np.random.default_rng(1)
    with open(path, "wb") as f:
        f.write(b"GGUF" + struct.pack("<IQQ", 3, len(listed), len(pairs)))
        f.write(b"".join(text(key) + struct.pack("<I", kind) + value for key, kind, value in pairs) + head)
        for name, shape, kind in listed:
            f.write(b"\0" * (-f.tell() % ALIGNMENT))
            f.write(content(name, shape, kind, rng))
        f.write(b"\0" * (-f.tell() % ALIGNMENT))


def run(command):
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"{' '.join(command)}: exit code {done.returncode}\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
    return json.loads(done.stdout)


# A prompt of 512 tokens, which is not counted, warms the process up.
def llama(program, path, tokens, steps):
    work = ["-n", str(steps), "-p", "0", "-d", str(tokens)] if steps else ["-n", "0", "-p", f"512,{tokens}"]
    return run([program, "-m", path, *work, "-b", "2048", "-ub", "2048", "-fa", "1", "-ngl", "999", "-r", "1",
                *([] if steps else ["--no-warmup"]), "-o", "json"])[-1]


def headrace(program, shape, tokens, kind, steps):
    weights = SHAPES[shape].get("weights", "q4_k_m")
    row = run([program, "bench", "--shape", shape, "--weights", weights, "-p", str(tokens), "-n", str(steps), "--kv",
               "device", "--prefill-type", kind, "--json"])["rows"][0]
    return row["prefill"]["ms"], row["decode"]["ms_median"]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("headrace")
    parser.add_argument("llama_bench")
    parser.add_argument("--shape", choices=SHAPES, required=True)
    parser.add_argument("--tokens", type=int, nargs="+", required=True)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--decode", type=int, default=32, help="steps behind the prompt; 0: none of llama.cpp")
    parser.add_argument("--prefill-types", default="bf16,int8")
    parser.add_argument("--work", required=True)
    a = parser.parse_args()
    path = os.path.join(a.work, f"{a.shape}.gguf")
    write_gguf(path, SHAPES[a.shape])
    kinds, rows, device = a.prefill_types.split(","), [], ""
    for tokens in a.tokens:
        prefill, decode = {name: [] for name in ["llama.cpp", *kinds]}, {name: [] for name in ["llama.cpp", *kinds]}
        for _ in range(a.rounds):
            row = llama(a.llama_bench, path, tokens, 0)
            device = row["gpu_info"]
            prefill["llama.cpp"].append(row["avg_ns"] / 1e6)
            if a.decode:
                row = llama(a.llama_bench, path, tokens, a.decode)
                decode["llama.cpp"].append(row["avg_ns"] / 1e6 / a.decode)
            for kind in kinds:
                first, step = headrace(a.headrace, a.shape, tokens, kind, max(a.decode, 1))
                prefill[kind].append(first)
                decode[kind].append(step)
        for name, runs in prefill.items():
            row = {"tokens": tokens, "program": name, "prefill_ms": statistics.median(runs), "runs_ms": runs}
            if a.decode:
                row |= {"decode_ms": statistics.median(decode[name]), "decode_runs_ms": decode[name]}
            rows.append(row)
            print(json.dumps(row), file=sys.stderr)
    os.remove(path)
    print(json.dumps({"program": "bench/llama_gpu.py", "device": device, "shape": a.shape, "weights": SHAPES[a.shape].get("weights", "Q4_K_M").upper() + ", random",
                      "rows": rows}, indent=1))


if __name__ == "__main__":
    main()
