"""The models, drafts, texts and files of the runs of same_bits.py, made in a folder by the standard library alone. The
same bytes on every machine: all that is random comes from Random.random() of fixed seeds.

The families are those of tests/data/tiny whose vocabulary fits, with a tokenizer of bytes. `wide` (heads of 64) and
`long` (heads of 128) have rows of 256, which K-quants need; `deep` has ten layers with heads of 32, so that its KV
cache is larger than the rest.
Drafts fit `wide`: an EAGLE-3 head, a LongSpec layer, and a small model that is its first two layers.
"""

import array
import functools
import hashlib
import json
import os
import random
import shutil
import struct

DATA = os.path.join(os.path.dirname(os.path.abspath(__file__)), "data")
VOCAB, HIDDEN, FFN = 512, 256, 512


def families():
    """The directories whose models have a token for each of the tokenizer's."""
    for entry in os.scandir(os.path.join(DATA, "tiny")):
        if entry.is_dir():
            with open(os.path.join(entry.path, "config.json"), encoding="utf-8") as file:
                config = json.load(file)
            if config.get("text_config", config)["vocab_size"] == VOCAB:
                yield entry.name


FAMILIES = sorted(families())


def bf16(values):
    """Rounded towards zero."""
    wide = array.array("f", values).tobytes()  # little-endian, as the files are
    narrow = bytearray(len(wide) // 2)
    narrow[0::2], narrow[1::2] = wide[2::4], wide[3::4]
    return bytes(narrow)


def noise(name, count, scale):
    draw = random.Random(name).random
    return [scale * (2 * draw() - 1) for _ in range(count)]


class Tensors:
    """What a safetensors file holds, in bf16."""

    def __init__(self, seed):
        self.seed, self.tensors = seed, {}

    def add(self, name, *shape, scale=None):
        count = 1
        for extent in shape:
            count *= extent
        if len(shape) == 1 and not name.endswith("bias"):  # a norm
            values = [1 + value for value in noise(self.seed + name, count, 0.2)]
        else:
            values = noise(self.seed + name, count, scale or 2 * shape[-1] ** -0.5)
        self.tensors[name] = (list(shape), bf16(values))

    def write(self, folder, config):
        os.makedirs(folder, exist_ok=True)
        header, data, at = {}, [], 0
        for name, (shape, raw) in sorted(self.tensors.items()):
            header[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [at, at + len(raw)]}
            data.append(raw)
            at += len(raw)
        head = json.dumps(header).encode()
        head += b" " * (-len(head) % 8)
        with open(os.path.join(folder, "model.safetensors"), "wb") as file:
            file.write(struct.pack("<Q", len(head)) + head + b"".join(data))
        write_json(folder, "config.json", config)


def write_json(folder, name, value):
    with open(os.path.join(folder, name), "w", encoding="utf-8") as file:
        json.dump(value, file)


def tokenizer():
    """Ids 0 to 255 are bytes, 510 and 511 ChatML's marks."""
    vocabulary, other = {}, 256
    for byte in range(256):
        prints = 0x21 <= byte <= 0x7E or 0xA1 <= byte != 0xAD
        vocabulary[chr(byte if prints else other)] = byte
        other += not prints
    vocabulary.update({f"w{i}": i for i in range(256, 510)})
    marks = [
        {"id": i, "content": mark, "single_word": False, "lstrip": False, "rstrip": False, "normalized": False,
         "special": True}
        for i, mark in ((510, "<|im_start|>"), (511, "<|im_end|>"))
    ]
    level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    model = {"type": "BPE", "byte_fallback": False, "ignore_merges": False, "vocab": vocabulary, "merges": []}
    return {"version": "1.0", "added_tokens": marks, "normalizer": None, "pre_tokenizer": level, "post_processor": None,
            "decoder": level, "model": model}


def write_decoder(folder, seed, layers, heads, kv_heads, hidden=HIDDEN, ffn=FFN):
    tensors, head = Tensors(seed), hidden // heads
    tensors.add("model.embed_tokens.weight", VOCAB, hidden, scale=1)
    for layer in range(layers):
        name = f"model.layers.{layer}"
        for norm in ("input_layernorm", "post_attention_layernorm"):
            tensors.add(f"{name}.{norm}.weight", hidden)
        for part, rows, cols in (("self_attn.q_proj", hidden, hidden), ("self_attn.k_proj", kv_heads * head, hidden),
                                 ("self_attn.v_proj", kv_heads * head, hidden), ("self_attn.o_proj", hidden, hidden),
                                 ("mlp.gate_proj", ffn, hidden), ("mlp.up_proj", ffn, hidden),
                                 ("mlp.down_proj", hidden, ffn)):
            tensors.add(f"{name}.{part}.weight", rows, cols)
    tensors.add("model.norm.weight", hidden)
    tensors.add("lm_head.weight", VOCAB, hidden)
    tensors.write(folder, {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": hidden,
                           "intermediate_size": ffn, "num_hidden_layers": layers, "num_attention_heads": heads,
                           "num_key_value_heads": kv_heads, "head_dim": head, "vocab_size": VOCAB,
                           "max_position_embeddings": 65536, "rms_norm_eps": 1e-5, "rope_theta": 10000.0,
                           "hidden_act": "silu", "tie_word_embeddings": False, "bos_token_id": 1, "eos_token_id": 511,
                           "torch_dtype": "bfloat16"})
    write_json(folder, "tokenizer.json", tokenizer())


def write_family(folder, family):
    source = os.path.join(DATA, "tiny", family)
    os.makedirs(folder, exist_ok=True)
    shutil.copyfile(os.path.join(source, "model.safetensors"), os.path.join(folder, "model.safetensors"))
    with open(os.path.join(source, "config.json"), encoding="utf-8") as file:
        config = json.load(file)
    (config["text_config"] if "text_config" in config else config)["eos_token_id"] = 511
    config["eos_token_id"] = 511
    write_json(folder, "config.json", config)
    write_json(folder, "tokenizer.json", tokenizer())


# A draft's matrices are small, so that its logits are flat and the noise of sampling, which it shares with the target,
# makes them agree now and then.
def write_eagle3(folder):
    tensors = Tensors("eagle3")
    for norm in ("hidden_norm", "input_layernorm", "post_attention_layernorm"):
        tensors.add(f"midlayer.{norm}.weight", HIDDEN)
    tensors.add("norm.weight", HIDDEN)
    tensors.add("fc.weight", HIDDEN, 3 * HIDDEN, scale=0.05)
    tensors.add("lm_head.weight", VOCAB, HIDDEN, scale=0.05)
    for name, rows, cols in (("self_attn.q_proj", HIDDEN, 2 * HIDDEN), ("self_attn.k_proj", HIDDEN // 2, 2 * HIDDEN),
                             ("self_attn.v_proj", HIDDEN // 2, 2 * HIDDEN), ("self_attn.o_proj", HIDDEN, HIDDEN),
                             ("mlp.gate_proj", FFN, HIDDEN), ("mlp.up_proj", FFN, HIDDEN),
                             ("mlp.down_proj", HIDDEN, FFN)):
        tensors.add(f"midlayer.{name}.weight", rows, cols, scale=0.05)
    tensors.write(folder, {"architectures": ["LlamaForCausalLMEagle3"], "model_type": "llama", "hidden_size": HIDDEN,
                           "intermediate_size": FFN, "num_hidden_layers": 1, "num_attention_heads": 4,
                           "num_key_value_heads": 2, "vocab_size": VOCAB, "rms_norm_eps": 1e-5,
                           "eagle_aux_hidden_state_layer_ids": [0, 1, 2]})


def write_longspec(folder):
    tensors = Tensors("longspec")
    for norm in ("input_layernorm", "post_self_attention_layernorm", "post_cross_attention_layernorm"):
        tensors.add(f"{norm}.weight", HIDDEN)
    for name, rows in (("self_attn.q_proj", HIDDEN), ("self_attn.k_proj", HIDDEN // 2),
                       ("self_attn.v_proj", HIDDEN // 2), ("cross_attn.q_proj", HIDDEN)):
        tensors.add(f"{name}.weight", rows, HIDDEN, scale=0.05)
        tensors.add(f"{name}.bias", rows, scale=0.05)
    for name, rows, cols in (("self_attn.o_proj", HIDDEN, HIDDEN), ("cross_attn.o_proj", HIDDEN, HIDDEN),
                             ("mlp.gate_proj", FFN, HIDDEN), ("mlp.up_proj", FFN, HIDDEN),
                             ("mlp.down_proj", HIDDEN, FFN)):
        tensors.add(f"{name}.weight", rows, cols, scale=0.05)
    tensors.write(folder, {"hidden_size": HIDDEN, "intermediate_size": FFN, "num_attention_heads": 4,
                           "num_key_value_heads": 2, "rms_norm_eps": 1e-5, "vocab_size": VOCAB})


def words(count, seed):
    """`count` bytes of words that recur, as in a report."""
    draw = random.Random(seed).random
    letters = "etaoinshrdlucmfw"
    known = ["".join(letters[int(16 * draw() * draw())] for _ in range(2 + int(7 * draw()))) for _ in range(150)]
    out, length = [], 0
    while length < count:
        out.append(known[int(150 * draw() * draw())] + (". " if draw() < 0.1 else "\n\n" if draw() < 0.02 else " "))
        length += len(out[-1])
    return "".join(out)[:count]


def text(count, other="0"):
    """`count` bytes of one text, then `other` bytes of another."""
    return words(int(count), "text") + words(int(other), "other")


def prose(count):
    """The first bytes of the license, which does not change."""
    with open(os.path.join(os.path.dirname(os.path.dirname(DATA)), "LICENSE"), encoding="utf-8") as file:
        return file.read()[: int(count)]


WRITERS = {family: functools.partial(write_family, family=family) for family in FAMILIES}
WRITERS.update(
    wide=functools.partial(write_decoder, seed="wide", layers=3, heads=4, kv_heads=2),
    small=functools.partial(write_decoder, seed="wide", layers=2, heads=4, kv_heads=2),  # the first layers of wide
    long=functools.partial(write_decoder, seed="long", layers=2, heads=2, kv_heads=1),
    deep=functools.partial(write_decoder, seed="deep", layers=10, heads=2, kv_heads=2, hidden=64, ffn=128),
    eagle3=write_eagle3,
    longspec=write_longspec,
)


def write(folder, name):
    """A model or draft in a folder of its name. Returns a hash of its files."""
    folder = os.path.join(folder, name)
    WRITERS[name](folder)
    sha = hashlib.sha256()
    for file_name in sorted(os.listdir(folder)):
        with open(os.path.join(folder, file_name), "rb") as file:
            sha.update(file_name.encode() + b"\0" + file.read())
    return sha.hexdigest()[:16]
