"""The keys of `probe.json`. A test compares them with files that probes wrote.

A key that is `NotRequired` is missing where its part was skipped; `skipped` then holds the reason. A number is None where
the model gave NaN or infinity, or where there is nothing to average.

Names of sites: the kind of activation and, where there are several, the number of the layer: `hidden.10`.

What was observed in a network: rows of activations, each with the composition, target and split it belongs to.

Decoders are fitted on the rows of the split `fit` alone: fresh instances of training compositions. `id` holds other
instances of the same compositions, `ood` compositions that were never trained. Observations come from a model
(`collect`), or from an npz file that anyone can write:

    activations   (rows, features), or several arrays activations.NAME, one per site
    labels        (rows,) class numbers; or (rows, modules), 0/1 for presence, or any real numbers
    split         (rows,) fit (or train), id (or test), ood; without id rows, every other fit row of a composition becomes one
    composition   (rows,) optional: which composition made the row; by default, rows with equal labels belong together
    target        (rows,) optional: the answer, for structure
    modules       (modules,) optional: names

What an examination gathers on its way: numbers for `probe.json`, arrays for `probe.npz`, times, and reasons for gaps.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, NotRequired, TypedDict, cast

import numpy as np
from jaxtyping import Float, Int, Num, Shaped

from recombine.foundation.errors import InputError, require_memory
from recombine.foundation.files import read_npz
from recombine.inside.cache import MeasurementKey
from recombine.tasks.reading import Reading, Variant

Number = float | None
Side = Literal["test", "ood"]  # splits of the task
SIDES: tuple[Side, ...] = ("test", "ood")
Split = Literal["id", "ood"]  # rows that a decoder is scored on
SPLITS: tuple[Split, ...] = ("id", "ood")
DecoderKey = Literal["decoders", "decoders_pictured", "decoders_same_query"]
VARIANT_KEYS: dict[Variant, DecoderKey] = {"pictured": "decoders_pictured", "same_query": "decoders_same_query"}


class ReadingWords(TypedDict):
    """What was read, in words; and the instances of each variant."""

    instances: str
    codes: str
    labels: str
    pictured: NotRequired[str]
    same_query: NotRequired[str]


class SiteInfo(TypedDict):
    """A site of the network, such as codes.0, residual.0 or hidden.0."""

    name: str
    kind: str
    layer: int | None


class DecoderScores(TypedDict, total=False):
    """Scores of a decoder. Only `r2` where labels are not 0 and 1; see `recombine.inside.decode`."""

    f1: Number
    accuracy: Number
    auc: Number
    exact: Number
    r2: Number


class SplitDecoderScores(DecoderScores):
    """Scores on one split, with the baselines they are compared to."""

    majority: DecoderScores
    control: DecoderScores
    selectivity: DecoderScores
    untrained: NotRequired[DecoderScores]  # of the same network before training


class SiteDecoder(TypedDict):
    """A decoder of one site."""

    num_features: int
    strength: dict[Literal["logistic", "ridge"], float]  # inverse of the regularisation, chosen on the fitting side
    cross_validated: DecoderScores  # on training compositions left out of the fit
    modules: dict[Split, dict[str, DecoderScores]]  # by module
    id: NotRequired[SplitDecoderScores]
    ood: NotRequired[SplitDecoderScores]


class NumCompositions(TypedDict):
    """How many compositions were observed on each side of the split."""

    fit: int
    id: int
    ood: int


class Neighbourhood(TypedDict):
    """How far rows of the same colour lie together; see `recombine.inside.structure`."""

    purity: Number
    chance: Number
    silhouette: Number
    untrained: NotRequired[Number]  # purity in the same network before training


class SiteStructure(TypedDict):
    """Neighbourhoods of the codes, coloured by target and by module."""

    target: NotRequired[Neighbourhood]
    module: NotRequired[Neighbourhood]


class SiteSimilarity(TypedDict):
    """Cosine similarity between the mean codes of modules, as they are and with the overall mean subtracted."""

    modules: list[str]
    cosine: list[list[Number]]
    centred: list[list[Number]]


class Tsne(TypedDict):
    """The coordinates are in `probe.npz`."""

    sites: list[str]
    num_rows: int
    perplexity: int


class Change(TypedDict):
    """The score with an ablation minus the score without it, and its 95 % interval."""

    change: Number
    low: Number
    high: Number


class Ablation(TypedDict):
    """The effect of one ablation of a layer, or of a single head."""

    layer: int
    kind: Literal["zero", "mean", "swap"]
    head: NotRequired[int]
    test: Change
    ood: NotRequired[Change]


class Ablations(TypedDict):
    """Effects of all ablations."""

    metric: str
    num_instances: int
    base: dict[Side, Number]  # the score without an ablation
    layers: list[Ablation]
    heads: list[Ablation]


class AnswerShares(TypedDict):
    """Shares of answers that follow the swapped-in rule, the own rule or neither; the interval is that of `other`."""

    other: Number
    own: Number
    neither: Number
    interval: list[Number]


class CountedArm(AnswerShares):
    """The answers after swapping the codes of some layers and keys."""

    layers: list[int]
    keys: Literal["probed", "all"]
    same_rule: Number  # correct answers with the codes of another instance of the same rule


class CountedSplit(TypedDict):
    """Swaps on one split."""

    num_rows: int
    base: AnswerShares  # without a swap
    base_accuracy: Number
    arms: list[CountedArm]
    by_rule: list[list[Number]]  # [own rule][swapped-in rule]: share that follows; None where there is no instance


class CountedSwap(TypedDict):
    """Swaps between instances with discrete answers, such as those of SRAVEN."""

    kind: Literal["rules"]
    num_instances: int
    rules: list[str]
    splits: dict[Side, CountedSplit]


class SlopeArm(TypedDict):
    """How far answers follow the swapped-in codes: 0 not at all, 1 completely."""

    layers: list[int]
    keys: Literal["probed", "all"]
    follows: Number
    interval: list[Number]


class SlopeSplit(TypedDict):
    """Swaps on one split."""

    num_rows: int
    arms: list[SlopeArm]


class SlopeSwap(TypedDict):
    """Swaps between instances with real-valued answers, such as those of fuzzy logic."""

    kind: Literal["functions"]
    num_instances: int
    splits: dict[Side, SlopeSplit]


class Seconds(TypedDict, total=False):
    """Time that each part took."""

    collect: float
    decode: float
    structure: float
    tsne: float
    ablate: float
    swap: float
    total: float


class ProbeNumbers(TypedDict):
    """What `examine` and `examine_activations` find."""

    version: int
    num_instances: int  # per split
    reading: NotRequired[ReadingWords]
    modules: list[str]  # names, in the order of the columns of `labels` in `probe.npz`
    num_compositions: NumCompositions
    sites: list[SiteInfo]
    decoders: NotRequired[dict[str, SiteDecoder]]  # by site
    decoders_pictured: NotRequired[dict[str, SiteDecoder]]  # of the instances that are pictured
    decoders_same_query: NotRequired[dict[str, SiteDecoder]]  # of instances that all ask the same query
    best_site: NotRequired[str | None]  # with the best cross-validated score: chosen without looking at id or ood
    structure: NotRequired[dict[str, SiteStructure]]  # by site
    similarity: NotRequired[dict[str, SiteSimilarity]]  # by site
    tsne: NotRequired[Tsne]
    ablations: NotRequired[Ablations]
    swap: NotRequired[CountedSwap | SlopeSwap]
    skipped: dict[str, str]  # part or site -> reason
    seconds: Seconds
    tsne_share: float  # of the total time, 0 to 1


class Probe(ProbeNumbers):
    """`probe.json`: what was found in a run, and what determined it."""

    key: MeasurementKey
    run: str
    task: str
    label: str


def describe_site(name: str) -> SiteInfo:
    """The kind and the layer that a name stands for; the layer is None where the name has no number."""
    kind, _, layer = name.rpartition(".")
    return {"name": name, "kind": kind or name, "layer": int(layer) if layer.isdigit() else None}


def order_sites(names: Iterable[str]) -> list[str]:
    """Sites from the first layer to the last, with those without a layer in front; ties keep their order."""

    def number(name: str) -> int:
        layer = describe_site(name)["layer"]
        return -1 if layer is None else layer

    return sorted(names, key=number)


def last_site(names: Iterable[str]) -> str:
    """The site of the last layer: `hidden.10`, not `hidden.9`."""
    ordered = order_sites(names)
    if not ordered:
        raise InputError("there are no sites to choose the last of: expected at least one")
    return ordered[-1]


SPLITS_OBSERVATIONS = ("fit", "id", "ood")
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
    unknown = sorted({str(name) for name in split.tolist()} - {*SPLITS_OBSERVATIONS, *SYNONYMS})
    if unknown:
        raise InputError(f"split has {unknown[0]!r}: expected one of {', '.join((*SPLITS, *SYNONYMS))}")
    fitted = np.flatnonzero(names == "fit")
    if len(fitted) < 2:
        raise InputError(f"split has {len(fitted)} rows of fit or train: expected at least 2 to fit a decoder on")
    if not (names == "id").any():
        for number in np.unique(composition[fitted]):
            names[fitted[composition[fitted] == number][1::2]] = "id"
    return names


FORMAT_VERSION = 2  # of the numbers; raise it when their keys or their meaning change

Part = Literal["collect", "decode", "structure", "tsne", "ablate", "swap"]
Say = Callable[[str], None]


def say_nothing(_: str) -> None:
    """The default of `say`: no progress messages."""


def start_numbers(num_instances: int, reading: Reading | None = None) -> ProbeNumbers:
    """Numbers before anything was observed."""
    numbers: ProbeNumbers = {
        "version": FORMAT_VERSION,
        "num_instances": num_instances,
        "modules": [],
        "num_compositions": {"fit": 0, "id": 0, "ood": 0},
        "sites": [],
        "skipped": {},
        "seconds": {},
        "tsne_share": 0.0,
    }
    if reading is not None:
        words = {"instances": reading.instances, "codes": reading.codes, "labels": reading.labels}
        numbers["reading"] = cast(Any, words)
    return numbers


@dataclass(kw_only=True)
class Examination:
    """What was found: numbers for `probe.json` (see `schema`), arrays for `probe.npz`."""

    numbers: ProbeNumbers
    arrays: dict[str, np.ndarray] = field(default_factory=dict)
    say: Say = say_nothing

    @contextmanager
    def part(self, name: Part) -> Iterator[None]:
        """Time a part. If the model or the data does not allow it, record the reason and go on."""
        self.say(name)
        start = time.perf_counter()
        try:
            yield
        except InputError as error:
            self.numbers["skipped"][name] = str(error)
        seconds = self.numbers["seconds"]
        seconds[name] = round(seconds.get(name, 0.0) + time.perf_counter() - start, 3)

    def describe(self, observations: Observations) -> None:
        """Record what was observed, and what could not be."""
        numbers = self.numbers
        numbers["skipped"] |= observations.skipped
        if not observations.count_compositions("ood"):
            numbers["skipped"]["ood"] = "there are no rows of ood: nothing can be said about new compositions"
        numbers["modules"] = list(observations.modules)
        numbers["num_compositions"] = {
            "fit": observations.count_compositions("fit"),
            "id": observations.count_compositions("id"),
            "ood": observations.count_compositions("ood"),
        }
        numbers["sites"] = [describe_site(name) for name in observations.activations]

    def close(self) -> Examination:
        """Add up the times, and replace NaN and infinity, which JSON cannot hold, by None."""
        self.numbers = _finite(self.numbers)
        seconds = self.numbers["seconds"]
        total = round(sum(cast(dict[str, float], seconds).values()), 3)
        seconds["total"] = total
        self.numbers["tsne_share"] = round(seconds.get("tsne", 0.0) / max(total, 1e-9), 4)
        return self


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
