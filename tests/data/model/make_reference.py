"""Makes what lies beside it, from the reference implementations (gguf 0.19, transformers 5.17, numpy):

  quants.gguf              one tensor of random blocks for each type that can be read
  quants.expected          what gguf.quants.dequantize makes of them: f32, tensor after tensor in the file's order
  rope.json                configs, their inverse frequencies (as the bits of f32) and attention factors

  python3 make_reference.py DIRECTORY
"""
import json, pathlib, struct, sys
import numpy as np
from gguf import GGMLQuantizationType as T, GGUFReader, GGUFWriter, dequantize
from gguf.constants import GGML_QUANT_SIZES

BLOCKS = 12
# Where each block type keeps its f16 scales and minima.
SCALES = {T.Q8_0: [0], T.Q4_0: [0], T.Q4_1: [0, 2], T.Q5_0: [0], T.Q5_1: [0, 2], T.Q4_K: [0, 2], T.Q5_K: [0, 2], T.Q6_K: [208],
          T.IQ4_NL: [0], T.IQ4_XS: [0], T.Q3_K: [108], T.Q2_K: [80, 82],
          T.IQ2_XXS: [0], T.IQ2_XS: [0], T.IQ2_S: [0], T.IQ3_XXS: [0], T.IQ3_S: [0]}
SPECIAL = [0.0, -0.0, 5.960464477539063e-08, -3.0e-05, 1.0, -2.5]  # zeros, subnormals, a negative scale


def blocks(kind, rng):
    elements, size = GGML_QUANT_SIZES[kind]
    rows = 2
    raw = rng.integers(0, 256, (rows, BLOCKS * size), dtype=np.uint8)
    view = raw.reshape(rows * BLOCKS, size)
    for place in SCALES[kind]:
        scale = rng.normal(0, 0.05, rows * BLOCKS).astype(np.float16)
        scale[: len(SPECIAL)] = SPECIAL
        view[:, place : place + 2] = scale.view(np.uint8).reshape(-1, 2)
    return raw


def plain(kind, rng):
    values = rng.normal(0, 0.5, (3, 70)).astype(np.float32)
    values[0, :6] = [0.0, -0.0, 6.1e-5, 5.96e-8, -3.0e-5, 65504.0]
    if kind == T.F32: return values
    if kind == T.F16: return values.astype(np.float16)
    return (values.view(np.uint32) >> 16).astype(np.uint16).view(np.uint8).reshape(3, -1)


def quants(directory):
    rng = np.random.default_rng(20240611)
    writer = GGUFWriter(directory / "quants.gguf", "none")
    for kind in [T.F32, T.F16, T.BF16]:
        writer.add_tensor(kind.name, plain(kind, rng), raw_dtype=kind)
    for kind in SCALES:
        writer.add_tensor(kind.name, blocks(kind, rng), raw_dtype=kind)
    writer.write_header_to_file(); writer.write_kv_data_to_file(); writer.write_tensors_to_file(); writer.close()
    with open(directory / "quants.expected", "wb") as out:
        for tensor in GGUFReader(directory / "quants.gguf").tensors:
            out.write(np.ascontiguousarray(dequantize(tensor.data, tensor.tensor_type), np.float32).tobytes())


def rope(directory):
    from transformers import LlamaConfig
    from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding
    base = dict(model_type="llama", num_hidden_layers=1, intermediate_size=64, vocab_size=64, num_attention_heads=2, num_key_value_heads=2)
    def config(head_dim, positions, theta, scaling): return dict(base, hidden_size=2 * head_dim, head_dim=head_dim, max_position_embeddings=positions, rope_theta=theta, rope_scaling=scaling)
    yarn = lambda **k: dict(rope_type="yarn", **k)
    llama3 = lambda f, n=8192, lo=1.0, hi=4.0: dict(rope_type="llama3", factor=f, low_freq_factor=lo, high_freq_factor=hi, original_max_position_embeddings=n)
    cases = [
        config(64, 8192, 100000.0, None), config(128, 4096, 10000.0, None), config(80, 4096, 10000.0, None), config(96, 65536, 2000000.0, None),
        config(128, 32768, 1000000.0, None), config(128, 131072, 8000000.0, None),
        config(128, 131072, 500000.0, llama3(8.0)), config(64, 131072, 500000.0, llama3(32.0)), config(16, 2048, 500000.0, llama3(8.0, 128)),
        config(64, 2048, 10000.0, llama3(3.0, 512, 0.5, 2.5)),
        config(128, 16384, 10000.0, dict(type="linear", factor=4.0)), config(80, 16384, 10000.0, dict(rope_type="linear", factor=2.5)),
        config(128, 131072, 1000000.0, dict(type="yarn", factor=4.0, original_max_position_embeddings=32768)),
        config(16, 2048, 10000.0, yarn(factor=4.0, original_max_position_embeddings=64)),
        config(64, 65536, 100000.0, yarn(factor=8.0, original_max_position_embeddings=8192, truncate=False)),
        config(128, 65536, 10000.0, yarn(factor=16.0, original_max_position_embeddings=4096, beta_fast=24.0, beta_slow=2.0)),
        config(64, 65536, 10000.0, yarn(factor=40.0, original_max_position_embeddings=4096, mscale=0.707, mscale_all_dim=1.0)),
        config(64, 65536, 10000.0, yarn(factor=40.0, original_max_position_embeddings=4096, mscale=1.0)),
        config(64, 65536, 10000.0, yarn(factor=4.0, original_max_position_embeddings=16384, attention_factor=1.25)),
        config(64, 8192, 10000.0, yarn(factor=2.0)), config(64, 65536, 150000.0, yarn(factor=32.0, original_max_position_embeddings=4096, truncate=False)),
        config(64, 131072, 10000.0, yarn(factor=None, original_max_position_embeddings=4096)),
    ]
    out = []
    for case in cases:
        module = LlamaRotaryEmbedding(LlamaConfig(**json.loads(json.dumps(case))))
        bits = module.inv_freq.numpy().astype(np.float32).view(np.uint32)
        out.append({"config": case, "inv_freq_bits": [int(x) for x in bits], "scale": float(module.attention_scaling)})
    text = "[\n" + ",\n".join(json.dumps(x) for x in out) + "\n]\n"
    (directory / "rope.json").write_text(text)


if __name__ == "__main__":
    target = pathlib.Path(sys.argv[1])
    quants(target); rope(target)
