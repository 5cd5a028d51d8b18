"""Runs as a report sees them: read from their directories, labelled by what differs, compared by their intervals."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from recombine.errors import InputError
from recombine.evaluate import Score
from recombine.registry import Code
from recombine.store import Json, RunDirectory

Curve = tuple[list[int], list[float]]  # steps, values

MAX_POINTS = 1_000  # of a curve: as many as a screen can show


@dataclass(frozen=True, kw_only=True)
class ReportRun:
    """A run as the report sees it; what its directory does not hold yet is empty."""

    directory: RunDirectory
    label: str  # what sets it apart from the other runs of the report
    series: int  # its place in the palette
    code: tuple[Code, ...] = ()  # classes from outside the package that the user named

    def read(self, name: str) -> Json:
        """A file of the run, or an empty object if there is none."""
        return self.directory.read_json(name) if (self.directory.path / name).exists() else {}

    @cached_property
    def result(self) -> Json:
        return self.read("result.json")

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
        """Those of the result; of an unfinished run the last on its way, which have no interval, chance or ceiling."""
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
    """The points as two columns, evenly left out where there are too many; the last one stays."""
    kept = points[:: -(len(points) // MAX_POINTS + 1)][::-1]
    return [step for step, _ in kept], [float(value) for _, value in kept]


def read_runs(paths: Sequence[Path], code: Sequence[Code] = ()) -> list[ReportRun]:
    """Open runs, each once, and label each by the settings that differ, if these are few and tell the runs apart."""
    directories = [RunDirectory.open(path) for path in dict.fromkeys(Path(path).resolve() for path in paths)]
    if not directories:
        raise InputError("no runs to report on: expected at least one run directory")
    labels = [" · ".join(_words(*each) for each in settings.items()) for settings in differing_settings(directories)]
    if len(set(labels)) < len(labels) or not all(0 < len(label) <= 60 for label in labels):
        labels = [run.path.name for run in directories]
    pairs = zip(directories, labels, strict=True)
    return [
        ReportRun(directory=run, label=label, series=number, code=tuple(code))
        for number, (run, label) in enumerate(pairs)
    ]


def differing_settings(runs: Sequence[RunDirectory]) -> list[Json]:
    """Of each run's configuration, the settings that are not the same in all runs: names first, then numbers."""
    flat: list[Json] = []
    for run in runs:
        parts = {part: each if isinstance(each, dict) else {"value": each} for part, each in run.config.items()}
        flat.append({f"{part}.{key}": value for part, each in parts.items() for key, value in each.items()})
    keys = [
        key
        for key in dict.fromkeys(key for each in flat for key in each)
        if len({str(each.get(key)) for each in flat}) > 1
    ]
    keys.sort(key=lambda key: not isinstance(flat[0].get(key), str))
    return [{key: each.get(key) for key in keys} for each in flat]


def _words(key: str, value: Any) -> str:
    return (value if isinstance(value, str) else f"{key.split('.')[-1]} {value}").replace("_", " ")


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """Finished runs by their score on unseen combinations, best first, and what their intervals bear out."""

    metric: str
    ranked: list[tuple[ReportRun, Score]]
    tied: list[ReportRun]  # the interval meets that of the best
    above_chance: list[ReportRun]  # with the whole interval


def compare(runs: Sequence[ReportRun], metric: str) -> Comparison:
    pairs = [(run, score) for run in runs if run.result and (score := run.score("ood", metric))]
    ranked = [(run, score) for run, score in pairs if math.isfinite(score.value)]
    ranked.sort(key=lambda pair: pair[1].value * (-1 if _falls(pair[1]) else 1), reverse=True)
    best = ranked[0][1] if ranked else None
    return Comparison(
        metric=metric,
        ranked=ranked,
        tied=[run for run, each in ranked[1:] if best and not (each.high < best.low or each.low > best.high)],
        above_chance=[run for run, each in ranked if all((reach(each, end) or 0) > 0 for end in (each.low, each.high))],
    )


def _falls(score: Score) -> bool:
    """Whether less is better, as for an error."""
    return score.chance is not None and score.ceiling is not None and score.ceiling < score.chance


def reach(score: Score, value: float) -> float | None:
    """Where a value lies on the way from chance (0) to the ceiling (1), if both are known and differ."""
    if score.chance is None or score.ceiling is None or score.chance == score.ceiling:
        return None
    return (value - score.chance) / (score.ceiling - score.chance)


def metrics_of(runs: Sequence[ReportRun]) -> list[str]:
    """Every metric of any run; the first is the one the answer is about."""
    return list(dict.fromkeys(metric for run in runs for metrics in run.scores.values() for metric in metrics))


def splits_of(runs: Sequence[ReportRun]) -> list[str]:
    """Every split of any run; the one the question is about comes first."""
    return sorted(dict.fromkeys(split for run in runs for split in run.scores), key=lambda split: split != "ood")
