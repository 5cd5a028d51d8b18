"""What was observed in a network: rows of activations, each with the composition, target and split it belongs to.

Decoders are fitted on the rows of the split `fit` alone: fresh instances of training compositions. `id` holds other
instances of the same compositions, `ood` compositions that were never trained. Observations come from a model
(`collect`), or from an npz file that anyone can write:

    activations   (rows, features), or several arrays activations.NAME, one per site
    labels        (rows,) class numbers; or (rows, modules), 0/1 for presence, or any real numbers
    split         (rows,) fit (or train), id (or test), ood; without id rows, every other fit row of a composition becomes one
    composition   (rows,) optional: which composition made the row; by default, rows with equal labels belong together
    target        (rows,) optional: the answer, for structure
    modules       (modules,) optional: names
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float, Int, Num, Shaped

from recombine.archives import read_npz
from recombine.errors import InputError
from recombine.memory import require_memory

SPLITS = ("fit", "id", "ood")
MAX_CLASSES = 100_000
SYNONYMS = {"train": "fit", "test": "id"}


@dataclass(frozen=True, kw_only=True)
class Observations:
    """A table of rows; `skipped` gives the reason for each site that could not be observed."""

    activations: Mapping[str, Float[np.ndarray, "rows _"]]  # by site
    labels: Float[np.ndarray, "rows modules"]
    split: Shaped[np.ndarray, " rows"]
    composition: Int[np.ndarray, " rows"]  # number in `compositions`
    target: Num[np.ndarray, " rows"] | None
    modules: tuple[str, ...]
    compositions: tuple[str, ...]
    skipped: Mapping[str, str] = field(default_factory=dict)

    @property
    def binary(self) -> bool:
        """Whether labels say which modules are present, rather than how much of each."""
        return bool(np.isin(self.labels, (0.0, 1.0)).all())

    @property
    def exclusive(self) -> bool:
        """Whether each row has exactly one module."""
        return self.binary and bool((self.labels.sum(axis=1) == 1).all())

    def rows(self, *splits: str) -> Int[np.ndarray, " chosen"]:
        return np.flatnonzero(np.isin(self.split, splits))

    def count_compositions(self, split: str) -> int:
        return len(np.unique(self.composition[self.rows(split)]))

    def as_arrays(self, *, kinds: tuple[str, ...] = ("codes",)) -> dict[str, np.ndarray]:
        """For an npz file: the columns, and the activations of the sites whose name starts with one of `kinds`."""
        kept = {name: values for name, values in self.activations.items() if name.startswith(kinds)}
        columns = {"labels": self.labels, "split": self.split, "composition": self.composition}
        if self.target is not None:
            columns["target"] = self.target
        names = {"modules": np.array(self.modules), "compositions": np.array(self.compositions)}
        return {**{f"activations.{name}": values for name, values in kept.items()}, **columns, **names}


def load_observations(path: Path | str) -> Observations:
    """Read and check an npz file of the form that the module's docstring gives."""
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
    activations = {site: _check_activations(name, arrays[name], num_rows) for site, name in sites.items()}
    columns = {name: arrays[name] for name in ("split", "composition", "target") if name in arrays}
    for name, column in columns.items():
        if column.shape != (num_rows,):
            raise InputError(f"{name} has shape {column.shape}: expected ({num_rows},), one for each row of labels")
    keys = columns.get("composition", labels)
    different, composition = np.unique(keys, axis=0, return_inverse=True)
    names = arrays.get("modules", np.arange(labels.shape[1]).astype(str))
    if names.shape != (labels.shape[1],):
        raise InputError(f"modules has shape {names.shape}: expected ({labels.shape[1]},), one name for each module")
    return Observations(
        activations=activations,
        labels=labels,
        split=_check_split(columns["split"], composition.reshape(-1)),
        composition=composition.reshape(-1),
        target=_check_target(columns.get("target")),
        modules=tuple(map(str, names)),
        compositions=tuple(_describe(key) for key in different),
    )


def _describe(key: Any) -> str:
    return str(key) if np.ndim(key) == 0 else " ".join(f"{value:g}" for value in key)


def _check_activations(name: str, values: np.ndarray, num_rows: int) -> np.ndarray:
    if values.ndim < 2 or len(values) != num_rows or values.dtype.kind not in "iuf":
        raise InputError(
            f"{name} has shape {values.shape} of {values.dtype}: expected ({num_rows}, features), a row of numbers for "
            f"each row of labels"
        )
    with np.errstate(over="ignore"):  # what float32 cannot hold becomes infinite
        values = values.reshape(num_rows, -1).astype(np.float32)
    reason = find_fault(values)
    if reason is not None:
        raise InputError(f"{name} {reason}: expected finite numbers")
    return values


def find_fault(values: Float[np.ndarray, "rows features"]) -> str | None:
    """Why activations cannot be used, or None."""
    broken = ~np.isfinite(values).all(axis=1)
    return f"has NaN or infinite values in {broken.sum()} of {len(values)} rows" if broken.any() else None


def _check_labels(labels: np.ndarray) -> np.ndarray:
    if labels.ndim == 1 and np.issubdtype(labels.dtype, np.integer) and len(labels) and labels.min() >= 0:
        num_classes = int(labels.max()) + 1
        if num_classes > MAX_CLASSES:
            raise InputError(f"labels has class number {num_classes - 1:,}: expected numbers below {MAX_CLASSES:,}")
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


def _check_target(target: np.ndarray | None) -> np.ndarray | None:
    if target is None:
        return None
    if target.dtype.kind not in "iuf" or not np.isfinite(target).all():
        raise InputError(f"target of {target.dtype} has values that are not finite numbers: expected numbers")
    return target


def _check_split(split: np.ndarray, composition: np.ndarray) -> np.ndarray:
    names = np.array([SYNONYMS.get(str(name), str(name)) for name in split.tolist()], dtype="<U3")
    unknown = sorted({str(name) for name in split.tolist()} - {*SPLITS, *SYNONYMS})
    if unknown:
        raise InputError(f"split has {unknown[0]!r}: expected one of {', '.join((*SPLITS, *SYNONYMS))}")
    fitted = np.flatnonzero(names == "fit")
    if len(fitted) < 2:
        raise InputError(f"split has {len(fitted)} rows of fit or train: expected at least 2 to fit a decoder on")
    if not (names == "id").any():
        for number in np.unique(composition[fitted]):
            names[fitted[composition[fitted] == number][1::2]] = "id"
    return names
