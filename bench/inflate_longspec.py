#!/usr/bin/env python3
"""A LongSpec layer for a target that was inflated: the same guesses at the size of the large model.

The lanes are those of the target's inflation: the small model's hidden state is the first lanes of the large one, KV
head i is KV head i, its query heads are the first ones of that group, and rotary pair j is pair j * (DIM / dim).
Norms are scaled because their mean is over more lanes; queries because scores are divided by the root of a larger head.
Lanes that no output depends on hold noise, so that the memory system cannot gain from zeros.
  inflate_longspec.py SMALL_DIR OUT_DIR TARGET_DIR    TARGET_DIR: of the inflated target, for its config.json
Needs: numpy.
"""
import json
import os
import struct
import sys

import numpy as np


def to_f32(bits):
    return (bits.astype(np.uint32) << 16).view(np.float32)


def to_bf16(values):  # to the nearest, ties to even
    bits = np.ascontiguousarray(values, dtype=np.float32).view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)


def read(path):
    with open(path, "rb") as file:
        header = json.loads(file.read(struct.unpack("<Q", file.read(8))[0]))
        data = file.read()
    header.pop("__metadata__", None)
    return {name: to_f32(np.frombuffer(data[t["data_offsets"][0]:t["data_offsets"][1]], np.uint16)).reshape(t["shape"])
            for name, t in header.items() if t["dtype"] == "BF16"}


def write(path, tensors):
    header, offset = {}, 0
    for name, bits in tensors.items():
        header[name] = {"dtype": "BF16", "shape": list(bits.shape), "data_offsets": [offset, offset + bits.nbytes]}
        offset += bits.nbytes
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for bits in tensors.values():
            file.write(bits.tobytes())


class Sizes:
    def __init__(self, config):
        self.hidden, self.ffn = config["hidden_size"], config["intermediate_size"]
        self.heads, self.kv_heads = config["num_attention_heads"], config["num_key_value_heads"]
        self.dim = config.get("head_dim") or self.hidden // self.heads
        self.group = self.heads // self.kv_heads


class Inflation:
    def __init__(self, small, large):
        self.small, self.large = small, large
        self.noise = np.random.default_rng(0)
        stride = large.dim // small.dim
        pairs = np.arange(small.dim // 2) * stride
        self.rotary = np.concatenate([pairs, pairs + large.dim // 2])
        self.plain = np.arange(small.dim)
        self.query_scale = (large.dim / small.dim) ** 0.5

    def head(self, index, queries):  # where a small head is among the large ones
        if not queries:
            return index
        return index // self.small.group * self.large.group + index % self.small.group

    def gain(self, weight):
        scale = (self.small.hidden / self.large.hidden) ** 0.5
        out = np.full(self.large.hidden, scale, np.float32)
        out[:self.small.hidden] = weight * scale
        return out

    def lanes(self, queries, rotary):
        inside = self.rotary if rotary else self.plain
        count = self.small.heads if queries else self.small.kv_heads
        return np.concatenate([self.head(i, queries) * self.large.dim + inside for i in range(count)])

    def rows(self, weight, queries, rotary=True):  # q, k or v; a bias has one dimension
        total = (self.large.heads if queries else self.large.kv_heads) * self.large.dim
        scaled = weight * (self.query_scale if queries else 1)
        out = np.zeros((total,) + ((self.large.hidden,) if weight.ndim == 2 else ()), np.float32)
        at = self.lanes(queries, rotary)
        if weight.ndim == 2:
            out[at, :self.small.hidden] = scaled
        else:
            out[at] = scaled
        return out

    def output(self, weight):
        out = np.zeros((self.large.hidden, self.large.heads * self.large.dim), np.float32)
        out[:self.small.hidden, self.lanes(True, False)] = weight
        return out

    def into_ffn(self, weight):
        out = self.noise.standard_normal((self.large.ffn, self.large.hidden), dtype=np.float32) * 0.02
        out[:self.small.ffn] = 0
        out[:self.small.ffn, :self.small.hidden] = weight
        return out

    def out_of_ffn(self, weight):
        out = np.zeros((self.large.hidden, self.large.ffn), np.float32)
        out[:self.small.hidden, :self.small.ffn] = weight
        return out

    def tensor(self, name, weight):
        if "layernorm" in name:
            return self.gain(weight)
        if "o_proj" in name:
            return self.output(weight)
        if "down_proj" in name:
            return self.out_of_ffn(weight)
        if "mlp" in name:
            return self.into_ffn(weight)
        return self.rows(weight, "q_proj" in name, "v_proj" not in name)


def main():
    source, out, target = sys.argv[1:4]
    config = json.load(open(os.path.join(source, "config.json")))
    large_config = json.load(open(os.path.join(target, "config.json")))
    inflation = Inflation(Sizes(config), Sizes(large_config))
    unused = ("cross_attn.k_proj", "cross_attn.v_proj")  # these are the target's
    tensors = {name: to_bf16(inflation.tensor(name, weight))
               for name, weight in read(os.path.join(source, "model.safetensors")).items()
               if not name.startswith(unused)}
    os.makedirs(out, exist_ok=True)
    write(os.path.join(out, "model.safetensors"), tensors)
    for key in ("hidden_size", "intermediate_size", "num_attention_heads", "num_key_value_heads", "head_dim",
                "rms_norm_eps", "num_hidden_layers"):
        config[key] = large_config[key]
    json.dump(config, open(os.path.join(out, "config.json"), "w"), indent=1)


main()
