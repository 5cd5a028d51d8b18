"""What the files of a run directory hold. `tests/test_schema.py` compares a real run's files with these types."""

from __future__ import annotations

from typing import Any, NotRequired, TypedDict

from recombine.training.score import MetricDict, ScoreDict, SplitDict

Json = dict[str, Any]


class Parts(TypedDict):
    """What every reader of a configuration relies on; the rest of it is checked by the classes that it names."""

    task: Json
    model: Json
    training: Json


class ConfigFile(TypedDict):
    """`config.json`: names, versions and settings. `origins` says where classes from outside the package came from."""

    format: str
    format_version: int
    origins: dict[str, str]
    task: Json  # name, version, and the task's fields
    model: Json  # kind, version, and the model's fields
    training: Json  # version, and the fields of TrainingConfig


class CertificateDict(TypedDict):
    """`recombine.compositions.Certificate` in `split.json`."""

    num_train: int
    num_ood: int
    num_unknown: int
    covered: bool
    min_coverage: int
    coverage: dict[str, int]  # by module
    connected: bool
    num_components: int
    overlap: int
    redraws: int
    sha256: str


class SplitFile(TypedDict):
    """`split.json`: the certificate of the split, and the compositions of each of its parts."""

    certificate: CertificateDict
    compositions: dict[str, list[list[int]]]


class Environment(TypedDict):
    """Versions, code and machine, as far as they can change a number."""

    recombine: str
    source_sha256: str
    python: str
    torch: str
    platform: str
    processor: str
    device: str
    num_threads: int
    num_processes: NotRequired[int]  # that trained together
    kernel: str  # which attention kernel is used, how it was compiled, or why the plain definition is used


class Stretch(Environment):
    """The environment in which a run was trained from `first_step` on."""

    first_step: int


class EnvironmentFile(Stretch):
    """`environment.json`: the latest environment, and those in which earlier steps were trained, oldest first."""

    previous: list[Stretch]


class CheckpointInfo(TypedDict):
    """`checkpoint.json`, and the `info` in the header of `checkpoint.safetensors`."""

    step: int
    loss: float  # mean over the last logging interval
    seconds: float
    timed_steps: int
    timed_seconds: float


class MetricsRow(TypedDict):
    """A line of `metrics.jsonl`; scores are there only at steps at which the model was evaluated."""

    step: int
    loss: float
    learning_rate: float
    seconds: float
    scores: NotRequired[dict[str, dict[str, float]]]  # split -> metric -> value


class Versions(TypedDict):
    """Versions of everything that determines a number; see docs/architecture.md for when they are raised."""

    task: int | str
    model: int | str
    training: int
    evaluation: int


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
    versions: Versions
    evaluation_instances: int  # per split
    evaluation_source_sha256: str  # the code that computed the scores
    metrics: dict[str, MetricDict]  # how to show each metric
    splits: NotRequired[dict[str, SplitDict]]  # what each split is; older results lack it
    scores: dict[str, dict[str, ScoreDict]]  # split -> metric -> score
    composition_sums: dict[
        str, dict[str, list[list[float]]]
    ]  # split -> metric -> numerators and denominators per composition
    baselines: dict[str, dict[str, dict[str, float]]]  # strategy -> split -> metric -> value


def find_uneven_sums(result: Json) -> str | None:
    """Which sums of a result are not numerators and denominators of the same compositions, in words, or None."""
    for split, metrics in result.get("composition_sums", {}).items():
        for name, sums in metrics.items():
            place = f"composition_sums.{split}.{name}"
            if len(sums) != 2 or len(sums[0]) != len(sums[1]):
                return f"{place} has {' and '.join(str(len(row)) for row in sums)} numbers: expected two equal counts"
            if sum(sums[1]) == 0:
                return f"{place} has denominators whose sum is 0: expected another"
    return None


# the type of each file; what a file with another name holds is not checked here
FILES: dict[str, Any] = {
    "config.json": Parts,
    "split.json": SplitFile,
    "environment.json": EnvironmentFile,
    "checkpoint.json": CheckpointInfo,
    "result.json": ResultFile,
}
