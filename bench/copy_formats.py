"""How many pending tokens a copy of the KV cache overturns, by its format (docs/measuring.md, "Formats of the copy").

Rows before the last 256 are rounded to a format in place; newer rows stay exact, as in the tail. The figure is the
share of positions of a book at which sampling from the rounded rows gives another token than sampling from the exact rows
with the same noise: what a refresh overturns. At a temperature above 0 it is exact for Gumbel-max sampling: both give
token i with probability 1 / sum_j max(p_j / p_i, q_j / q_i). Runs on the CPU. Needs numpy, tokenizers and a directory
with a Llama checkpoint (config.json, model.safetensors in BF16, tokenizer.json).

--states: how much of what is overturned comes from rounding, not from the format. f32 computes the residual stream in
f32 instead of BF16, inputs the inputs of all products as well. Rows and queries are BF16 in any case.

--gaps: for the formats chosen with --only, where the wrong tokens are: how far the sample's second choice is behind the
first, in log-probability at temperature 0.8 with the noise added, by draws of that noise.

  python3 bench/copy_formats.py MODEL_DIR --tokens 8192 -o OUT.txt BOOK...
"""
import argparse
import json
import math
import os
import time

import numpy as np

CHUNK = 256  # positions that are judged together; their rows and the CHUNK rows before them are exact
GAPS = (0.01, 0.02, 0.03, 0.05, 0.08, 0.1, 0.15, 0.2)
DRAWS = 400  # of noise, a position
TOP = 256    # tokens whose probabilities are compared one by one; the others together count as one


def bf16(x):
    bits = np.ascontiguousarray(x, np.float32).view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) & 0xFFFF0000).view(np.float32)


def tensors(directory):
    path = os.path.join(directory, "model.safetensors")
    with open(path, "rb") as f:
        size = int.from_bytes(f.read(8), "little")
        header = json.loads(f.read(size))
        data = f.read()
    out = {}
    for name, t in header.items():
        if name == "__metadata__":
            continue
        assert t["dtype"] == "BF16", f"{path}: {name} has the type {t['dtype']}, not BF16"
        begin, end = t["data_offsets"]
        raw = np.frombuffer(data[begin:end], np.uint16).astype(np.uint32) << 16
        out[name] = raw.view(np.float32).reshape(t["shape"])
    return out


class Model:
    def __init__(self, directory, states):
        self.state = bf16 if states == "bf16" else exact
        self.input = exact if states == "inputs" else bf16
        with open(os.path.join(directory, "config.json"), encoding="utf-8") as f:
            self.c = json.load(f)
        self.w = tensors(directory)
        self.layers, self.heads = self.c["num_hidden_layers"], self.c["num_attention_heads"]
        self.kv_heads, self.dim = self.c["num_key_value_heads"], self.c["head_dim"]
        self.frequencies = self.c["rope_theta"] ** -(np.arange(0, self.dim, 2) / self.dim)

    def norm(self, x, name):
        return self.input(x / np.sqrt((x * x).mean(-1, keepdims=True) + self.c["rms_norm_eps"]) * self.w[name])

    def rope(self, x, start):
        at = np.arange(start, start + x.shape[1])[:, None] * self.frequencies
        cos, sin = np.cos(at).astype(np.float32), np.sin(at).astype(np.float32)
        a, b = np.split(x, 2, axis=-1)
        return bf16(np.concatenate((a * cos - b * sin, b * cos + a * sin), -1))

    def attend(self, q, k, v, start):
        """q [heads, n, dim] at the positions from `start`; k, v [kv_heads, start + n, dim]"""
        n, group = q.shape[1], self.heads // self.kv_heads
        out = np.empty_like(q)
        later = np.triu(np.ones((n, n), bool), 1)
        for head in range(self.heads):
            scores = q[head] @ k[head // group].T / math.sqrt(self.dim)
            scores[:, start:][later] = -np.inf
            scores -= scores.max(-1, keepdims=True)
            np.exp(scores, out=scores)
            out[head] = scores @ v[head // group] / scores.sum(-1, keepdims=True)
        return self.input(out)

    def run(self, ids, start, rows):
        """rows(layer, k, v) stores the new rows and returns all; k, v [kv_heads, n, dim]. Returns the states."""
        x = self.w["model.embed_tokens.weight"][ids]
        n = len(ids)
        for layer in range(self.layers):
            p = f"model.layers.{layer}."
            h = self.norm(x, p + "input_layernorm.weight")
            q, k, v = (bf16(h @ self.w[p + f"self_attn.{m}_proj.weight"].T).reshape(n, -1, self.dim).swapaxes(0, 1)
                       for m in "qkv")
            k, v = rows(layer, self.rope(k, start), v)
            o = self.attend(self.rope(q, start), k, v, start)
            o = o.swapaxes(0, 1).reshape(n, -1)
            x = self.state(x + self.state(o @ self.w[p + "self_attn.o_proj.weight"].T))
            h = self.norm(x, p + "post_attention_layernorm.weight")
            gate = h @ self.w[p + "mlp.gate_proj.weight"].T
            up = h @ self.w[p + "mlp.up_proj.weight"].T
            h = self.input(gate / (1 + np.exp(-gate)) * up)
            x = self.state(x + self.state(h @ self.w[p + "mlp.down_proj.weight"].T))
        return x

    def logits(self, states):
        head = self.w.get("lm_head.weight", self.w["model.embed_tokens.weight"])
        return self.norm(states, "model.norm.weight") @ head.T


# ---- formats --------------------------------------------------------------------------------------------------------


def hadamard(n):
    h = np.ones((1, 1), np.float32)
    while len(h) < n:
        h = np.block([[h, h], [h, -h]])
    return h / np.float32(math.sqrt(n))


def f16(x):
    return x.astype(np.float16).astype(np.float32)


def symmetric(x, bits):
    top = 2 ** (bits - 1) - 1
    scale = np.maximum(f16(np.abs(x).max(-1, keepdims=True) / top), 1e-7)
    return np.clip(np.rint(x / scale), -top, top) * scale


def asymmetric(x, bits):
    low = x.min(-1, keepdims=True)
    scale = np.maximum(f16((x.max(-1, keepdims=True) - low) / (2**bits - 1)), 1e-7)
    low = f16(low)
    return np.clip(np.rint((x - low) / scale), 0, 2**bits - 1) * scale + low


def by_row(bits, group=None, rotated=False, how=symmetric):
    """Groups of `group` values of a row and KV head; none: the whole head."""

    def rounded(x):
        h = hadamard(x.shape[-1]) if rotated else None
        y = x @ h if rotated else x
        y = how(y.reshape(*y.shape[:-1], -1, group or y.shape[-1]), bits).reshape(x.shape)
        return bf16(y @ h if rotated else y)

    return rounded


def by_channel(bits, rows=32):
    """Groups of `rows` rows of one channel."""

    def rounded(x):
        whole = x.shape[1] // rows * rows
        y = x[:, :whole].reshape(x.shape[0], -1, rows, x.shape[2]).swapaxes(2, 3)
        y = asymmetric(y, bits).swapaxes(2, 3).reshape(x.shape[0], whole, -1)
        return np.concatenate((bf16(y), x[:, whole:]), 1)

    return rounded


def exact(x):
    return x


INT8, INT8_ROTATED = by_row(8), by_row(8, rotated=True)
INT4 = by_row(4, 32, True, asymmetric)
FORMATS = {  # name: (K, V)
    "int8, a scale a row (the copy today)": (INT8, INT8),
    "int8, rotated": (INT8_ROTATED, INT8_ROTATED),
    "int8, only K rounded": (INT8, exact),
    "int8, only V rounded": (exact, INT8),
    "int8, groups of 32": (by_row(8, 32),) * 2,
    "int8, rotated, groups of 32": (by_row(8, 32, True),) * 2,
    "10 bits, rotated": (by_row(10, None, True),) * 2,
    "6 bits, rotated, groups of 32, minimum": (by_row(6, 32, True, asymmetric),) * 2,
    "5 bits, rotated, groups of 32, minimum": (by_row(5, 32, True, asymmetric),) * 2,
    "int4, rotated, groups of 32, minimum (today)": (INT4, INT4),
    "int4, groups of 32, minimum": (by_row(4, 32, False, asymmetric),) * 2,
    "int4, K by channel, V rotated": (by_channel(4), INT4),
    "5 bits, K by channel, V rotated": (by_channel(5), by_row(5, 32, True, asymmetric)),
    "K int8 rotated, V int4": (INT8_ROTATED, INT4),
    "K int4, V int8 rotated": (INT4, INT8_ROTATED),
}


# ---- judging --------------------------------------------------------------------------------------------------------


def softmax(x):
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def overturned(a, b, temperature):
    """The mean over rows of logits of the chance that sampling with the same noise gives different tokens."""
    if temperature == 0:
        return float((a.argmax(-1) != b.argmax(-1)).mean())
    p, q = softmax(a.astype(np.float64) / temperature), softmax(b.astype(np.float64) / temperature)
    top = np.argpartition(-(p + q), TOP, axis=-1)[:, :TOP]
    p, q = (np.take_along_axis(x, top, -1) for x in (p, q))
    p, q = (np.concatenate((x, np.maximum(1 - x.sum(-1, keepdims=True), 1e-15)), -1) for x in (p, q))
    p, q = np.maximum(p, 1e-15), np.maximum(q, 1e-15)
    same = 0
    for one, other in zip(p, q):
        both = np.maximum(one[None] / one[:, None], other[None] / other[:, None]).sum(-1)
        same += (1 / both).sum()
    return 1 - same / len(p)


def gaps(a, b, temperature, random):
    """For draws of noise: how far the second choice by b is behind the first, and the place of a's choice among b's."""
    out = []
    for exact_row, row in zip(a.astype(np.float64) / temperature, b.astype(np.float64) / temperature):
        top = np.union1d(np.argpartition(-exact_row, TOP)[:TOP], np.argpartition(-row, TOP)[:TOP])
        noise = random.gumbel(size=(DRAWS, len(top)))
        right = (exact_row[top] + noise).argmax(-1)
        said = row[top] + noise
        order = np.argsort(-said, axis=-1)[:, :8]
        best = np.take_along_axis(said, order[:, :2], -1)
        found = order == right[:, None]
        out.append(np.stack((best[:, 0] - best[:, 1], np.where(found.any(-1), found.argmax(-1), 8)), -1))
    return np.concatenate(out)


def gap_lines(name, found):
    gap, place = found[:, 0], found[:, 1]
    wrong = place > 0
    lines = [f"{name}: wrong {100 * wrong.mean():.2f}%, the second choice is right {100 * (place == 1).mean():.2f}%, "
             f"none of eight {100 * (place == 8).mean():.3f}%",
             f"{'gap below':>10} {'tokens, %':>10} {'of them wrong, %':>17} {'of all wrong, %':>16}"]
    for limit in GAPS:
        close = gap < limit
        lines.append(f"{limit:10.2f} {100 * close.mean():10.2f} {100 * wrong[close].mean():17.1f} "
                     f"{100 * wrong[close].sum() / max(1, wrong.sum()):16.1f}")
    return lines


def judge(model, ids, context, chunks, formats, random=None):
    total = context + chunks * CHUNK
    shape = (model.layers, model.kv_heads, total, model.dim)
    keys, values = np.empty(shape, np.float32), np.empty(shape, np.float32)

    def compute(start, count, k_all, v_all):
        def rows(layer, k, v):
            end = start + count
            k_all[layer, :, start:end], v_all[layer, :, start:end] = k, v
            return k_all[layer, :, :end], v_all[layer, :, :end]

        return model.run(ids[start:start + count], start, rows)

    for start in range(0, context, CHUNK):
        compute(start, CHUNK, keys, values)
    right = [model.logits(compute(context + c * CHUNK, CHUNK, keys, values)) for c in range(chunks)]
    result = {}
    for name, (k_format, v_format) in formats.items():
        sums, found = np.zeros(3), []
        for c in range(chunks):
            start = context + c * CHUNK
            old = start - CHUNK
            low_k = np.concatenate([k_format(keys[:, h, :old])[:, None] for h in range(model.kv_heads)], 1)
            low_v = np.concatenate([v_format(values[:, h, :old])[:, None] for h in range(model.kv_heads)], 1)
            low_k = np.concatenate((low_k, keys[:, :, old:start + CHUNK]), 2)
            low_v = np.concatenate((low_v, values[:, :, old:start + CHUNK]), 2)
            wrong = model.logits(compute(start, CHUNK, low_k, low_v))
            if random is not None:
                found.append(gaps(right[c], wrong, 0.8, random))
                continue
            for i, temperature in enumerate((0, 0.8, 1)):
                sums[i] += overturned(right[c], wrong, temperature) / chunks
        result[name] = sums if random is None else np.concatenate(found)
    return result


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("books", nargs="+")
    parser.add_argument("--tokens", type=int, default=8192)
    parser.add_argument("--chunks", type=int, default=1)
    parser.add_argument("--states", choices=["bf16", "f32", "inputs"], default="bf16")
    parser.add_argument("--only", default="", help="formats whose name has one of these texts, separated by semicolons")
    parser.add_argument("--gaps", action="store_true")
    parser.add_argument("-o", "--output")
    a = parser.parse_args()
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(os.path.join(a.model, "tokenizer.json"))
    model = Model(a.model, a.states)
    formats = {name: pair for name, pair in FORMATS.items() if any(word in name for word in a.only.split(";"))}
    sums, lines = {}, []
    random = np.random.default_rng(1) if a.gaps else None
    for book in a.books:
        began = time.time()
        with open(book, encoding="utf-8") as f:
            ids = np.array(tokenizer.encode(f.read()).ids)
        for name, share in judge(model, ids[:a.tokens + a.chunks * CHUNK], a.tokens, a.chunks, formats, random).items():
            if a.gaps:
                sums.setdefault(name, []).append(share)
            else:
                sums[name] = sums.get(name, 0) + share / len(a.books)
        print(book, f"{time.time() - began:.0f} s", flush=True)
    lines.append(f"overturned, %, {a.chunks * CHUNK} positions after {a.tokens} tokens, {len(a.books)} books; "
                 f"{os.path.basename(os.path.normpath(a.model))}, hidden states "
                 f"{dict(bf16='in BF16', f32='in f32', inputs='and inputs of products in f32')[a.states]}")
    if a.gaps:
        for name, found in sums.items():
            lines += gap_lines(name, np.concatenate(found))
    else:
        lines.append(f"{'format':46} {'T = 0':>7} {'T = 0.8':>7} {'T = 1':>7}")
        lines += [f"{name:46} " + " ".join(f"{100 * x:7.2f}" for x in share) for name, share in sums.items()]
    text = "\n".join(lines) + "\n"
    print(text, end="")
    if a.output:
        with open(a.output, "w", encoding="utf-8") as f:
            f.write(text)


main()
