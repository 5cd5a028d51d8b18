"""Runs of a report: read from their directories, labelled by the settings that differ, compared by their intervals.

Runs that differ in their random seed alone: their mean scores, and how far the best are apart.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

from recombine.foundation.errors import InputError
from recombine.models.base import Code
from recombine.tasks.base import Task
from recombine.training import intervals
from recombine.training.benchmark import load_config
from recombine.training.comparison import SEEDS, differing_settings, label_settings, order_runs
from recombine.training.directory import RunDirectory, find_runs, hash_config
from recombine.training.intervals import Difference, SeedScore, compare_seeds, score_results
from recombine.training.schema import Json
from recombine.training.score import Score

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

    def find_title(
        self, what: Literal["metrics", "splits"], name: str, key: Literal["title", "meaning"] = "title"
    ) -> str | None:
        """What its task calls a metric or a split, or what it says about it."""
        described = self.result.get(what)
        found = described.get(name) if isinstance(described, dict) else None
        text = found.get(key) if isinstance(found, dict) else None
        return text if isinstance(text, str) else None

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
    def metrics(self) -> list[Json]:
        rows = self.directory.read_metrics()
        if not all(isinstance(row, dict) and {"step", "loss"} <= row.keys() for row in rows):
            raise InputError(
                f"{self.directory.path / 'metrics.jsonl'} lacks a step or loss: expected both in each line"
            )
        return rows

    @cached_property
    def scores(self) -> dict[str, dict[str, Score]]:
        """Scores of the result; for an unfinished run the last ones, without interval, chance or ceiling."""
        found: Json = self.result.get("scores") or next(
            (row["scores"] for row in self.metrics[::-1] if "scores" in row), {}
        )
        try:
            return {split: {name: _score(each) for name, each in metrics.items()} for split, metrics in found.items()}
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise InputError(
                f"{self.directory.path} has scores that cannot be read ({error}): expected numbers"
            ) from None

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
        return _thin([(row["step"], row["loss"]) for row in self.metrics])

    def score_curve(self, split: str, metric: str) -> Curve:
        rows = [(row["step"], row.get("scores", {}).get(split, {}).get(metric)) for row in self.metrics]
        return _thin([(step, value) for step, value in rows if value is not None])


def _score(found: Json | float) -> Score:
    if not isinstance(found, dict):
        return Score(value=float(found), low=math.nan, high=math.nan)
    chance, ceiling = (None if found.get(key) is None else float(found[key]) for key in ("chance", "ceiling"))
    value, low, high = (float(found[key]) for key in ("value", "low", "high"))
    return Score(value=value, low=low, high=high, chance=chance, ceiling=ceiling)


def _thin(points: list[tuple[int, Any]]) -> Curve:
    """The points as two columns, evenly thinned out if there are too many; the last one is kept."""
    kept = points[:: -(len(points) // MAX_POINTS + 1)][::-1]
    return [step for step, _ in kept], [float(value) for _, value in kept]


def read_runs(paths: Sequence[Path], code: Sequence[Code] = ()) -> list[ReportRun]:
    """Open each run once, and label it by the settings that differ, if these are few and distinguish the runs."""
    directories = [run for path in paths for run in open_runs(Path(path))]
    directories = list({run.path.resolve(): run for run in directories}.values())
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


def open_runs(path: Path) -> list[RunDirectory]:
    """A run, or the runs in a folder, by their settings."""
    runs = [] if (path / "config.json").exists() or not path.is_dir() else find_runs(path)
    return order_runs(runs) or [RunDirectory.open(path)]


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """Finished runs by their score on held-out compositions, best first, and what their intervals support."""

    metric: str
    ranked: list[tuple[ReportRun, Score]]
    tied: list[ReportRun]  # the interval meets that of the best
    lead: Difference | None  # of the best over the next, paired, if both were scored on the same instances
    above_chance: list[ReportRun]  # with the whole interval


def compare(runs: Sequence[ReportRun], metric: str) -> Comparison:
    pairs = [(run, score) for run in runs if run.result and (score := run.score("ood", metric))]
    ranked = [(run, score) for run, score in pairs if math.isfinite(score.value)]
    ranked.sort(key=lambda pair: pair[1].value * (-1 if falls(pair[1]) else 1), reverse=True)
    best = ranked[0][1] if ranked else None
    return Comparison(
        metric=metric,
        ranked=ranked,
        lead=paired_lead(ranked, metric),
        tied=[run for run, each in ranked[1:] if best and not (each.high < best.low or each.low > best.high)],
        above_chance=[run for run, each in ranked if all((reach(each, end) or 0) > 0 for end in (each.low, each.high))],
    )


def paired_lead(ranked: Sequence[tuple[ReportRun, Score]], metric: str) -> Difference | None:
    """The paired difference between the best run and the next on held-out compositions."""
    results = [run.result for run, _ in ranked[:2]]
    same = ("task", "split_sha256", "evaluation_instances")
    if len(results) < 2 or any(results[0].get(name) != results[1].get(name) for name in same):
        return None
    sums = [result.get("composition_sums", {}).get("ood", {}).get(metric) for result in results]
    try:
        return intervals.compare(*sums) if all(sums) else None
    except InputError:  # scored on different instances, for instance with another teacher
        return None


def falls(score: Score) -> bool:
    """Whether lower is better, as for an error."""
    return score.chance is not None and score.ceiling is not None and score.ceiling < score.chance


def reach(score: Score, value: float) -> float | None:
    """The position of a value between chance (0) and ceiling (1), if both are known and differ."""
    if score.chance is None or score.ceiling is None or score.chance == score.ceiling:
        return None
    return (value - score.chance) / (score.ceiling - score.chance)


def metrics_of(runs: Sequence[ReportRun]) -> list[str]:
    """Every metric of any run; the headline metric first."""
    return list(dict.fromkeys(metric for run in runs for metrics in run.scores.values() for metric in metrics))


def splits_of(runs: Sequence[ReportRun]) -> list[str]:
    """Every split of any run; held-out compositions first."""
    return sorted(dict.fromkeys(split for run in runs for split in run.scores), key=lambda split: split != "ood")


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


Shown = ReportRun | RunGroup  # what a figure of scores shows


def seed_lead(groups: Sequence[RunGroup], metric: str) -> SeedScore | None:
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
            members.setdefault(hash_config(_without_seeds(run.directory.config)), []).append(run)
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
    lower_is_better = falls(score) if (score := groups[0].runs[0].score("ood", metric)) else False
    return sorted(groups, key=lambda group: group.held_out.value, reverse=not lower_is_better)


def _without_seeds(config: Json) -> Json:
    return {
        part: {key: value for key, value in settings.items() if f"{part}.{key}" not in SEEDS}
        for part, settings in config.items()
        if isinstance(settings, dict)
    }
