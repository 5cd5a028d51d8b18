"""Compare runs: the settings in which they differ, labels made of these, and paired differences of finished runs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from recombine.foundation.errors import InputError
from recombine.training.directory import RunDirectory
from recombine.training.intervals import compare
from recombine.training.schema import Json

SEEDS = ("task.seed", "training.model_seed")


def order_runs(runs: Sequence[RunDirectory]) -> list[RunDirectory]:
    """Runs by their settings, seeds last, so that similar runs are neighbours; their names end with a hash."""

    def place(value: Any) -> tuple[bool, float, str]:  # numbers by their size, before everything else by its text
        return (False, float(value), "") if isinstance(value, int | float) else (True, 0.0, str(value))

    pairs = zip(differing_settings(runs), runs, strict=True)
    return [run for _, run in sorted(pairs, key=lambda pair: list(map(place, pair[0].values())))]


def differing_settings(runs: Sequence[RunDirectory]) -> list[Json]:
    """The settings of each run that are not the same in all runs: names first, then numbers, then seeds."""
    flat = [
        {f"{part}.{key}": value for part, fields in run.config.items() for key, value in fields.items()} for run in runs
    ]
    keys = [
        key
        for key in dict.fromkeys(key for settings in flat for key in settings)
        if len({str(settings.get(key)) for settings in flat}) > 1
    ]
    keys.sort(key=lambda key: (key in SEEDS, not isinstance(flat[0].get(key), str)))
    return [{key: settings.get(key) for key in keys} for settings in flat]


def label_settings(settings: Sequence[Json]) -> list[str]:
    """A label for each run: of the settings that all runs have, those that are needed to tell the runs apart."""
    shared = [key for key in settings[0] if all(row[key] is not None for row in settings)]
    labels = [""] * len(settings)
    for key in shared:
        words = [row[key] if isinstance(row[key], str) else f"{key.split('.')[-1]} {row[key]}" for row in settings]
        pairs = zip(labels, words, strict=True)
        longer = [" · ".join(filter(None, (label, text.replace("_", " ")))) for label, text in pairs]
        if len(set(longer)) > len(set(labels)):
            labels = longer
    return labels


def read_result(run: RunDirectory) -> Json:
    """The result of a finished run."""
    if not run.finished:
        raise InputError(f"{run.path} has no result.json: expected a finished run")
    return run.read_json("result.json", complete=True)


def compare_results(first: Json, second: Json) -> list[Json]:
    """The paired difference of every metric and split that both results have."""
    needed = {"task": "tasks", "split_sha256": "splits", "evaluation_instances": "numbers of instances"}
    for name, words in needed.items():
        if first[name] != second[name]:
            shown = " and ".join(str(result[name])[:12] for result in (first, second))
            raise InputError(
                f"the runs have different {words} ({shown}): expected two runs that were scored on the same instances, "
                "with the same task, settings and seed"
            )
    rows = []
    for split, metrics in first["composition_sums"].items():
        for metric in (name for name in metrics if name in second["composition_sums"].get(split, {})):
            difference = compare(metrics[metric], second["composition_sums"][split][metric])
            scores = [result["scores"][split][metric]["value"] for result in (first, second)]
            upward = first["metrics"][metric]["higher_is_better"]
            winner = "first" if (difference.value > 0) == upward else "second"
            row = {"split": split, "metric": metric, "first": scores[0], "second": scores[1]}
            row |= {"difference": asdict(difference), "better": winner if difference.is_significant else None}
            rows.append(row)
    return rows
