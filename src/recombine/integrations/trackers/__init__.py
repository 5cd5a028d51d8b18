"""Experiment trackers by name. Each is one small adapter, and each package is an extra of the same name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, get_args

from recombine.foundation.errors import check_choice, import_extra
from recombine.training.run import Tracker
from recombine.training.schema import MetricsRow

TrackerName = Literal["tensorboard", "wandb", "mlflow"]


def build_tracker(name: str) -> Tracker:
    """The adapter for a tracker; its package must be installed."""
    check_choice("tracker", name, get_args(TrackerName))
    import_extra(name, extra=name, user=f"tracker {name!r}")
    if name == "tensorboard":
        from recombine.integrations.trackers.tensorboard_tracker import build
    elif name == "wandb":
        from recombine.integrations.trackers.wandb_tracker import build
    else:
        from recombine.integrations.trackers.mlflow_tracker import build
    return build()


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
