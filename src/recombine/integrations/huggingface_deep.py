"""The deeper value network of HYLA (eq. 10) in `transformers` models: one more matrix per head, which they do not have.

model = AutoModelForCausalLM.from_config(config, attn_implementation="hyla_deep")
add_deep_weights(model)
model.save_pretrained(folder)
model = AutoModelForCausalLM.from_pretrained(folder, attn_implementation="hyla_deep")     # warns of unexpected keys
add_deep_weights(model, folder)                                                           # reads them
"""

from __future__ import annotations

from pathlib import Path

import safetensors
import torch
from torch import Tensor, nn

from recombine.errors import InputError
from recombine.integrations.huggingface_attention import Call
from recombine.integrations.huggingface_watch import watching
from recombine.layers.initialise import lecun_normal_
from recombine.probe.collect import evaluating

NAME = "deep_weight"


def add_deep_weights(model: nn.Module, folder: Path | str | None = None) -> None:
    """Give every attention layer the parameter `deep_weight`, (h, e, e): new, or as `save_pretrained` wrote it.

    Do it before the optimiser is built. A layer that has one keeps it.
    """
    saved = {} if folder is None else _read_saved(Path(folder))
    paths = {module: path for path, module in model.named_modules()}
    for module, (num_heads, width) in find_attention_modules(model).items():
        name = f"{paths[module]}.{NAME}"
        if folder is not None and name not in saved:
            raise InputError(f"{folder} has no {name}: expected a model that was saved with its deep weights")
        if getattr(module, NAME, None) is None:
            like = next(module.parameters(), next(model.parameters()))
            weight = torch.empty(num_heads, width, width, device=like.device, dtype=like.dtype)
            module.register_parameter(NAME, nn.Parameter(lecun_normal_(weight)))
        if folder is not None:
            with torch.no_grad():
                getattr(module, NAME).copy_(saved[name])


def find_attention_modules(model: nn.Module) -> dict[nn.Module, tuple[int, int]]:
    """The modules of a model that call the attention interface, each with its heads and their width."""
    sizes: dict[nn.Module, tuple[int, int]] = {}

    def handle(module: nn.Module, call: Call) -> Tensor:
        sizes[module] = (call.q.shape[2], call.v.shape[3])
        return torch.zeros(*call.q.shape[:3], call.v.shape[3], dtype=call.v.dtype, device=call.v.device)

    device = next(model.parameters()).device
    token = torch.zeros(1, 2, dtype=torch.long, device=device)
    with evaluating(model), watching(model, handle, "softmax"):
        model(input_ids=token)
    return sizes


def _read_saved(folder: Path) -> dict[str, Tensor]:
    saved: dict[str, Tensor] = {}
    files = sorted(folder.glob("*.safetensors"))
    if not files:
        raise InputError(f"{folder} has no .safetensors file: expected a folder that save_pretrained wrote")
    for path in files:
        with safetensors.safe_open(path, framework="pt") as file:
            saved |= {name: file.get_tensor(name) for name in file.keys() if name.endswith(NAME)}  # noqa: SIM118
    return saved
