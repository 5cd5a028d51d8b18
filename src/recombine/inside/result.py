"""The result of a probe: the numbers of `probe.json`, whose keys are the types below, and the arrays of `probe.npz`.

A key that is `NotRequired` is missing if its part was skipped; `skipped` then holds the reason. A number is None if the
model returned NaN or infinity, or if there is nothing to average.

A site is named after the kind of activation and, if there are several, the number of the layer: `hidden.10`.
"""

from __future__ import annotations

import io
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Literal, NotRequired, TypedDict, cast

import numpy as np

from recombine.foundation.errors import InputError
from recombine.foundation.files import read_npz
from recombine.inside.cache import Measurement, MeasurementKey
from recombine.tasks.reading import Variant
from recombine.training.directory import RunDirectory

Number = float | None
Side = Literal["test", "ood"]  # splits of the task
SIDES: tuple[Side, ...] = ("test", "ood")
Split = Literal["id", "ood"]  # rows that a decoder is scored on
SPLITS: tuple[Split, ...] = ("id", "ood")
DecoderKey = Literal["decoders", "decoders_pictured", "decoders_same_query"]
VARIANT_KEYS: dict[Variant, DecoderKey] = {"pictured": "decoders_pictured", "same_query": "decoders_same_query"}


class ReadingDescription(TypedDict):
    """Descriptions of the instances, the pairs whose codes are used, and the labels; and of the instances of each variant."""

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
    """`probe.json`. The last four keys are those of a file in a run directory."""

    version: int
    num_instances: int  # per split
    reading: NotRequired[ReadingDescription]
    modules: list[str]  # names, in the order of the columns of `labels` in `probe.npz`
    num_compositions: NumCompositions
    sites: list[SiteInfo]
    decoders: NotRequired[dict[str, SiteDecoder]]  # by site
    decoders_pictured: NotRequired[dict[str, SiteDecoder]]  # of the instances whose codes are drawn
    decoders_same_query: NotRequired[dict[str, SiteDecoder]]  # of instances that share the last query
    best_site: NotRequired[str | None]  # with the best cross-validated score: chosen without id and ood
    structure: NotRequired[dict[str, SiteStructure]]  # by site
    similarity: NotRequired[dict[str, SiteSimilarity]]  # by site
    tsne: NotRequired[Tsne]
    ablations: NotRequired[Ablations]
    swap: NotRequired[CountedSwap | SlopeSwap]
    skipped: dict[str, str]  # part or site -> reason
    seconds: Seconds
    tsne_share: float  # of the total time, 0 to 1
    key: NotRequired[MeasurementKey]
    run: NotRequired[str]
    task: NotRequired[str]
    label: NotRequired[str]


DECODER_TITLES = {
    "f1": "F1",
    "accuracy": "balanced accuracy",
    "auc": "area under the ROC curve",
    "exact": "all modules right",
    "r2": "R²",
}

FORMAT_VERSION = 2  # of the numbers; increase it when their keys or their meaning change
PROBE = Measurement(name="probe", version=FORMAT_VERSION, schema=ProbeNumbers)
ARRAYS_FILE = "probe.npz"


@dataclass(frozen=True, kw_only=True)
class ProbeResult:
    """The numbers and arrays of a probe; the one reader and writer of `probe.json` and `probe.npz`."""

    numbers: ProbeNumbers
    arrays: Mapping[str, np.ndarray] = field(default_factory=dict)

    def write(self, run: RunDirectory, key: MeasurementKey) -> None:
        """Write both files, each with the key, so that files of different probes cannot be combined."""
        content = io.BytesIO()
        np.savez_compressed(content, allow_pickle=False, key=np.array(json.dumps(key)), **self.arrays)
        run.write_bytes(ARRAYS_FILE, content.getvalue())
        PROBE.write(run, key, self.numbers)

    @classmethod
    def read(cls, run: RunDirectory) -> ProbeResult | None:
        """The numbers of the current checkpoint, without arrays; None if there are none, an error if they are unusable."""
        numbers = PROBE.load_current(run)
        return None if numbers is None else cls(numbers=cast(ProbeNumbers, numbers))

    @classmethod
    def load(cls, run: RunDirectory, key: MeasurementKey) -> ProbeResult | None:
        """Numbers and arrays with this key; None if they must be measured again."""
        numbers = PROBE.load(run, key)
        try:
            result = None if numbers is None else cls(numbers=cast(ProbeNumbers, numbers), arrays=read_arrays(run))
        except InputError:
            return None
        return result if result is not None and result.is_consistent else None

    @property
    def is_consistent(self) -> bool:
        """Whether numbers and arrays have the same key."""
        return "key" in self.arrays and json.loads(str(self.arrays["key"])) == self.numbers.get("key")


def read_arrays(run: RunDirectory) -> dict[str, np.ndarray]:
    """The arrays of `probe.npz`."""
    try:
        return read_npz(run.path / ARRAYS_FILE)
    except InputError:  # its message contains a local path, which does not belong in a report
        raise InputError(
            f"{ARRAYS_FILE} is missing or cannot be read: expected the file that recombine probe writes"
        ) from None


def describe_site(name: str) -> SiteInfo:
    """Kind and layer of a site; the layer is None if the name has no number."""
    kind, _, layer = name.rpartition(".")
    return {"name": name, "kind": kind or name, "layer": int(layer) if layer.isdigit() else None}


def order_sites(names: Iterable[str]) -> list[str]:
    """Sites from the first layer to the last, after those without a layer; ties keep their order."""

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
