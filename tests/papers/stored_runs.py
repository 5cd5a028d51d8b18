"""Stored runs with chosen numbers, for tests of claims and tables."""

from pathlib import Path

from recombine.training.directory import RunDirectory, hash_config
from recombine.training.score import EVALUATION_VERSION
from recombine_papers.stored import StoredRun

NUM_COMPOSITIONS = 4


def stored_line(record, scores, measured=None, metric="r2_pooled"):
    """What a results file holds of a run whose compositions all have the same score."""
    split_scores = {split: {metric: {"value": value}} for split, value in scores.items()}
    sums = {
        split: {metric: [[value * 10] * NUM_COMPOSITIONS, [10.0] * NUM_COMPOSITIONS]} for split, value in scores.items()
    }
    result = {
        "scores": split_scores,
        "composition_sums": sums,
        "seconds": 1800.0,
        "steps": record.config.training.steps,
        "versions": {"evaluation": EVALUATION_VERSION},
    }
    return {
        "settings": dict(record.settings),
        "seed": record.seed,
        "hash": hash_config(record.config.identity),
        "result": result,
        "certificate": {"covered": True, "connected": True},
        "environment": {"num_threads": 1, "processor": "a CPU", "source_sha256": "0123456789"},
        "interrupted": 1,
        "finished": "2026-11-17",
        "measured": measured or {},
    }


def stored_run(record, scores, measured=None, metric="r2_pooled"):
    """A finished run with one score per split and measured numbers."""
    line = stored_line(record, scores, measured, metric)
    return StoredRun(record, RunDirectory(Path("runs") / line["hash"]), line["measured"], line)
