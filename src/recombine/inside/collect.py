"""Record what a model computes: latent codes, residual stream and hidden activations of the last token, per layer.

Codes come from the model's own `return_codes`, or from its `HypernetworkAttention` layers (see `converted`). Everything else
is recorded by forward hooks on named submodules, which works for any `nn.Module`. Sites are named after the kind of
activation and the layer:

    codes.0      the codes of the pairs that the task's reading names, (key, head) flattened
    residual.0   the residual stream behind block 0
    hidden.0     what the feed-forward network of block 0 sends into its last matrix
    hidden       of a causal sequence model: its hidden state

Latent codes of converted models: any module with `HypernetworkAttention` layers shows its codes and lets them be changed.

Our own models take `return_codes` and `code_maps`. A model that `convert` changed does not; `show_codes` wraps it in one that
does, with the layers in the order in which the model calls them.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor, nn

from recombine.attention.definition import CodeMap
from recombine.attention.hyla import CodeWatch, HypernetworkAttention
from recombine.foundation.errors import InputError, check_positive
from recombine.inside.result import SIDES, Observations, Side, find_fault
from recombine.models.base import Site
from recombine.tasks.base import Task
from recombine.tasks.batch import Batch
from recombine.tasks.reading import Reading


class ConvertedModel(nn.Module):
    """A model with `HypernetworkAttention` layers, called as our own models are."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.inner = model
        self.layers = [module for module in model.modules() if isinstance(module, HypernetworkAttention)]

    def forward(
        self, inputs: Tensor, *, return_codes: bool = False, code_maps: Sequence[CodeMap | None] | None = None
    ) -> Tensor | tuple[Tensor, list[Float[Tensor, "b h q k"]]]:
        """Predictions, and with `return_codes` the codes of every layer that was called."""
        maps = [None] * len(self.layers) if code_maps is None else code_maps
        try:
            for layer, code_map in zip(self.layers, maps, strict=True):
                layer.watch = CodeWatch(code_map=code_map)
            predictions = self.inner(inputs)
            codes = [layer.watch.codes for layer in self.layers if layer.watch is not None]
        finally:
            for layer in self.layers:
                layer.watch = None
        return (predictions, [code for code in codes if code is not None]) if return_codes else predictions

    def find_site(self, site: Site) -> Site:
        """A site of the model itself, as a site of this one."""
        return site._replace(path=f"inner.{site.path}")


def show_codes(model: nn.Module) -> nn.Module:
    """The model itself, or a wrapper that shows its codes if it has layers with codes but does not show them."""
    if any(isinstance(module, HypernetworkAttention) for module in model.modules()):
        return ConvertedModel(model)
    return model


CHUNK_SIZE = 250  # rows whose codes of all layers are in memory at once


def rows_at_once(task: Task) -> int:
    """How many rows are computed at once where codes or predictions of all their tokens are in memory."""
    return min(CHUNK_SIZE, task.max_rows_at_once)


def has_codes(model: nn.Module) -> bool:
    """Whether a model can show its latent codes."""
    return "return_codes" in inspect.signature(model.forward).parameters


def can_intervene(model: nn.Module) -> bool:
    """Whether a model lets its latent codes be changed in use."""
    return has_codes(model) and "code_maps" in inspect.signature(model.forward).parameters


def find_sites(model: nn.Module, names: Sequence[str] | None = None) -> tuple[Site, ...]:
    """The sites of a model: the named submodules, or those it names itself (`probe_sites`), or else its children."""
    if isinstance(model, ConvertedModel):
        return tuple(model.find_site(site) for site in find_sites(model.inner, names))
    paths = dict(model.named_modules())
    if names is not None:
        for name in names:
            if name not in paths or not name:
                choices = ", ".join(path for path in paths if path)
                raise InputError(f"the model has no submodule {name!r}: expected some of {choices}")
        return tuple(Site(name, name) for name in names)
    own: Sequence[Site] | None = getattr(model, "probe_sites", None)
    return tuple(Site(name, name) for name, _ in model.named_children()) if own is None else tuple(own)


def collect_activations(
    model: nn.Module,
    reading: Reading,
    *,
    num_instances: int,
    sites: Sequence[str] | None = None,
    device: torch.device | str = "cpu",
) -> Observations:
    """Observe the first instances of `test`, half of them to fit on, and of `ood`.

    Every submodule that `sites` names must give activations. Without `sites`, those of `find_sites` that give some are taken.
    """
    check_positive(num_instances=num_instances)
    model = model if has_codes(model) else show_codes(model)
    task, chosen = reading.task, find_sites(model, sites)
    recorded: list[tuple[Side, Batch, dict[str, Tensor]]] = []
    for split in SIDES:
        if task.split.compositions(split):
            for batch in reading.batches(split, num_instances, device):
                recorded.append((split, batch, observe(model, batch.inputs, chosen, reading.keys)))
    names = list(recorded[0][2])
    silent = {site.name: _explain_silence(site) for site in chosen if site.name not in names}
    if silent and (sites is not None or not names):
        raise InputError(next(iter(silent.values())))
    activations = {name: torch.cat([values[name] for _, _, values in recorded]).numpy() for name in names}
    faults = {name: find_fault(values) for name, values in activations.items()}
    skipped = silent | {name: f"{name} {fault}" for name, fault in faults.items() if fault is not None}
    if not has_codes(model):
        skipped["codes"] = f"{type(model).__name__} has no latent codes: its forward takes no return_codes"
    num_trained = len(task.split.train)
    numbers = [batch.composition + (0 if split == "test" else num_trained) for split, batch, _ in recorded]
    return Observations(
        activations={name: values for name, values in activations.items() if name not in skipped},
        labels=torch.cat([reading.label(batch) for _, batch, _ in recorded]).cpu().numpy(),
        split=np.concatenate([_name_rows(split, len(batch)) for split, batch, _ in recorded]),
        composition=torch.cat(numbers).cpu().numpy(),
        target=torch.cat([reading.target(batch) for _, batch, _ in recorded]).cpu().numpy(),
        modules=reading.module_names,
        compositions=tuple(task.describe(composition) for composition in task.split.train + task.split.ood),
        skipped=skipped,
    )


def _name_rows(split: Side, num_rows: int) -> np.ndarray:
    """Every other row of `test` is to fit on (batches have an even number of rows, up to the last)."""
    if split == "ood":
        return np.full(num_rows, "ood")
    return np.where(np.arange(num_rows) % 2 == 0, "fit", "id").astype("<U3")


def observe(model: nn.Module, inputs: Tensor, sites: Sequence[Site], keys: Sequence[int]) -> dict[str, Tensor]:
    """The activations of the last token at each site that gives some, codes first; (rows, features) on the CPU."""
    recorded: dict[str, list[Tensor]] = {}
    with evaluating(model), ExitStack() as hooks:
        for site in sites:
            hooks.enter_context(_record(model.get_submodule(site.path), site, recorded))
        for chunk in inputs.split(CHUNK_SIZE):
            if not has_codes(model):
                model(chunk)
                continue
            for layer, code in enumerate(model(chunk, return_codes=True)[1]):
                pairs = code[:, :, -1, list(keys)].transpose(1, 2)
                recorded.setdefault(f"codes.{layer}", []).append(pairs.flatten(1).float().cpu())
    named = [site.name for site in sites]
    codes = [name for name in recorded if name not in named]
    return {name: torch.cat(recorded[name]) for name in [*codes, *(name for name in named if name in recorded)]}


def _explain_silence(site: Site) -> str:
    return f"submodule {site.path!r} was not called, or gave no tensor: expected one that is used"


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Evaluation mode without gradients; the mode is restored at the end."""
    training = model.training
    model.eval()
    try:
        with torch.inference_mode():
            yield
    finally:
        model.train(training)


@contextmanager
def _record(module: nn.Module, site: Site, recorded: dict[str, list[Tensor]]) -> Iterator[None]:
    def hook(_: nn.Module, inputs: object, output: object) -> None:
        value = inputs if site.side == "input" else output
        value = value[0] if isinstance(value, tuple | list) and value else value
        if isinstance(value, Tensor) and value.ndim >= 2:
            if value.ndim == 3:
                value = value.mean(dim=1) if site.token == "mean" else value[:, -1]
            recorded.setdefault(site.name, []).append(value.flatten(1).float().cpu())

    handle = module.register_forward_hook(hook)
    try:
        yield
    finally:
        handle.remove()
