"""A model of the Llama-3.1-8B shape that writes a small Llama's text: an 8B model's cost with real acceptance.

A state of the small model is the first lanes of the large one's; the other lanes are zero. Norms are scaled, because
their mean is over more lanes. KV head i is KV head i, its query heads are the first ones of that group, and rotary pair
j is pair j * (DIM / dim), which turns at the same frequency. Queries are scaled, because scores are divided by the root
of a larger head. Both are rounded to BF16, so logits are not the same bits.

What is left over holds copies of the small model's weights, so that the rows of the KV cache have real values in all
lanes. The other lanes and KV heads hold other heads' rows: queries (for K) and o_proj (for V) are zero there. The other
rows of the FFN meet zeros in down_proj. A layer that is left over is the next one again, with o_proj and down_proj
zero; such layers are placed so that an EAGLE-3 head, which reads the states before layers n / 2 and n - 3, reads the
small model's.

  python3 bench/inflate.py SMALL_DIR OUT_DIR [--eagle SMALL_HEAD_DIR OUT_HEAD_DIR]

Needs torch and safetensors. bench/inflate_longspec.py inflates a LongSpec layer, for the same lanes.
"""
import argparse
import glob
import json
import os
import shutil
from concurrent.futures import ThreadPoolExecutor

import torch
from safetensors.torch import load_file, save_file


def read(directory, device):
    with open(os.path.join(directory, "config.json"), encoding="utf-8") as f:
        config = json.load(f)
    tensors = {}
    for path in glob.glob(os.path.join(directory, "*.safetensors")):
        tensors.update(load_file(path, device=device))
    for name in tensors:
        assert not name.endswith((".bias", "q_norm.weight")), f"{directory}: {name} is not supported"
    return config, tensors


def write(directory, name, value):
    with open(os.path.join(directory, name), "w", encoding="utf-8") as f:
        json.dump(value, f, indent=1)


class Inflation:
    def __init__(self, config, a):
        self.a, self.d, self.ffn = a, config["hidden_size"], config["intermediate_size"]
        self.heads, self.kv_heads = config["num_attention_heads"], config["num_key_value_heads"]
        self.dim = config.get("head_dim") or self.d // self.heads
        self.group, self.step = self.heads // self.kv_heads, a.head_dim // self.dim
        assert self.d <= a.hidden and self.ffn <= a.ffn and self.kv_heads <= a.kv, "the small model is too large"
        assert self.group <= a.heads // a.kv and a.head_dim % self.dim == 0, "the small model's heads do not fit"
        lane, half = torch.arange(a.head_dim, device=a.device), a.head_dim // 2
        # For each lane of a large head: the lane of a small head, and which of its copies this is; 0: the one in use.
        self.rotary = lane // half * (self.dim // 2) + lane % half // self.step, lane % half % self.step
        self.plain = lane % self.dim, lane // self.dim

    def kv_rows(self, lanes):
        lane, copy = lanes
        return torch.cat([(head + copy) % self.kv_heads * self.dim + lane for head in range(self.a.kv)])

    def query_lanes(self, lanes):
        used = (lanes[1] == 0).nonzero()[:, 0]
        heads = (i // self.group * (self.a.heads // self.a.kv) + i % self.group for i in range(self.heads))
        return torch.cat([head * self.a.head_dim + used for head in heads])

    def inputs(self, w):  # one state or several side by side, each with zeros after it
        return torch.nn.functional.pad(w.unflatten(1, (-1, self.d)), (0, self.a.hidden - self.d)).flatten(1)

    def rows(self, w, at, total):
        out = torch.zeros(total, w.shape[1], device=w.device)
        out[at] = w
        return self.inputs(out)

    def columns(self, w, at, total):
        out = torch.zeros(self.a.hidden, total, device=w.device)
        out[:self.d, at] = w
        return out

    def tensor(self, name, w):
        if not w.is_floating_point():  # an EAGLE-3 head's maps of tokens
            return w.cpu()
        return self.inflated(name.split(".")[-2], w.float()).bfloat16().cpu()

    def inflated(self, part, w):
        a, width = self.a, self.a.heads * self.a.head_dim
        if w.dim() == 1:
            return torch.nn.functional.pad(w, (0, a.hidden - self.d), value=1) * (self.d / a.hidden) ** 0.5
        if part == "q_proj":
            return self.rows(w * self.step ** 0.5, self.query_lanes(self.rotary), width)
        if part == "k_proj":
            return self.inputs(w[self.kv_rows(self.rotary)])
        if part == "v_proj":
            return self.inputs(w[self.kv_rows(self.plain)])
        if part == "o_proj":
            return self.columns(w, self.query_lanes(self.plain), width)
        if part in ("gate_proj", "up_proj"):
            return self.inputs(w[torch.arange(a.ffn, device=w.device) % self.ffn])
        if part == "down_proj":
            return self.columns(w, slice(self.ffn), a.ffn)
        if part == "fc":
            return self.rows(w, slice(self.d), a.hidden)
        return self.inputs(w)  # embeddings and the head

    def config(self, config):
        a = self.a
        return dict(config, hidden_size=a.hidden, num_attention_heads=a.heads, num_key_value_heads=a.kv,
                    head_dim=a.head_dim, intermediate_size=a.ffn, tie_word_embeddings=False, torch_dtype="bfloat16",
                    rms_norm_eps=config["rms_norm_eps"] * self.d / a.hidden)


def layer_order(small, large):
    """For each place: the small layer, and whether it is in use there."""
    assert 4 <= small <= large, f"{small} layers cannot become {large}"
    order = [(i, True) for i in range(small)]
    for layer, place in ((small // 2, large // 2), (small - 3, large - 3)):
        at = order.index((layer, True))
        order[at:at] = [(layer, False)] * (place - at)
    return order


def inflate_model(a):
    config, source = read(a.small, a.device)
    source.setdefault("lm_head.weight", source["model.embed_tokens.weight"])
    inflation, index = Inflation(config, a), {}
    order = layer_order(config["num_hidden_layers"], a.layers)

    def write_shard(place):  # a layer, or what is in no layer
        layer, used = order[place] if place < a.layers else (None, True)
        old, new = (f"model.layers.{i}." for i in (layer, place))
        tensors = {}
        for name, w in source.items():
            if name.startswith(old) if layer is not None else ".layers." not in name:
                unused = not used and name.endswith(("o_proj.weight", "down_proj.weight"))
                tensors[name.replace(old, new)] = inflation.tensor(name, torch.zeros_like(w) if unused else w)
        file = f"model-{place:05d}.safetensors"
        save_file(tensors, os.path.join(a.out, file), metadata={"format": "pt"})
        index.update(dict.fromkeys(tensors, file))
        return sum(w.nbytes for w in tensors.values())

    os.makedirs(a.out, exist_ok=True)
    with ThreadPoolExecutor(4) as pool:
        total = sum(pool.map(write_shard, range(a.layers + 1)))
    write(a.out, "model.safetensors.index.json", {"metadata": {"total_size": total}, "weight_map": index})
    write(a.out, "config.json", dict(inflation.config(config), num_hidden_layers=a.layers))
    for path in glob.glob(os.path.join(a.small, "*")):
        if os.path.basename(path).startswith(("tokenizer", "generation_config", "special_tokens_map", "chat_template")):
            shutil.copy(path, a.out)
    print(f"{a.out}: {total / 2**30:.2f} GiB in {a.layers + 1} files")


def inflate_head(a):
    source, out = a.eagle
    config, tensors = read(source, a.device)
    inflation = Inflation(config, a)
    os.makedirs(out, exist_ok=True)
    tensors = {name: inflation.tensor(name, w) for name, w in tensors.items()}
    save_file(tensors, os.path.join(out, "model.safetensors"), metadata={"format": "pt"})
    write(out, "config.json", inflation.config(config))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("small")
    parser.add_argument("out")
    parser.add_argument("--eagle", nargs=2, metavar=("SMALL_HEAD_DIR", "OUT_HEAD_DIR"))
    for flag, value in (("layers", 32), ("hidden", 4096), ("heads", 32), ("kv", 8), ("head-dim", 128), ("ffn", 14336)):
        parser.add_argument("--" + flag, type=int, default=value)
    parser.add_argument("--device", default="cuda")
    a = parser.parse_args()
    inflate_model(a)
    if a.eagle:
        inflate_head(a)


main()
