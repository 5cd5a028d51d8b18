"""Stored runs with chosen numbers, and a small experiment that has such runs, for tests of claims, tables and the card."""

from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

from recombine.sweeps import Record
from recombine.training.config import default_run
from recombine.training.directory import RunDirectory, hash_config
from recombine.training.score import EVALUATION_VERSION
from recombine_papers import Lead, PaperExperiment
from recombine_papers.stored import StoredRun, write_results

NUM_COMPOSITIONS = 4
WIDE, NARROW = {"width": 512}, {"width": 16}


def stored_line(record, scores, measured=None, metric="r2_pooled"):
    """The line of a results file for a run whose compositions all have the same score."""
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


class Widths(PaperExperiment):
    """Two widths with two seeds, and one more at scale `small`."""

    name = "miniature"
    question = "Do wider networks recombine better?"
    metric = "r2_pooled"
    default_scale = "tiny"
    paper = "a paper"
    claims: ClassVar[tuple[Any, ...]] = (
        Lead(text="wide beats narrow", source="us", better=WIDE, worse=NARROW, by=0.1, published=0.3),
    )

    def records(self, scale):
        for seed in (0, 1):
            for width in (16, 512, 64) if scale == "small" else (16, 512):
                run: Any = default_run("hyperteacher", scale)
                config = replace(run, model=replace(run.model, hidden_dim=width))
                yield Record(settings={"width": width}, config=config).with_seed(seed)


def build_world(wide=0.9, narrow=0.5, measured=None):
    """Records of `Widths` with scores and measured numbers."""
    scores = {512: wide, 16: narrow}
    return [
        (record, {"test": 0.95, "ood": scores[record.settings["width"]]}, (measured or (lambda _: {}))(record))
        for record in Widths().records("tiny")
    ]


def write_world(folder, **world):
    write_results(folder, Widths(), "tiny", [stored_line(*parts) for parts in build_world(**world)])
