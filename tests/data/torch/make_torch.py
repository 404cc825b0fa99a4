"""Writes small.bin beside itself: a state_dict as torch.save writes it, with every type of storage that weights and maps
have, a tensor that is a part of another's storage, one without dimensions and one without elements. Made with torch 2.11."""
import os

import torch

layer = torch.nn.Linear(3, 2, bias=False)  # a real module's state_dict has attributes (_metadata)
with torch.no_grad():
    layer.weight.copy_(torch.arange(6).reshape(2, 3))
state = layer.state_dict()
eighths = torch.arange(12, dtype=torch.float32).reshape(3, 4) / 8
state["half"] = torch.tensor([[1.5, -2.0], [0.25, 65504.0]], dtype=torch.float16)
state["bf16"] = torch.tensor([1.0, -3.140625, 0.0], dtype=torch.bfloat16)
state["whole"] = eighths
state["part"] = eighths[1:]
state["d2t"] = torch.tensor([0, 1, -1, 1 << 40], dtype=torch.int64)
state["t2d"] = torch.tensor([True, False, True])
state["scalar"] = torch.tensor(2.5)
state["empty"] = torch.empty(0, 4)
torch.save(state, os.path.join(os.path.dirname(os.path.abspath(__file__)), "small.bin"))
