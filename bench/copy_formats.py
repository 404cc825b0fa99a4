"""How many pending tokens a copy of the KV cache overturns, by its format (docs/measuring.md, "Where a copy is wrong").

Rows before the last 256 are rounded to a format in place; newer rows stay exact, as in the tail. The figure is the
share of positions of a book at which sampling from the rounded rows gives another token than sampling from the exact
rows with the same noise: what a refresh overturns. At a temperature above 0 it is exact for Gumbel-max sampling: both
give token i with probability 1 / sum_j max(p_j / p_i, q_j / q_i). Runs on a GPU or the CPU. Needs torch, safetensors,
tokenizers and a directory with a Llama checkpoint (config.json, model.safetensors in BF16, tokenizer.json).

--states: how much of what is overturned comes from rounding, not from the format. f32 computes the residual stream in
f32 instead of BF16, inputs the inputs of all products as well. Rows and queries are BF16 in any case. All products are
of f32 numbers, without TF32.

--gaps: for the formats chosen with --only, where the wrong tokens are: how far the sample's second choice is behind the
first, in log-probability at temperature 0.8 with the noise added, by draws of that noise.

  python3 bench/copy_formats.py MODEL_DIR --tokens 8192 -o OUT.txt BOOK...
"""
import argparse
import json
import math
import os
import time

import torch
from safetensors.torch import load_file

CHUNK = 256  # positions that are judged together; their rows and the CHUNK rows before them are exact
SLICE = 1024  # positions of the context whose states are computed together
GAPS = (0.01, 0.02, 0.03, 0.05, 0.08, 0.1, 0.15, 0.2)
DRAWS = 400  # of noise, a position
TOP = 256    # tokens whose probabilities are compared one by one; the others together count as one


def bf16(x):
    return x.bfloat16().float()


def tensors(directory, device):
    path = os.path.join(directory, "model.safetensors")
    out = load_file(path, device=device)
    for name, t in out.items():
        assert t.dtype == torch.bfloat16, f"{path}: {name} has the type {t.dtype}, not BF16"
        out[name] = t.float()
    return out


class Model:
    def __init__(self, directory, states, device):
        self.state = bf16 if states == "bf16" else exact
        self.input = exact if states == "inputs" else bf16
        with open(os.path.join(directory, "config.json"), encoding="utf-8") as f:
            self.c = json.load(f)
        self.w, self.device = tensors(directory, device), device
        self.layers, self.heads = self.c["num_hidden_layers"], self.c["num_attention_heads"]
        self.kv_heads, self.dim = self.c["num_key_value_heads"], self.c["head_dim"]
        pairs = torch.arange(0, self.dim, 2, dtype=torch.float64, device=device)
        self.frequencies = self.c["rope_theta"] ** -(pairs / self.dim)

    def norm(self, x, name):
        return self.input(x / torch.sqrt((x * x).mean(-1, keepdim=True) + self.c["rms_norm_eps"]) * self.w[name])

    def rope(self, x, start):
        at = torch.arange(start, start + x.shape[1], device=self.device)[:, None] * self.frequencies
        cos, sin = torch.cos(at).float(), torch.sin(at).float()
        a, b = x.chunk(2, -1)
        return bf16(torch.cat((a * cos - b * sin, b * cos + a * sin), -1))

    def attend(self, q, k, v, start):
        """q [heads, n, dim] at the positions from `start`; k, v [kv_heads, start + n, dim]"""
        n = q.shape[1]
        scores = (q / math.sqrt(self.dim)).reshape(self.kv_heads, -1, self.dim) @ k.mT
        later = torch.ones(n, n, dtype=torch.bool, device=self.device).triu(1)
        scores.view(self.heads, n, -1)[:, :, start:].masked_fill_(later, -math.inf)
        return self.input(torch.softmax(scores, -1) @ v).view(q.shape)

    def run(self, ids, start, rows):
        """rows(layer, k, v) takes the new rows and returns all; k, v [kv_heads, n, dim]. Returns the states."""
        x = self.w["model.embed_tokens.weight"][ids]
        n = len(ids)
        for layer in range(self.layers):
            p = f"model.layers.{layer}."
            h = self.norm(x, p + "input_layernorm.weight")
            q, k, v = (bf16(h @ self.w[p + f"self_attn.{m}_proj.weight"].T).view(n, -1, self.dim).transpose(0, 1)
                       for m in "qkv")
            k, v = rows(layer, self.rope(k, start), v)
            o = self.attend(self.rope(q, start), k, v, start)
            o = o.transpose(0, 1).reshape(n, -1)
            x = self.state(x + self.state(o @ self.w[p + "self_attn.o_proj.weight"].T))
            h = self.norm(x, p + "post_attention_layernorm.weight")
            gate = h @ self.w[p + "mlp.gate_proj.weight"].T
            up = h @ self.w[p + "mlp.up_proj.weight"].T
            h = self.input(gate / (1 + torch.exp(-gate)) * up)
            x = self.state(x + self.state(h @ self.w[p + "mlp.down_proj.weight"].T))
        return x

    def logits(self, states):
        head = self.w.get("lm_head.weight", self.w["model.embed_tokens.weight"])
        return self.norm(states, "model.norm.weight") @ head.T


# ---- formats --------------------------------------------------------------------------------------------------------


def hadamard(n, device):
    h = torch.ones(1, 1, device=device)
    while len(h) < n:
        h = torch.cat((torch.cat((h, h), 1), torch.cat((h, -h), 1)))
    return h / math.sqrt(n)


def f16(x):
    return x.half().float()


def symmetric(x, bits):
    top = 2 ** (bits - 1) - 1
    scale = f16(x.abs().amax(-1, keepdim=True) / top).clamp(min=1e-7)
    return (x / scale).round().clamp(-top, top) * scale


def asymmetric(x, bits):
    low = x.amin(-1, keepdim=True)
    scale = f16((x.amax(-1, keepdim=True) - low) / (2**bits - 1)).clamp(min=1e-7)
    low = f16(low)
    return ((x - low) / scale).round().clamp(0, 2**bits - 1) * scale + low


def by_row(bits, group=None, rotated=False, how=symmetric):
    """Groups of `group` values of a row and KV head; none: the whole head."""

    def rounded(x):
        h = hadamard(x.shape[-1], x.device) if rotated else None
        y = x @ h if rotated else x
        y = how(y.unflatten(-1, (-1, group or y.shape[-1])), bits).flatten(-2)
        return bf16(y @ h if rotated else y)

    return rounded


def by_channel(bits, rows=32):
    """Groups of `rows` rows of one channel."""

    def rounded(x):
        whole = x.shape[1] // rows * rows
        y = asymmetric(x[:, :whole].unflatten(1, (-1, rows)).transpose(2, 3), bits).transpose(2, 3)
        return torch.cat((bf16(y.flatten(1, 2)), x[:, whole:]), 1)

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


def overturned(a, b, temperature):
    """The mean over rows of logits of the chance that sampling with the same noise gives different tokens."""
    if temperature == 0:
        return float((a.argmax(-1) != b.argmax(-1)).double().mean())
    p, q = (torch.softmax(x.double() / temperature, -1) for x in (a, b))
    top = (p + q).topk(TOP).indices
    p, q = (x.gather(-1, top) for x in (p, q))
    p, q = (torch.cat((x, 1 - x.sum(-1, keepdim=True)), -1).clamp(min=1e-15) for x in (p, q))
    both = torch.maximum(p[:, None] / p[:, :, None], q[:, None] / q[:, :, None]).sum(-1)
    return float(1 - (1 / both).sum(-1).mean())


def gaps(a, b, temperature, random):
    """For draws of noise: how far the second choice by b is behind the first, and the place of a's choice among b's."""
    out = []
    a, b = (torch.log_softmax(x.double() / temperature, -1) for x in (a, b))
    top = torch.maximum(a, b).topk(2 * TOP).indices
    for right, said in zip(a.gather(-1, top).split(8), b.gather(-1, top).split(8)):
        noise = torch.empty(len(right), DRAWS, 2 * TOP, dtype=torch.float64, device=a.device)
        noise = -noise.exponential_(generator=random).log()
        right = (right[:, None] + noise).argmax(-1)
        best, order = (said[:, None] + noise).topk(8)
        found = order == right[..., None]
        place = torch.where(found.any(-1), found.int().argmax(-1), 8)
        out.append(torch.stack((best[..., 0] - best[..., 1], place), -1).flatten(0, 1))
    return torch.cat(out)


def percent(chosen):
    return 100 * chosen.double().mean()


def gap_lines(name, found):
    gap, place = found[:, 0], found[:, 1]
    wrong = place > 0
    lines = [f"{name}: wrong {percent(wrong):.2f}%, the second choice is right {percent(place == 1):.2f}%, "
             f"none of eight {percent(place == 8):.3f}%",
             f"{'gap below':>10} {'tokens, %':>10} {'of them wrong, %':>17} {'of all wrong, %':>16}"]
    for limit in GAPS:
        close = gap < limit
        lines.append(f"{limit:10.2f} {percent(close):10.2f} {percent(wrong[close]):17.1f} "
                     f"{percent(close[wrong]):16.1f}")
    return lines


def judge(model, ids, context, chunks, formats, random=None):
    shape = (model.layers, model.kv_heads, context + chunks * CHUNK, model.dim)
    keys, values = (torch.empty(shape, device=model.device) for _ in range(2))

    def stored(start, end):
        def rows(layer, *new):
            for cache, some in zip((keys, values), new):
                cache[layer, :, start:end] = some
            return keys[layer, :, :end], values[layer, :, :end]

        return model.run(ids[start:end], start, rows)

    def rounded(start, pair):
        old = start - CHUNK

        def rows(layer, *new):
            return (torch.cat((rounding(cache[layer, :, :old]), cache[layer, :, old:start], some), 1)
                    for rounding, cache, some in zip(pair, (keys, values), new))

        return model.run(ids[start:start + CHUNK], start, rows)

    for start in range(0, context, SLICE):
        stored(start, min(start + SLICE, context))
    starts = range(context, context + chunks * CHUNK, CHUNK)
    right = [model.logits(stored(start, start + CHUNK)) for start in starts]
    result = {}
    for name, pair in formats.items():
        wrong = (model.logits(rounded(start, pair)) for start in starts)
        if random is None:
            shares = [[overturned(a, b, temperature) for temperature in (0, 0.8, 1)] for a, b in zip(right, wrong)]
            result[name] = torch.tensor(shares, dtype=torch.float64).mean(0)
        else:
            result[name] = torch.cat([gaps(a, b, 0.8, random) for a, b in zip(right, wrong)])
    return result


@torch.inference_mode()
def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("books", nargs="+")
    parser.add_argument("--tokens", type=int, default=8192)
    parser.add_argument("--chunks", type=int, default=1)
    parser.add_argument("--states", choices=["bf16", "f32", "inputs"], default="bf16")
    parser.add_argument("--only", default="", help="formats whose name has one of these texts, separated by semicolons")
    parser.add_argument("--gaps", action="store_true")
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("-o", "--output")
    a = parser.parse_args()
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(os.path.join(a.model, "tokenizer.json"))
    torch.backends.cuda.matmul.allow_tf32 = False
    model = Model(a.model, a.states, a.device)
    formats = {name: pair for name, pair in FORMATS.items() if any(word in name for word in a.only.split(";"))}
    sums, lines, end = {}, [], a.tokens + a.chunks * CHUNK
    random = torch.Generator(a.device).manual_seed(1) if a.gaps else None
    for book in a.books:
        began = time.time()
        with open(book, encoding="utf-8") as f:
            ids = tokenizer.encode(f.read()).ids[:end]
        assert len(ids) == end, f"{book}: has {len(ids)} tokens; {end} are needed"
        ids = torch.tensor(ids, device=a.device)
        for name, share in judge(model, ids, a.tokens, a.chunks, formats, random).items():
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
            lines += gap_lines(name, torch.cat(found))
    else:
        lines.append(f"{'format':46} {'T = 0':>7} {'T = 0.8':>7} {'T = 1':>7}")
        lines += [f"{name:46} " + " ".join(f"{100 * x:7.2f}" for x in share) for name, share in sums.items()]
    text = "\n".join(lines) + "\n"
    print(text, end="")
    if a.output:
        with open(a.output, "w", encoding="utf-8") as f:
            f.write(text)


main()
