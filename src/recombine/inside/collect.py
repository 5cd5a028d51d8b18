"""Activations: record what a model computes at the last token, or read a file that any program can write.

Codes come from the model's own `return_codes`, or from its `HypernetworkAttention` layers (`ConvertedModel`). Everything else
is recorded by forward hooks on named submodules, which works for any `nn.Module`. Sites are named after the kind of
activation and the layer:

    codes.0      the codes of the pairs that the task's reading names, (key, head) flattened
    residual.0   the residual stream behind block 0
    hidden.0     the input of the last matrix of the feed-forward network of block 0
    hidden       the hidden state of a causal sequence model

Decoders are fitted on the rows of the split `fit` alone: fresh instances of training compositions. `id` holds other
instances of the same compositions, `ood` compositions that were never trained. `load_activations` reads an npz file of

    activations   (rows, features), or several arrays activations.NAME, one per site
    labels        (rows,) class numbers; or (rows, modules), 0/1 for presence, or any real numbers
    split         (rows,) fit (or train), id (or test), ood; without id rows, every other fit row of a composition becomes one
    composition   (rows,) optional: the composition of each row; by default, rows with equal labels belong together
    target        (rows,) optional: the answer, for structure
    modules       (modules,) optional: names
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int, Num, Shaped
from torch import Tensor, nn

from recombine.attention.definition import CodeMap
from recombine.attention.hyla import CodeWatch, HypernetworkAttention
from recombine.foundation.errors import InputError, check_positive, require_memory
from recombine.foundation.files import read_npz
from recombine.inside.result import SIDES, Side
from recombine.models.base import Site
from recombine.tasks.base import Task
from recombine.tasks.reading import Reading
from recombine.tasks.sampling import Batch
from recombine.training.score import evaluating

CHUNK_SIZE = 250  # rows whose codes of all layers are in memory at once
ROW_SPLITS = ("fit", "id", "ood")
SYNONYMS = {"train": "fit", "test": "id"}


@dataclass(frozen=True, kw_only=True)
class Activations:
    """A table of rows; `skipped` holds the reason for each site without usable activations."""

    by_site: Mapping[str, Float[np.ndarray, "rows _"]]
    labels: Float[np.ndarray, "rows modules"]
    split: Shaped[np.ndarray, " rows"]
    composition: Int[np.ndarray, " rows"]  # index in `compositions`
    target: Num[np.ndarray, " rows"] | None
    modules: tuple[str, ...]
    compositions: tuple[str, ...]
    skipped: Mapping[str, str] = field(default_factory=dict)

    @property
    def binary(self) -> bool:
        """Whether labels are the presence of modules rather than real numbers."""
        return bool(np.isin(self.labels, (0.0, 1.0)).all())

    @property
    def exclusive(self) -> bool:
        """Whether every row has exactly one module."""
        return self.binary and bool((self.labels.sum(axis=1) == 1).all())

    def rows(self, *splits: str) -> Int[np.ndarray, " chosen"]:
        return np.flatnonzero(np.isin(self.split, splits))

    def count_compositions(self, split: str) -> int:
        return len(np.unique(self.composition[self.rows(split)]))

    def columns(self, kinds: tuple[str, ...], rows: Any = slice(None)) -> dict[str, np.ndarray]:
        """Some rows as arrays of an npz file, with the activations of the sites whose name starts with one of `kinds`."""
        sites = {f"activations.{name}": values for name, values in self.by_site.items() if name.startswith(kinds)}
        columns = sites | {"labels": self.labels, "split": self.split, "composition": self.composition}
        if self.target is not None:
            columns["target"] = self.target
        names = {"modules": np.array(self.modules), "compositions": np.array(self.compositions)}
        return {name: values[rows] for name, values in columns.items()} | names


def collect_activations(
    model: nn.Module,
    reading: Reading,
    *,
    num_instances: int,
    sites: Sequence[str] | None = None,
    device: torch.device | str = "cpu",
) -> Activations:
    """Activations on the first instances of `test`, half of them for fitting, and of `ood`.

    Every submodule named in `sites` must return activations. By default, the sites of `find_sites` that do are used.
    """
    check_positive(num_instances=num_instances)
    model = expose_codes(model)
    task, chosen = reading.task, find_sites(model, sites)
    recorded: list[tuple[Side, Batch, dict[str, Tensor]]] = []
    for split in SIDES:
        if task.split.compositions(split):
            for batch in reading.batches(split, num_instances, device):
                recorded.append((split, batch, record_activations(model, batch.inputs, chosen, reading.keys)))
    names = list(recorded[0][2])
    uncalled = {
        site.name: f"submodule {site.path!r} was not called, or gave no tensor: expected one that is used"
        for site in chosen
        if site.name not in names
    }
    if uncalled and (sites is not None or not names):
        raise InputError(next(iter(uncalled.values())))
    by_site = {name: torch.cat([values[name] for _, _, values in recorded]).numpy() for name in names}
    broken = {name: _describe_broken_rows(values) for name, values in by_site.items()}
    skipped = uncalled | {name: f"{name} {reason}" for name, reason in broken.items() if reason is not None}
    if not has_codes(model):
        skipped["codes"] = f"{type(model).__name__} has no latent codes: its forward takes no return_codes"
    num_trained = len(task.split.train)
    numbers = [batch.composition + (0 if split == "test" else num_trained) for split, batch, _ in recorded]
    return Activations(
        by_site={name: values for name, values in by_site.items() if name not in skipped},
        labels=torch.cat([reading.label(batch) for _, batch, _ in recorded]).cpu().numpy(),
        split=np.concatenate([_name_rows(split, len(batch)) for split, batch, _ in recorded]),
        composition=torch.cat(numbers).cpu().numpy(),
        target=torch.cat([reading.target(batch) for _, batch, _ in recorded]).cpu().numpy(),
        modules=reading.module_names,
        compositions=tuple(task.describe(composition) for composition in task.split.train + task.split.ood),
        skipped=skipped,
    )


def _name_rows(split: Side, num_rows: int) -> np.ndarray:
    """Every other row of `test` is for fitting (batches have an even number of rows, except the last)."""
    if split == "ood":
        return np.full(num_rows, "ood")
    return np.where(np.arange(num_rows) % 2 == 0, "fit", "id").astype("<U3")


def record_activations(
    model: nn.Module, inputs: Tensor, sites: Sequence[Site], keys: Sequence[int]
) -> dict[str, Tensor]:
    """The activations of the last token at each site that is called, codes first; (rows, features) on the CPU."""
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


def find_sites(model: nn.Module, names: Sequence[str] | None = None) -> tuple[Site, ...]:
    """The named submodules; by default the model's own `probe_sites`, or its children if it has none."""
    if isinstance(model, ConvertedModel):
        sites = find_sites(model.inner, names)
        return tuple(site._replace(path=f"inner.{site.path}") for site in sites)
    if names is None:
        own: Sequence[Site] | None = getattr(model, "probe_sites", None)
        return tuple(Site(name, name) for name, _ in model.named_children()) if own is None else tuple(own)
    paths = [path for path, _ in model.named_modules() if path]
    for name in names:
        if name not in paths:
            raise InputError(f"the model has no submodule {name!r}: expected some of {', '.join(paths)}")
    return tuple(Site(name, name) for name in names)


def rows_at_once(task: Task) -> int:
    """How many rows to compute at once when codes or predictions of all their tokens are in memory."""
    return min(CHUNK_SIZE, task.max_rows_at_once)


def has_codes(model: nn.Module) -> bool:
    """Whether a model can return its latent codes."""
    return "return_codes" in inspect.signature(model.forward).parameters


def can_intervene(model: nn.Module) -> bool:
    """Whether the latent codes of a model can be changed while it runs."""
    return has_codes(model) and "code_maps" in inspect.signature(model.forward).parameters


class ConvertedModel(nn.Module):
    """A model with `HypernetworkAttention` layers (see `recombine.convert`), called like the models of this package.

    Layers are in the order in which the model calls them.
    """

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


def expose_codes(model: nn.Module) -> nn.Module:
    """The model itself, or a `ConvertedModel` around it if it has layers with codes but does not return them."""
    if not has_codes(model) and any(isinstance(module, HypernetworkAttention) for module in model.modules()):
        return ConvertedModel(model)
    return model


def load_activations(path: Path | str) -> Activations:
    """Read and check an npz file of activations; its arrays are described at the top of this module."""
    arrays = read_npz(Path(path))
    sites = {name.removeprefix("activations").lstrip(".") or "activations": name for name in arrays}
    sites = {site: name for site, name in sites.items() if name.startswith("activations")}
    missing = [name for name in ("labels", "split") if name not in arrays] + ([] if sites else ["activations"])
    if missing:
        raise InputError(
            f"{path} lacks {', '.join(missing)}: expected arrays activations, labels and split; it holds "
            f"{', '.join(arrays) or 'nothing'}"
        )
    num_rows = len(arrays["labels"]) if arrays["labels"].ndim else 0
    labels = _check_labels(arrays["labels"])
    by_site = {site: _check_activations(name, arrays[name], num_rows) for site, name in sites.items()}
    columns = {name: arrays[name] for name in ("split", "composition", "target") if name in arrays}
    for name, column in columns.items():
        if column.shape != (num_rows,):
            raise InputError(f"{name} has shape {column.shape}: expected ({num_rows},), one for each row of labels")
    target = columns.get("target")
    if target is not None and (target.dtype.kind not in "iuf" or not np.isfinite(target).all()):
        raise InputError(f"target of {target.dtype} has values that are not finite numbers: expected numbers")
    keys = columns.get("composition", labels)
    different, composition = np.unique(keys, axis=0, return_inverse=True)
    names = arrays.get("modules", np.arange(labels.shape[1]).astype(str))
    if names.shape != (labels.shape[1],):
        raise InputError(f"modules has shape {names.shape}: expected ({labels.shape[1]},), one name for each module")
    return Activations(
        by_site=by_site,
        labels=labels,
        split=_check_split(columns["split"], composition.reshape(-1)),
        composition=composition.reshape(-1),
        target=target,
        modules=tuple(map(str, names)),
        compositions=tuple(
            str(key) if np.ndim(key) == 0 else " ".join(f"{value:g}" for value in key) for key in different
        ),
    )


def _check_labels(labels: np.ndarray) -> np.ndarray:
    if labels.ndim == 1 and np.issubdtype(labels.dtype, np.integer) and len(labels) and labels.min() >= 0:
        num_classes = int(labels.max()) + 1
        require_memory(len(labels) * num_classes * 4, f"a table of {len(labels):,} rows and {num_classes:,} classes")
        labels = (labels[:, None] == np.arange(num_classes)).astype(np.float32)
    if labels.ndim != 2 or 0 in labels.shape or labels.dtype.kind not in "biuf":
        raise InputError(
            f"labels has shape {labels.shape} of {labels.dtype}: expected (rows,) class numbers from 0 on, or "
            f"(rows, modules) numbers"
        )
    if not np.isfinite(labels).all():
        raise InputError("labels has NaN or infinite values: expected finite numbers")
    return labels.astype(np.float32)


def _check_activations(name: str, values: np.ndarray, num_rows: int) -> np.ndarray:
    if values.ndim < 2 or len(values) != num_rows or values.dtype.kind not in "iuf":
        raise InputError(
            f"{name} has shape {values.shape} of {values.dtype}: expected ({num_rows}, features), a row of numbers for "
            f"each row of labels"
        )
    with np.errstate(over="ignore"):  # float64 values beyond float32 become infinite
        values = values.reshape(num_rows, -1).astype(np.float32)
    reason = _describe_broken_rows(values)
    if reason is not None:
        raise InputError(f"{name} {reason}: expected finite numbers")
    return values


def _describe_broken_rows(values: Float[np.ndarray, "rows features"]) -> str | None:
    """How many rows are not finite, or None if all are."""
    broken = ~np.isfinite(values).all(axis=1)
    return f"has NaN or infinite values in {broken.sum()} of {len(values)} rows" if broken.any() else None


def _check_split(split: np.ndarray, composition: np.ndarray) -> np.ndarray:
    given = [str(name) for name in split.tolist()]
    unknown = sorted({*given} - {*ROW_SPLITS, *SYNONYMS})
    if unknown:
        raise InputError(f"split has {unknown[0]!r}: expected one of {', '.join((*ROW_SPLITS, *SYNONYMS))}")
    names = np.array([SYNONYMS.get(name, name) for name in given], dtype="<U3")
    fitted = np.flatnonzero(names == "fit")
    if len(fitted) < 2:
        raise InputError(f"split has {len(fitted)} rows of fit or train: expected at least 2 to fit a decoder on")
    if not (names == "id").any():
        for number in np.unique(composition[fitted]):
            names[fitted[composition[fitted] == number][1::2]] = "id"
    return names
