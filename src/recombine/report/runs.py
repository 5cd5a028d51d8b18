"""The runs of a report: read from their directories, labelled by the settings that differ, grouped over random seeds."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

from recombine.foundation.display import format_number
from recombine.foundation.errors import InputError
from recombine.models.base import Code
from recombine.tasks.base import Task
from recombine.tasks.sampling import SPLIT_TITLES
from recombine.training.benchmark import load_config
from recombine.training.comparison import SEEDS, differing_settings, label_settings, order_runs
from recombine.training.directory import RunDirectory, find_runs, hash_config
from recombine.training.intervals import SeedScore, compare_seeds, score_results
from recombine.training.schema import Json, Score

Curve = tuple[list[int], list[float]]  # steps, values

MAX_POINTS = 1_000  # of a curve: as many as a screen can show


@dataclass(frozen=True, kw_only=True)
class ReportRun:
    """A run of the report. What its directory does not contain yet is empty."""

    directory: RunDirectory
    label: str  # distinguishes it from the other runs of the report
    series: int  # index in the palette
    code: tuple[Code, ...] = ()  # classes from outside the package that the user named

    def read(self, name: str) -> Json:
        """A file of the run, or an empty object if there is none."""
        return self.directory.read_json(name) if (self.directory.path / name).exists() else {}

    @cached_property
    def result(self) -> Json:
        return self.read("result.json")

    def describe(
        self, what: Literal["metrics", "splits"], name: str, key: Literal["title", "meaning"] = "title"
    ) -> str | None:
        """The title or meaning of a metric or split according to the run's task."""
        return self.result.get(what, {}).get(name, {}).get(key)

    @cached_property
    def pretrained(self) -> bool:
        """Whether it is a model from elsewhere that was only probed here (`recombine probe-model`)."""
        return self.directory.config.get("model", {}).get("kind") == "pretrained"

    @cached_property
    def environment(self) -> Json:
        return self.read("environment.json")

    @cached_property
    def certificate(self) -> Json:
        return self.read("split.json").get("certificate", {})

    @cached_property
    def metrics(self) -> tuple[list[tuple[int, float]], list[Json], Json]:
        """Steps with their losses, the rows with scores, and the last row."""
        losses: list[tuple[int, float]] = []
        scored: list[Json] = []
        row: Json = {}
        for row in self.directory.iterate_metrics():
            losses.append((row["step"], row["loss"]))
            scored += [row] if "scores" in row else []
        return losses, scored, row

    @cached_property
    def scores(self) -> dict[str, dict[str, Score]]:
        """Scores of the result; for an unfinished run the last ones, without interval, chance or ceiling."""
        found: Json = self.result.get("scores") or next((row["scores"] for row in self.metrics[1][::-1]), {})
        return {split: {name: _score(value) for name, value in metrics.items()} for split, metrics in found.items()}

    def score(self, split: str, metric: str) -> Score | None:
        return self.scores.get(split, {}).get(metric)

    @cached_property
    def task(self) -> Task | None:
        """The task of the run, if its class is part of this package or was named."""
        try:
            return load_config(self.directory, self.code).task
        except (InputError, TypeError, ValueError, KeyError):
            return None

    def loss_curve(self) -> Curve:
        return _downsample(self.metrics[0])

    def score_curve(self, split: str, metric: str) -> Curve:
        rows = [(row["step"], row["scores"].get(split, {}).get(metric)) for row in self.metrics[1]]
        return _downsample([(step, value) for step, value in rows if value is not None])


def _score(found: Json | float) -> Score:
    return Score(**found) if isinstance(found, dict) else Score(value=found, low=math.nan, high=math.nan)


def _downsample(points: list[tuple[int, Any]]) -> Curve:
    """The points as two columns, evenly thinned out if there are too many; the last one is kept."""
    kept = points[:: -(len(points) // MAX_POINTS + 1)][::-1]
    return [step for step, _ in kept], [float(value) for _, value in kept]


def read_runs(paths: Sequence[Path], code: Sequence[Code] = ()) -> list[ReportRun]:
    """Open each run once, and label it by the settings that differ, if these are few and distinguish the runs."""
    opened: list[RunDirectory] = []
    for path in map(Path, paths):
        found = [] if (path / "config.json").exists() or not path.is_dir() else find_runs(path)
        opened += order_runs(found) or [RunDirectory.open(path)]
    directories = list({run.path.resolve(): run for run in opened}.values())
    if not directories:
        raise InputError("no runs to report on: expected at least one run directory")
    labels = label_settings(differing_settings(directories))
    if len(set(labels)) < len(labels) or not all(0 < len(label) <= 60 for label in labels):
        labels = [run.path.name for run in directories]
    pairs = zip(directories, labels, strict=True)
    return [
        ReportRun(directory=run, label=label, series=number, code=tuple(code))
        for number, (run, label) in enumerate(pairs)
    ]


def find_range(score: Score) -> tuple[float, float] | None:
    """Chance and ceiling, if both are known and differ."""
    if score.chance is None or score.ceiling is None or score.chance == score.ceiling:
        return None
    return score.chance, score.ceiling


def is_lower_better(score: Score) -> bool:
    """Whether lower is better, as for an error."""
    ends = find_range(score)
    return ends is not None and ends[1] < ends[0]


def find_position(score: Score, value: float) -> float | None:
    """The position of a value between chance (0) and ceiling (1), if both are known and differ."""
    ends = find_range(score)
    return None if ends is None else (value - ends[0]) / (ends[1] - ends[0])


def list_metrics(runs: Sequence[ReportRun]) -> list[str]:
    """Every metric of any run; the headline metric first."""
    return list(dict.fromkeys(metric for run in runs for metrics in run.scores.values() for metric in metrics))


def list_splits(runs: Sequence[ReportRun]) -> list[str]:
    """Every split of any run; held-out compositions first."""
    return sorted(dict.fromkeys(split for run in runs for split in run.scores), key=lambda split: split != "ood")


def metric_title(metric: str, runs: Iterable[ReportRun] = ()) -> str:
    """The title of a metric according to the tasks of these runs; without runs, its usual title."""
    titles = dict.fromkeys(filter(None, (run.describe("metrics", metric) for run in runs)))
    return " / ".join(titles) or Task.metric(metric).title


def split_title(split: str, runs: Iterable[ReportRun] = ()) -> str:
    """The title of a split according to the tasks of these runs; without runs, its usual title."""
    titles = " / ".join(dict.fromkeys(filter(None, (run.describe("splits", split) for run in runs))))
    title = titles or SPLIT_TITLES.get(split, split.replace("_", " "))
    return title[:1].upper() + title[1:]


def show_number(value: int | float | None) -> str:
    """A number as everywhere on the page; a dash if there is none."""
    return format_number(value) or "–"


@dataclass(frozen=True, kw_only=True)
class RunGroup:
    """Finished runs that differ in their random seed alone, with their mean scores over seeds."""

    label: str
    runs: list[ReportRun]
    held_out: SeedScore
    trained: SeedScore

    @property
    def series(self) -> int:
        return self.runs[0].series

    def score(self, split: str, metric: str) -> Score | None:
        """The mean over seeds with its interval, or of two seeds their values; chance and ceiling of the first run."""
        spread = {"ood": self.held_out, "test": self.trained}.get(split)
        first = self.runs[0].score(split, metric)
        if spread is None or first is None:
            return None
        low, high = spread.pair or (spread.low, spread.high)
        return Score(value=spread.value, low=low, high=high, chance=first.chance, ceiling=first.ceiling)


def compare_groups(groups: Sequence[RunGroup], metric: str) -> SeedScore | None:
    """The paired difference between the best group and the next, if both have runs of the same seeds and instances."""
    if len(groups) < 2:
        return None
    by_split = [{str(run.result.get("split_sha256")): run for run in group.runs} for group in groups[:2]]
    shared = [split for split in by_split[0] if split in by_split[1]]
    if not shared or any(len(runs) != len(group.runs) for runs, group in zip(by_split, groups, strict=False)):
        return None
    sums = [[runs[split].result["composition_sums"]["ood"][metric] for split in shared] for runs in by_split]
    try:
        return compare_seeds(*sums)
    except InputError:  # scored on different instances
        return None


def group_seeds(runs: Sequence[ReportRun], metric: str) -> list[RunGroup]:
    """Runs grouped over seeds, best first; none if no two runs differ in their seed alone."""
    members: dict[str, list[ReportRun]] = {}
    for run in runs:
        sums = run.result.get("composition_sums", {})
        if all(metric in sums.get(split, {}) for split in ("ood", "test")):
            without_seeds = {
                part: {key: value for key, value in settings.items() if f"{part}.{key}" not in SEEDS}
                for part, settings in run.directory.config.items()
            }
            members.setdefault(hash_config(without_seeds), []).append(run)
    if all(len(group) < 2 for group in members.values()):
        return []
    firsts = [group[0].directory for group in members.values()]
    settings = [{key: row[key] for key in row if key not in SEEDS} for row in differing_settings(firsts)]
    labels = label_settings(settings) if len(firsts) > 1 else [""]
    groups = [
        RunGroup(
            label=label or group[0].result["label"].replace("_", " "),
            runs=group,
            held_out=score_results([run.result for run in group], "ood", metric),
            trained=score_results([run.result for run in group], "test", metric),
        )
        for label, group in zip(labels, members.values(), strict=True)
    ]
    lower_is_better = is_lower_better(score) if (score := groups[0].runs[0].score("ood", metric)) else False
    return sorted(groups, key=lambda group: group.held_out.value, reverse=not lower_is_better)
