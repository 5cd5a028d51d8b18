"""The results that a run directory caches: measurements in general, and that of a probe.

A measurement is a JSON file `NAME.json` with the numbers and the `key` that determined them:

    name, version     of the measurement; increase `version` when the same arguments lead to other numbers or other keys
    arguments         of the caller, such as the number of instances
    checkpoint        step and SHA-256 of the checkpoint
    code              versions of task, model and training (`RunConfig.as_dict`), and of the task's reading if it is not 1

A file that is missing, damaged or has another key is replaced by a new measurement. The key is computed *before* the model is
loaded: if training continues meanwhile, the file belongs to an older checkpoint and is not used again.

A probe writes `probe.json`, whose keys are those of `ProbeNumbers`, and arrays in `probe.npz`. A key that is `NotRequired` is
missing if its part was skipped; `skipped` then holds the reason. A number is None if the model returned NaN or infinity, or if
there is nothing to average. A site is named after the kind of activation and, if there are several, the number of the layer:
`hidden.10`.
"""

from __future__ import annotations

import hashlib
import io
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, NotRequired, TypedDict, cast

import numpy as np

from recombine.foundation.errors import InputError, find_schema_error
from recombine.foundation.files import parse_json, read_npz
from recombine.models.base import Code
from recombine.training.config import RunConfig
from recombine.training.directory import CHECKPOINT, RunDirectory, read_header
from recombine.training.schema import Json

Number = float | None
Side = Literal["test", "ood"]  # splits of the task
SIDES: tuple[Side, ...] = ("test", "ood")
Split = Literal["id", "ood"]  # rows that a decoder is scored on
SPLITS: tuple[Split, ...] = ("id", "ood")
DecoderKey = str  # "decoders"; for a variant of the reading, "decoders_" and its name


class MeasurementKey(TypedDict):
    """Everything that determined a measurement."""

    name: str
    version: int
    arguments: Json
    checkpoint: Json | None
    code: Json


@dataclass(frozen=True, kw_only=True)
class Measurement:
    """A kind of measurement; its file is `NAME.json`."""

    name: str
    version: int
    schema: Any = Json

    @property
    def file(self) -> str:
        return f"{self.name}.json"

    def load_or_measure(
        self,
        path: Path | str,
        arguments: Mapping[str, Any],
        measure: Callable[[], Mapping[str, Any]],
        *,
        code: Sequence[Code] = (),
    ) -> Json:
        """The measurement of a run with these arguments, from its file or by calling `measure`."""
        run = RunDirectory.open(path)
        key = self.make_key(run, arguments, code)
        stored = self.load(run, key)
        if stored is not None:
            return stored
        run.write_json(self.file, {"key": key, **measure()})
        return run.read_json(self.file)

    def make_key(self, run: RunDirectory, arguments: Mapping[str, Any], code: Sequence[Code] = ()) -> MeasurementKey:
        """The key of a measurement made now."""
        config = RunConfig.from_dict(run.config, code)
        versions: Json = {part: settings["version"] for part, settings in config.as_dict().items()}
        if (reading := config.task.reading().version) > 1:  # keys from before readings had versions stay valid
            versions["reading"] = reading
        return {
            "name": self.name,
            "version": self.version,
            "arguments": dict(arguments),
            "checkpoint": describe_checkpoint(run),
            "code": versions,
        }

    def load(self, run: RunDirectory, key: MeasurementKey) -> Json | None:
        """The stored measurement with this key, or None."""
        try:
            stored = self.load_current(run)
        except InputError:
            return None
        # compared as JSON, where tuples are lists
        return stored if stored is not None and stored.get("key") == json.loads(json.dumps(key)) else None

    def load_current(self, run: RunDirectory) -> Json | None:
        """The stored measurement whatever its arguments, or None; raises if it is damaged or of another checkpoint.

        The checkpoint is not compared if the run directory has none. Needs no class of the run.
        """
        if not (run.path / self.file).exists():
            return None
        try:
            stored = run.read_json(self.file)
        except InputError:  # its message contains a local path, which does not belong in a report
            raise InputError(f"{self.file} cannot be read: expected the JSON object that Recombine writes") from None
        key = stored["key"] if isinstance(stored.get("key"), dict) else {}
        version = key.get("version", stored.get("version"))
        if version != self.version:
            raise InputError(f"{self.file} has version {version!r}: expected {self.version}")
        if (fault := find_schema_error(stored, self.schema)) is not None:
            raise InputError(f"{self.file} is damaged: {fault}")
        current = describe_checkpoint(run)
        if current is not None and key.get("checkpoint") != current:
            raise InputError(
                f"{self.file} is of another checkpoint than the run's: expected a new recombine {self.name}"
            )
        return stored


def describe_checkpoint(run: RunDirectory) -> Json | None:
    """Step and SHA-256 of the last checkpoint, or None if there is none."""
    path = run.path / CHECKPOINT
    if not path.exists():
        return None
    try:
        step = read_header(path)[1]["step"]
        with open(path, "rb") as content:
            return {"step": step, "sha256": hashlib.file_digest(content, "sha256").hexdigest()}
    except OSError as error:
        raise InputError(f"{path} cannot be read ({error.strerror}): expected a whole checkpoint") from None


class ReadingDescription(TypedDict):
    """Descriptions of the instances, the pairs whose codes are used, and the labels; by name, of the instances of a variant."""

    instances: str
    codes: str
    labels: str


class SiteInfo(TypedDict):
    """A site of the network, such as codes.0, residual.0 or hidden.0."""

    name: str
    kind: str
    layer: int | None


class SplitDecoderScores(TypedDict):
    """Scores of a decoder on one split (see `recombine.inside.decode`), with the baselines that they are compared to.

    Real-valued labels have `r2` only.
    """

    f1: NotRequired[Number]
    accuracy: NotRequired[Number]
    auc: NotRequired[Number]
    exact: NotRequired[Number]
    r2: NotRequired[Number]
    majority: dict[str, Number]
    control: dict[str, Number]
    selectivity: dict[str, Number]
    untrained: NotRequired[dict[str, Number]]  # of the same network before training


class SiteDecoder(TypedDict):
    """A decoder of one site."""

    num_features: int
    strength: dict[Literal["logistic", "ridge"], float]  # inverse of the regularisation, chosen on the fitting side
    cross_validated: dict[str, Number]  # on training compositions left out of the fit
    modules: dict[Split, dict[str, dict[str, Number]]]  # by module
    id: NotRequired[SplitDecoderScores]
    ood: NotRequired[SplitDecoderScores]


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


class SwapAnswers(TypedDict):
    """Answers after swapping the codes of some layers and keys, or without a swap; see `recombine.inside.intervene`."""

    layers: NotRequired[list[int]]  # missing without a swap
    keys: NotRequired[Literal["probed", "all"]]
    other: NotRequired[Number]  # share of discrete answers that follow the swapped-in rule,
    own: NotRequired[Number]  # the own rule,
    neither: NotRequired[Number]  # or neither
    same_rule: NotRequired[Number]  # correct answers with the codes of another instance of the same rule
    follows: NotRequired[Number]  # how far real-valued answers follow the swapped-in codes: 0 not at all, 1 completely
    interval: list[Number]  # of `other` or of `follows`


class SplitSwaps(TypedDict):
    """Swaps on one split; the last three keys are for discrete answers."""

    num_rows: int
    arms: list[SwapAnswers]
    base: NotRequired[SwapAnswers]  # without a swap
    base_accuracy: NotRequired[Number]
    by_rule: NotRequired[list[list[Number]]]  # [own rule][swapped-in rule]: share that follows; None without instances


class Swaps(TypedDict):
    """Swaps between instances with discrete answers, such as those of SRAVEN, or with real-valued ones (`functions`)."""

    kind: Literal["rules", "functions"]
    num_instances: int
    rules: NotRequired[list[str]]
    splits: dict[Side, SplitSwaps]


class ProbeNumbers(TypedDict):
    """`probe.json`. The last four keys are those of a file in a run directory."""

    version: int
    num_instances: int  # per split
    reading: NotRequired[ReadingDescription]
    modules: list[str]  # names, in the order of the columns of `labels` in `probe.npz`
    num_compositions: dict[str, int]  # of the rows fit, id and ood
    sites: list[SiteInfo]
    decoders: NotRequired[dict[str, SiteDecoder]]  # by site; `decoders_NAME` has those of a variant
    best_site: NotRequired[str | None]  # with the best cross-validated score: chosen without id and ood
    structure: NotRequired[dict[str, SiteStructure]]  # by site
    similarity: NotRequired[dict[str, SiteSimilarity]]  # by site
    tsne: NotRequired[Tsne]
    ablations: NotRequired[Ablations]
    swap: NotRequired[Swaps]
    skipped: dict[str, str]  # part or site -> reason
    seconds: dict[str, float]  # by part, and in total
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
        run.write_json(PROBE.file, {"key": key, **self.numbers})

    @classmethod
    def load(cls, run: RunDirectory, key: MeasurementKey) -> ProbeResult | None:
        """Numbers and arrays with this key; None if they must be measured again."""
        numbers = PROBE.load(run, key)
        if numbers is None:
            return None
        try:
            arrays = read_arrays(run)
            key_of_arrays = parse_json(str(arrays.get("key", "null")), Any, ARRAYS_FILE)
        except InputError:
            return None
        if key_of_arrays != numbers["key"]:
            return None
        return cls(numbers=cast(ProbeNumbers, numbers), arrays=arrays)


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


def last_site(names: Iterable[str]) -> str:
    """The site of the last layer: `hidden.10`, not `hidden.9`; sites without a layer come first."""
    ordered = sorted(names, key=lambda name: -1 if (layer := describe_site(name)["layer"]) is None else layer)
    if not ordered:
        raise InputError("there are no sites to choose the last of: expected at least one")
    return ordered[-1]
