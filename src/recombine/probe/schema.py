"""The keys of `probe.json`. A test compares them with files that probes wrote.

A key that is `NotRequired` is missing where its part was skipped; `skipped` then holds the reason. A number is None where
the model gave NaN or infinity, or where there is nothing to average.
"""

from __future__ import annotations

from typing import Literal, NotRequired, TypedDict

from recombine.probe.cache import MeasurementKey
from recombine.tasks.reading import Variant

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
    """Scores of a decoder. Only `r2` where labels are not 0 and 1; see `recombine.probe.decode`."""

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
    """How far rows of the same colour lie together; see `recombine.probe.structure`."""

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
