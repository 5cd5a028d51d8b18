"""Runs that differ in their random seed alone: their mean scores, and how far the best are apart."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from recombine.errors import InputError
from recombine.evaluate import Score
from recombine.report.runs import SEEDS, ReportRun, differing_settings, falls, label_settings
from recombine.seeds import SeedScore, compare_seeds, score_results
from recombine.store import Json, hash_config


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
