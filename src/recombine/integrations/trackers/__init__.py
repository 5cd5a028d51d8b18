"""Experiment trackers by name. Each is one small adapter, and each package is an extra of the same name."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from importlib.util import find_spec
from typing import Any, Literal, get_args

from recombine.errors import InputError, check_choice
from recombine.run.tracking import Tracker
from recombine.store import MetricsRow

TrackerName = Literal["tensorboard", "wandb", "mlflow"]


def build_tracker(name: str) -> Tracker:
    """The adapter for a tracker; its package must be installed."""
    check_choice("tracker", name, get_args(TrackerName))
    if find_spec(name) is None:
        raise InputError(f"tracker {name!r} needs the package {name}: pip install 'recombine[{name}]'")
    return import_module(f"recombine.integrations.trackers.{name}_tracker").build()


def flatten_row(row: MetricsRow) -> dict[str, float]:
    """A row of `metrics.jsonl` as numbers with flat names: loss, learning_rate, seconds, ood/accuracy."""
    numbers: dict[str, Any] = {name: value for name, value in row.items() if name not in ("step", "scores")}
    for split, metrics in row.get("scores", {}).items():
        numbers |= {f"{split}/{metric}": value for metric, value in metrics.items()}
    return numbers


def flatten_settings(config: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of `config.json` with flat names, such as task/seed."""
    parts = ("task", "model", "training")
    return {f"{part}/{name}": value for part in parts for name, value in config[part].items()}


def flatten_scores(scores: Mapping[str, Mapping[str, Any]]) -> dict[str, float]:
    """The scores of `result.json` with flat names, such as final/ood/accuracy."""
    return {
        f"final/{split}/{metric}": score["value"]
        for split, metrics in scores.items()
        for metric, score in metrics.items()
    }
