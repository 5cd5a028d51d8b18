"""The latent codes of any pretrained model: `codes(model, inputs)`.

For chosen pairs of a query and a key, it returns the code (one number per head) of every layer, and the residual stream at
the query. The codes of other pairs are never stored: the model itself runs through a fused kernel, and only the chosen rows
of the scores are computed again. With `out=FOLDER` the arrays are written there batch by batch, as `.npy` files that are
mapped into memory.

    found = codes(model, tokenizer(texts, padding=True, return_tensors="pt"))
    found.write("codes.npz", labels=labels, split=split)       # recombine probe --activations codes.npz

Stand in for the attention of a `transformers` model while it runs: see its latent codes, or change them.

The attention of nearly every pretrained model is a softmax whose weights are the latent codes of "Attention as a
Hypernetwork" (eq. 2-5). `watching` switches a model to an implementation that hands every call to a handler, and
switches it back.

The attention of a `transformers` model as a hypernetwork: value matrices that its latent codes generate (eq. 2-5).

`views(model, inputs)` returns for every layer the `HypernetworkView` and the layer's own output, which the view reproduces
up to rounding. Value and output projections are found by the names that models use for them.

The deeper value network of HYLA (eq. 10) in `transformers` models: one more matrix per head, which they do not have.

model = AutoModelForCausalLM.from_config(config, attn_implementation="hyla_deep")
add_deep_weights(model)
model.save_pretrained(folder)
model = AutoModelForCausalLM.from_pretrained(folder, attn_implementation="hyla_deep")     # warns of unexpected keys
add_deep_weights(model, folder)                                                           # reads them
"""

from __future__ import annotations

import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import numpy as np
import safetensors
import torch
from jaxtyping import Float, Int
from numpy.lib.format import open_memmap
from torch import Tensor, nn

from recombine.attention.definition import CodeMap, normalise, score
from recombine.attention.dense import lecun_normal_
from recombine.attention.dispatch import attend
from recombine.attention.layer import ATTENTIONS
from recombine.attention.view import HeadWeights, HypernetworkView, check_linear, generate_view
from recombine.foundation.errors import InputError, check_positive
from recombine.inside.collect import evaluating
from recombine.integrations.huggingface.attention import Call, arrange_call, finish_call, import_interfaces, make_mask

WATCHED = "recombine_watched"

Handler = Callable[[nn.Module, Call], Tensor]
"""Computes what each head of each query receives, (b, q, h, e), for one call of an attention layer."""


class _Watch:
    """The handler in charge, and the attention that the model had."""

    handler: Handler | None = None
    attention: str = "softmax"


def attention_of(model: nn.Module) -> str:
    """The attention that a model computes, by its name in `ATTENTIONS`; every implementation but ours is a softmax."""
    name = getattr(getattr(model, "config", None), "_attn_implementation", None)
    return name if name in ATTENTIONS else "softmax"


@contextmanager
def watching(model: nn.Module, handler: Handler, attention: str | None = None) -> Iterator[None]:
    """Let `handler` compute the attention of a model inside a `with` block: its own, unless another is named."""
    interface, masks = import_interfaces()
    interface.register(WATCHED, _watched_attention)
    masks.register(WATCHED, make_mask)
    if not hasattr(model, "set_attn_implementation"):
        raise InputError(f"the model is a {type(model).__name__}: expected a model of transformers")
    config, set_implementation = cast(Any, model.config), cast(Callable[[str], None], model.set_attn_implementation)
    before = config._attn_implementation
    attention = attention_of(model) if attention is None else attention
    set_implementation(WATCHED)
    if config._attn_implementation != WATCHED:
        raise InputError(
            f"{type(model).__name__} does not call the attention interface of transformers: expected a model that does, "
            "such as Llama, GPT-2, GPT-NeoX or BERT"
        )
    _Watch.handler, _Watch.attention = handler, attention
    try:
        yield
    finally:
        _Watch.handler = None
        set_implementation("eager" if before is None else before)


def _watched_attention(
    module: nn.Module, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None, **options: Any
) -> tuple[Tensor, None]:
    assert _Watch.handler is not None
    call = arrange_call(_Watch.attention, module, query, key, value, attention_mask, **options)
    return finish_call(_Watch.attention, module, call, _Watch.handler(module, call)), None


class CodeRecorder:
    """A handler that keeps the codes of every layer, (b, h, q, k), and changes those of some layers.

    Layers are numbered in the order in which they are called.
    """

    def __init__(self, code_maps: Sequence[CodeMap | None] | None = None) -> None:
        self.codes: list[Tensor] = []
        self.modules: list[nn.Module] = []
        self.code_maps = code_maps

    def __call__(self, module: nn.Module, call: Call) -> Tensor:
        layer = len(self.codes)
        code_map = self.code_maps[layer] if self.code_maps is not None and layer < len(self.code_maps) else None
        out, codes = attend(call.q, call.k, call.v, code_map=code_map, return_codes=True, **call.options)
        assert codes is not None
        self.codes.append(codes)
        self.modules.append(module)
        return out


LAST_TOKEN = ((-1, -1),)


@dataclass(frozen=True, kw_only=True)
class Codes:
    """What was collected: by site, `codes.LAYER` (rows, pairs, heads) and `residual.LAYER` (rows, pairs, width)."""

    arrays: Mapping[str, np.ndarray]
    pairs: Int[np.ndarray, "rows pairs 2"]  # positions of query and key, from the start

    def write(self, path: Path | str, **columns: Any) -> None:
        """Write an npz file that `recombine probe --activations` reads; `columns` are its labels, split and so on.

        Arrays go from file to file in pieces, so that they need not fit into memory.
        """
        path = Path(path)
        flat = {f"activations.{site}": values.reshape(len(values), -1) for site, values in self.arrays.items()}
        temporary = path.with_name(f".{path.name}.tmp")
        with zipfile.ZipFile(temporary, "w", zipfile.ZIP_STORED) as archive:
            for name, values in (flat | {name: np.asarray(column) for name, column in columns.items()}).items():
                with archive.open(f"{name}.npy", "w", force_zip64=True) as file:
                    np.lib.format.write_array(file, values, allow_pickle=False)
        temporary.replace(path)


def codes(
    model: nn.Module,
    inputs: Mapping[str, Tensor] | Tensor,
    pairs: Sequence[tuple[int, int]] | Int[Tensor, "rows pairs 2"] = LAST_TOKEN,
    *,
    out: Path | str | None = None,
    batch_size: int = 16,
) -> Codes:
    """Collect codes and residual stream of a `transformers` model.

    `inputs` is what a tokenizer returns, or token numbers (rows, tokens). `pairs` are (query, key) positions, for all rows
    or for each; negative ones count from the end of the row without its padding. The residual stream of layer i is the
    model's own hidden state behind its block i (of the last block, after the final norm where the model has one).
    """
    check_positive(batch_size=batch_size)
    inputs = {"input_ids": inputs} if isinstance(inputs, Tensor) else dict(inputs)
    attention_mask = inputs.get("attention_mask")
    if attention_mask is None:
        attention_mask = torch.ones_like(inputs["input_ids"])
    chosen = resolve_pairs(pairs, attention_mask)
    writer = _Writer(len(chosen), None if out is None else Path(out))
    for rows in torch.arange(len(chosen)).split(batch_size):
        batch = {name: value[rows] for name, value in inputs.items()}
        writer.add(rows, collect_pairs(model, batch, chosen[rows]))
    return Codes(arrays=writer.close(), pairs=chosen.numpy())


def collect_pairs(
    model: nn.Module, inputs: Mapping[str, Tensor], pairs: Int[Tensor, "rows pairs 2"]
) -> dict[str, Tensor]:
    """Codes (rows, pairs, heads) and residual stream (rows, pairs, width) of one batch, on the CPU."""
    device = next(model.parameters()).device
    pairs = pairs.to(device)
    codes: list[Tensor] = []

    def handle(_: nn.Module, call: Call) -> Tensor:
        codes.append(read_codes(call, pairs))
        return attend(call.q, call.k, call.v, return_codes=False, **call.options)[0]

    with evaluating(model), watching(model, handle):
        outputs = model(**{name: value.to(device) for name, value in inputs.items()}, output_hidden_states=True)
    if not codes:
        raise InputError(f"{type(model).__name__} called no attention: expected a transformer")
    sites = {f"codes.{layer}": values for layer, values in enumerate(codes)}
    for layer, state in enumerate(outputs.hidden_states[1:]):
        sites[f"residual.{layer}"] = take_tokens(state, pairs[..., 0])
    return {name: values.float().cpu() for name, values in sites.items()}


def read_codes(call: Call, pairs: Int[Tensor, "rows pairs 2"]) -> Tensor:
    """The codes of these pairs, (rows, pairs, heads), from the scores of their queries alone."""
    queries, keys = pairs[..., 0], pairs[..., 1]
    scores = score(take_tokens(call.q, queries), call.k, _take_queries(call.options["bias"], call, queries))
    mask = _take_queries(call.options["mask"], call, queries)
    if call.options["causal"]:
        earlier = torch.arange(call.k.shape[1], device=keys.device) <= queries[..., None]
        mask = earlier[:, None] if mask is None else mask & earlier[:, None]
    rows = normalise(scores, call.options["normalisation"], mask)  # (b, h, pairs, k)
    index = keys[:, None, :, None].expand(-1, rows.shape[1], -1, 1)
    return rows.gather(3, index)[..., 0].transpose(1, 2)


def take_tokens(x: Tensor, positions: Int[Tensor, "rows pairs"]) -> Tensor:
    """The tokens (rows, pairs, ...) at these positions of (rows, tokens, ...)."""
    return x[torch.arange(len(x), device=x.device)[:, None], positions]


def _take_queries(pairwise: Tensor | None, call: Call, queries: Tensor) -> Tensor | None:
    """Rows of a bias or mask that broadcasts to (b, h, q, k): (b, h or 1, pairs, k)."""
    if pairwise is None:
        return None
    pairwise = pairwise[(None,) * (4 - pairwise.dim())]
    full = pairwise.expand(len(call.q), -1, call.q.shape[1], call.k.shape[1])
    return take_tokens(full.transpose(1, 2), queries).transpose(1, 2)


def resolve_pairs(
    pairs: Sequence[tuple[int, int]] | Tensor, attention_mask: Int[Tensor, "rows tokens"]
) -> Int[Tensor, "rows pairs 2"]:
    """Positions from the start of each row; negative ones count from its last token that is not padding."""
    chosen = torch.as_tensor(pairs).cpu()
    if chosen.dim() == 2:
        chosen = chosen.expand(len(attention_mask), -1, -1)
    if chosen.dim() != 3 or chosen.shape[2] != 2 or len(chosen) != len(attention_mask) or chosen.is_floating_point():
        raise InputError(
            f"pairs have shape {tuple(chosen.shape)}: expected (pairs, 2) or ({len(attention_mask)}, pairs, 2) positions"
        )
    num_tokens = attention_mask.shape[1]
    present = attention_mask.cpu().bool()
    end = num_tokens - present.flip(1).int().argmax(dim=1)
    resolved = torch.where(chosen < 0, chosen + end[:, None, None], chosen)
    inside = (resolved >= 0) & (resolved < num_tokens)
    seen = present.gather(1, resolved.clamp(0, num_tokens - 1).flatten(1)).view_as(resolved)
    if not (inside & seen).all():
        row, pair, _ = torch.nonzero(~(inside & seen))[0].tolist()
        raise InputError(
            f"pair {tuple(chosen[row, pair].tolist())} of row {row} is not a pair of its {int(present[row].sum())} tokens: "
            "expected positions of tokens that are not padding"
        )
    return resolved


class _Writer:
    """Collects batches in memory, or in `.npy` files of a folder."""

    def __init__(self, num_rows: int, folder: Path | None) -> None:
        self.num_rows, self.folder = num_rows, folder
        self.arrays: dict[str, np.ndarray] = {}
        if folder is not None:
            try:
                folder.mkdir(parents=True, exist_ok=True)
            except OSError as error:
                raise InputError(f"cannot write to {folder}: {error.strerror}; expected a folder") from None

    def add(self, rows: Tensor, sites: Mapping[str, Tensor]) -> None:
        for name, values in sites.items():
            if name not in self.arrays:
                shape = (self.num_rows, *values.shape[1:])
                if self.folder is None:
                    self.arrays[name] = np.empty(shape, dtype=np.float32)
                else:
                    self.arrays[name] = open_memmap(self.folder / f"{name}.npy", "w+", np.float32, shape)
            self.arrays[name][rows.numpy()] = values.numpy()

    def close(self) -> Mapping[str, np.ndarray]:
        if self.folder is None:
            return self.arrays
        for values in self.arrays.values():
            values.flush()  # type: ignore[attr-defined]
        return {name: np.load(self.folder / f"{name}.npy", mmap_mode="r") for name in self.arrays}


VALUE_NAMES = ("v_proj", "value", "v_lin", "c_attn", "query_key_value")
OUTPUT_NAMES = ("o_proj", "out_proj", "dense", "out_lin", "c_proj")


@dataclass(frozen=True, kw_only=True)
class LayerView:
    """One layer: what its codes generate, and what the model itself computed."""

    view: HypernetworkView
    own_output: Float[Tensor, "b q out"]

    @property
    def error(self) -> float:
        """The largest difference between the two outputs, relative to the largest output."""
        return float((self.view.output - self.own_output).abs().max() / self.own_output.abs().max())


def views(model: nn.Module, inputs: Mapping[str, Tensor]) -> list[LayerView]:
    """The hypernetwork view of every layer. Meant for short inputs: there is a matrix for each query and key."""
    scale = getattr(getattr(model, "config", None), "attention_output_scale", None)
    check_linear(attention_of(model), scale or ("none" if attention_of(model) == "softmax" else "norm"))
    recorder = CodeRecorder()
    seen: dict[nn.Module, Tensor] = {}
    with evaluating(model):
        with watching(model, recorder):
            model(**inputs)
        projections = [find_projections(model, module) for module in recorder.modules]
        # once more as the model is, without us: what is reproduced is its own output
        with ExitStack() as hooks:
            for value, output in projections:
                hooks.callback(value.register_forward_hook(_keep_input(seen)).remove)
                hooks.callback(output.register_forward_hook(_keep_output(seen)).remove)
            model(**inputs)
        return [
            LayerView(
                view=generate_view(codes, seen[value], split_heads(value, output, codes.shape[1], module)),
                own_output=seen[output],
            )
            for codes, module, (value, output) in zip(recorder.codes, recorder.modules, projections, strict=True)
        ]


def _keep_input(seen: dict[nn.Module, Tensor]) -> Callable[..., None]:
    def hook(module: nn.Module, inputs: tuple[Tensor, ...], _: Any) -> None:
        seen[module] = inputs[0]

    return hook


def _keep_output(seen: dict[nn.Module, Tensor]) -> Callable[..., None]:
    def hook(module: nn.Module, _: Any, output: Tensor) -> None:
        seen[module] = output

    return hook


def find_projections(model: nn.Module, module: nn.Module) -> tuple[nn.Module, nn.Module]:
    """The value projection of an attention module and the output projection behind it, in it or next to it."""
    path = next(name for name, submodule in model.named_modules() if submodule is module)
    value = next((getattr(module, name) for name in VALUE_NAMES if hasattr(module, name)), None)
    output = next((getattr(module, name) for name in OUTPUT_NAMES if hasattr(module, name)), None)
    if output is None:  # BERT has attention.self and attention.output.dense
        beside = getattr(model.get_submodule(path.rpartition(".")[0]), "output", None)
        output = getattr(beside, "dense", None)
    if not isinstance(value, nn.Module) or not isinstance(output, nn.Module):
        raise InputError(
            f"{path} of type {type(module).__name__} has no projections of known names: expected one of "
            f"{', '.join(VALUE_NAMES)} and one of {', '.join(OUTPUT_NAMES)}"
        )
    return value, output


def split_heads(value: nn.Module, output: nn.Module, num_heads: int, module: nn.Module) -> HeadWeights:
    """The weights of each head. Grouped values are repeated, as the heads of a group share them."""
    value_weight, value_bias = _as_linear(value)
    out_weight, out_bias = _as_linear(output)
    head_dim = out_weight.shape[1] // num_heads
    if hasattr(module, "c_attn"):  # GPT-2 stacks queries, keys and values
        value_weight, value_bias = value_weight.chunk(3)[2], value_bias.chunk(3)[2]
    elif hasattr(module, "query_key_value"):  # GPT-NeoX stacks them within each head
        value_weight = value_weight.unflatten(0, (num_heads, 3, -1))[:, 2].flatten(0, 1)
        value_bias = value_bias.unflatten(0, (num_heads, 3, -1))[:, 2].flatten()
    value_weight, value_bias = value_weight.unflatten(0, (-1, head_dim)), value_bias.unflatten(0, (-1, head_dim))
    num_groups = num_heads // len(value_weight)
    return HeadWeights(
        value_weight.repeat_interleave(num_groups, dim=0),
        value_bias.repeat_interleave(num_groups, dim=0),
        out_weight.unflatten(1, (num_heads, -1)),
        out_bias,
    )


def _as_linear(layer: nn.Module) -> tuple[Float[Tensor, "out in"], Float[Tensor, " out"]]:
    """Weight and bias as `nn.Linear` has them; GPT-2's Conv1D stores the transpose."""
    weight: Tensor = layer.weight if isinstance(layer, nn.Linear) else layer.weight.T  # type: ignore[assignment]
    bias = getattr(layer, "bias", None)
    return weight.detach(), weight.new_zeros(len(weight)) if bias is None else bias.detach()


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
