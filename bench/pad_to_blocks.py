#!/usr/bin/env python3
"""pad_to_blocks.py MODEL OUT: a Llama in bf16 (a directory of config.json and one model.safetensors) whose rows blocks
of 256 divide, so that all of its matrices can be Q4_K, Q5_K and Q6_K. Hidden states and heads are padded with zeros,
which change no product; the norms' weights make up for the longer rows. So it writes what MODEL writes, but for the
rounding of the norms' weights. SmolLM2, whose rows have 576 weights, becomes a model of 768 and 12 heads of 64."""
import json
import math
import pathlib
import shutil
import struct
import sys

BLOCK = 256


def up(value):
    return -(-value // BLOCK) * BLOCK


def scaled_norm(data, factor):
    out = bytearray()
    for (bits,) in struct.iter_unpack("<H", data):
        value = struct.unpack("<f", struct.pack("<I", bits << 16))[0] * factor
        word = struct.unpack("<I", struct.pack("<f", value))[0]
        out += struct.pack("<H", (word + 0x7FFF + (word >> 16 & 1)) >> 16)
    return bytes(out)


def padded(data, rows, cols, new_rows, new_cols):
    row, more = 2 * cols, bytes(2 * (new_cols - cols))
    out = b"".join(data[i * row : (i + 1) * row] + more for i in range(rows))
    return out + bytes(2 * new_cols * (new_rows - rows))


def main():
    source, target = pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2])
    config = json.loads((source / "config.json").read_text())
    blob = (source / "model.safetensors").read_bytes()
    length = struct.unpack("<Q", blob[:8])[0]
    header = json.loads(blob[8 : 8 + length])
    hidden, dim = config["hidden_size"], config["head_dim"]
    heads, kv_heads = config["num_attention_heads"], config["num_key_value_heads"]
    new_hidden = up(hidden)
    new_kv = kv_heads
    while new_kv * (heads // kv_heads) * dim % BLOCK:
        new_kv += 1
    new_heads = new_kv * (heads // kv_heads)
    widths = {hidden: new_hidden, heads * dim: new_heads * dim, kv_heads * dim: new_kv * dim}
    factor = math.sqrt(hidden / new_hidden)
    tensors, at, parts = {}, 0, []
    for name, tensor in header.items():
        if name == "__metadata__":
            continue
        begin, end = tensor["data_offsets"]
        data, shape = blob[8 + length + begin : 8 + length + end], tensor["shape"]
        assert tensor["dtype"] == "BF16", name
        if len(shape) == 1:
            data, shape = scaled_norm(data, factor) + bytes(2 * (new_hidden - hidden)), [new_hidden]
        else:
            new = [widths.get(size, size) for size in shape]
            if name.endswith(("embed_tokens.weight", "lm_head.weight")):
                new[0] = shape[0]
            data, shape = padded(data, *shape, *new), new
        tensors[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [at, at + len(data)]}
        at += len(data)
        parts.append(data)
    config.update(hidden_size=new_hidden, num_attention_heads=new_heads, num_key_value_heads=new_kv,
                  rms_norm_eps=config["rms_norm_eps"] * hidden / new_hidden)
    target.mkdir(parents=True, exist_ok=True)
    text = json.dumps(tensors).encode()
    text += b" " * (-len(text) % 8)
    with open(target / "model.safetensors", "wb") as out:
        out.write(struct.pack("<Q", len(text)) + text)
        for data in parts:
            out.write(data)
    (target / "config.json").write_text(json.dumps(config, indent=1))
    for name in ("generation_config.json", "tokenizer.json", "tokenizer_config.json"):
        if (source / name).exists():
            shutil.copy(source / name, target / name)


main()
