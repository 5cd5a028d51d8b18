"""The contents of the files in a run directory; `tests/training/test_store.py` compares a real run with these types."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NotRequired, TypedDict

Json = dict[str, Any]


class ConfigFile(TypedDict):
    """`config.json`: names, versions and settings, which the classes that it names check further."""

    format: str
    format_version: int
    origins: NotRequired[dict[str, str]]  # where classes from outside the package came from, by role
    task: Json
    model: Json
    training: Json


class SplitFile(TypedDict):
    """`split.json`: the certificate of the split (`Certificate.as_dict`), and the compositions of each of its parts."""

    certificate: CertificateDict
    compositions: NotRequired[dict[str, list[list[int]]]]


class CertificateDict(TypedDict):
    """What is read of a certificate."""

    num_train: int
    num_ood: int
    num_unknown: int
    covered: bool
    coverage: dict[str, int]  # by module
    connected: bool
    num_components: int
    overlap: int
    sha256: str


class EnvironmentFile(TypedDict, total=False):
    """`environment.json`: versions, code and machine, as far as they can change a number."""

    recombine: str
    source_sha256: str
    python: str
    torch: str
    platform: str
    processor: str
    device: str
    num_threads: int
    num_processes: int  # that trained together
    kernel: str  # which attention kernel is used, how it was compiled, or why the plain definition is used
    first_step: int  # that was trained in this environment
    previous: list[Json]  # the environments of earlier steps, oldest first


class CheckpointInfo(TypedDict):
    """`checkpoint.json`, and the `info` in the header of `checkpoint.safetensors`."""

    step: int
    loss: NotRequired[float]  # mean since the last row of metrics
    seconds: NotRequired[float]
    timed_steps: NotRequired[int]
    timed_seconds: NotRequired[float]


class MetricsRow(TypedDict):
    """A line of `metrics.jsonl`; scores are there only at steps at which the model was evaluated."""

    step: int
    loss: float
    learning_rate: NotRequired[float]
    seconds: NotRequired[float]
    scores: NotRequired[dict[str, dict[str, float]]]  # split -> metric -> value


@dataclass(frozen=True, kw_only=True)
class Score:
    """A metric on a split; `low` and `high` bound its 95 % interval. `result.json` holds the sums elsewhere."""

    value: float
    low: float
    high: float
    chance: float | None = None
    ceiling: float | None = None
    agnostic: float | None = None
    sums: tuple[tuple[float, ...], ...] = field(default=(), repr=False)  # numerators, denominators by composition


class MetricDict(TypedDict):
    """How to show a metric, in `result.json`: tables can be made without the task's class."""

    title: str
    higher_is_better: bool


class SplitDict(TypedDict):
    """What a split is, in `result.json`: a title and a line."""

    title: str
    meaning: str


class ResultFile(TypedDict):
    """`result.json`: written when a run is finished, and again when it is evaluated in another way."""

    task: str
    model: str  # kind of model
    label: str  # what tells the model from others on the same task, such as its attention
    num_parameters: int
    split_sha256: str
    seed: int
    steps: int
    seconds: float
    steps_per_second: float  # without the warm-up of each process
    versions: dict[str, int | str]  # of task, model, training and evaluation; see docs/architecture.md
    evaluation_instances: int  # per split
    evaluation_source_sha256: str  # the code that computed the scores: the rooms of the package that an evaluation uses
    metrics: dict[str, MetricDict]  # how to show each metric
    splits: NotRequired[dict[str, SplitDict]]  # what each split is; older results lack it
    scores: dict[str, dict[str, Score]]  # split -> metric -> score
    composition_sums: dict[str, dict[str, list[list[float]]]]  # per composition: numerators and denominators
    baselines: dict[str, dict[str, dict[str, float]]]  # strategy -> split -> metric -> value


# the type of each file; what a file with another name holds is not checked here
FILES: dict[str, Any] = {
    "config.json": ConfigFile,
    "split.json": SplitFile,
    "environment.json": EnvironmentFile,
    "checkpoint.json": CheckpointInfo,
    "result.json": ResultFile,
}
