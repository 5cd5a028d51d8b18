"""Language modelling: softmax, linear and hypernetwork attention on text (Attention as a Hypernetwork, section 5, figure 6).

The paper trains 50M parameters on 130 billion tokens of C4 and finds that HYLA is better than linear attention and close to
softmax attention. At `small`, 2.2 million parameters learn from the standard library of Python in 23 minutes or more on one
thread: enough to compare the kinds of attention, not to repeat the paper's numbers. `paper` has the paper's sizes; give it
the paper's text with a configuration of your own (`--dataset allenai/c4:en` of `recombine train`).

The figure has no numbers to compare with, so the bounds are ours: 0.02 bits per byte, about 4 % of perplexity per token, is a
lead, and 0.05 is close.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from recombine.foundation import Cell, Table, Value
from recombine.sweeps import Record
from recombine.tasks import ATTENTION_COLOURS, QUIET, Language, Scale, canvas
from recombine.training import RunConfig, default_run
from recombine_papers.base import (
    Finished,
    Group,
    cell,
    difference_to_baseline,
    explain_intervals,
    score_group,
    spread,
    tabulate_groups,
)
from recombine_papers.claims import Difference, Lead, Untested
from recombine_papers.experiment import PaperExperiment, SeededExperiment
from recombine_papers.hypernetwork.fuzzy_logic import ATTENTIONS, change_model
from recombine_papers.learning_curves import NAMES

SMALL_TASK: dict[str, Any] = {
    "tokenizer": "sentencepiece",
    "vocabulary": 2048,
    "context_length": 256,
    "recall_fraction": 0.2,  # recall is learned late: with 16 pairs and two such rows per step, not in 1,200 steps
    "num_pairs": 8,
}
SMALL_MODEL: dict[str, Any] = {
    "num_layers": 4,
    "embedding_dim": 192,
    "kqv_dim": 192,
    "mlp_dim": 768,
    "num_heads": 6,
    "feedforward": "mlp",
    "position": "rotary",
}
SMALL_TRAINING: dict[str, Any] = {
    "steps": 2_600,
    "batch_size": 8,
    "learning_rate": 3e-3,
    "warmup_steps": 100,
    "gradient_clip": 1.0,
    "precision": "float32",
}
LEAD = CLOSE = 0.02  # bits per byte
RECALL_LEAD, GRAMMAR_CLOSE = 0.1, 0.1  # fraction of right answers
FIGURE = "figure 6"
SOFTMAX, LINEAR, HYLA = ({"attention": attention} for attention in ("softmax", "linear", "hyla"))
CLAIMS = (
    Lead(
        text="softmax attention is better than linear attention", source=FIGURE, better=SOFTMAX, worse=LINEAR, by=LEAD
    ),
    Lead(text="HYLA is better than linear attention", source=FIGURE, better=HYLA, worse=LINEAR, by=LEAD),
    Difference(
        text="HYLA is close to softmax attention", source=FIGURE, first=HYLA, second=SOFTMAX, low=-CLOSE, high=CLOSE
    ),
    *(
        Untested(
            text=f"with 50 million parameters and 130 billion tokens of C4, {statement}",
            source="section 5, figure 6",
            needs="the text, and 72 to 100 hours on 16 TPU v5e for each attention (appendix D.1)",
            of={"parameters": 50_000_000},
        )
        for statement in ("HYLA is better than linear attention", "HYLA is close to softmax attention")
    ),
    *(
        Lead(
            text=f"{name} recalls better in context than linear attention",
            source="our question",
            better=better,
            worse=LINEAR,
            by=RECALL_LEAD,
            split="recall",
            metric="accuracy",
            ours=True,
        )
        for name, better in (("softmax attention", SOFTMAX), ("HYLA", HYLA))
    ),
    Difference(
        text="HYLA and softmax attention recombine the grammar equally well",
        source="our question",
        first=HYLA,
        second=SOFTMAX,
        low=-GRAMMAR_CLOSE,
        high=GRAMMAR_CLOSE,
        split="ood",
        metric="accuracy",
        ours=True,
    ),
)


def base_run(scale: Scale) -> RunConfig:
    """The run of a scale; at `small`, one that a CPU trains in minutes."""
    run = default_run("language", scale)
    if scale != "small":
        return run
    return RunConfig(
        task=replace(run.task, **SMALL_TASK),
        model=replace(run.model, **SMALL_MODEL),
        training=replace(run.training, **SMALL_TRAINING),
    )


class LanguageModelling(SeededExperiment):
    """Figure 6 of the paper, with the recall and grammar scores that may explain it."""

    name = "language"
    core_hours = (0.018, 3, None)
    question = "How close do linear and hypernetwork attention come to softmax attention on text?"
    metric = "bits_per_byte"
    split = "text"
    compared = "attention"
    claims = CLAIMS
    differs = (
        "2.2 million parameters instead of 50, 5 million tokens of Python's standard library instead of 130 billion of C4; "
        "rate 3e-3 instead of the best of a grid."
    )

    def count_seeds(self, scale: Scale) -> int:
        return 2 if scale == "small" else 1

    def variants(self, scale: Scale) -> Iterator[Record]:
        for attention in ATTENTIONS:
            config = change_model(base_run(scale), attention=attention)
            yield Record(settings={"attention": attention}, config=config)

    def tables(self, finished: Finished, device: str) -> list[Table]:
        return [*super().tables(finished, device), tabulate_probes(finished)]

    def summarise(self, finished: Finished) -> Table:
        return tabulate_text(self, finished)

    def figures(self, finished: Finished, folder: Path) -> list[Path]:
        return [draw_curves(finished, folder / "language.png")]


def tabulate_text(experiment: PaperExperiment, finished: Finished) -> Table:
    """Bits per byte, cross-entropy and perplexity on held-out documents."""

    def list_cells(group: Group) -> list[Value]:
        loss = group.score("text", "loss")
        value, low, high = map(math.exp, (loss.value, loss.low, loss.high))
        pair = None if loss.pair is None else (math.exp(loss.pair[0]), math.exp(loss.pair[1]))
        return [
            len(group.runs),
            cell(score_group(experiment, group)),
            cell(difference_to_baseline(experiment, finished.groups, group)),
            cell(loss),
            Cell(value=value, low=low, high=high, pair=pair),
            spread(group.scores("text", "accuracy")),
            group.minutes / len(group.runs),
        ]

    names = ("seeds", "bits per byte", "above softmax", "cross-entropy", "perplexity", "accuracy", "minutes per run")
    note = f"{explain_intervals(finished.groups, 'documents')}; accuracy: lowest and highest seed"
    return tabulate_groups(finished, "Held-out documents", names, list_cells, note)


def tabulate_probes(finished: Finished) -> Table:
    """In-context recall, and the grammar with trained and held-out pairs."""
    columns = {
        "recall": ("recall", "accuracy"),
        "grammar, trained pairs": ("test", "accuracy"),
        "grammar, held-out pairs": ("ood", "accuracy"),
        "held-out pairs, per token": ("ood", "token_accuracy"),
    }
    return tabulate_groups(
        finished,
        "In-context recall and grammar: fraction of right answers",
        tuple(columns),
        lambda group: [spread(group.scores(*score)) for score in columns.values()],
        "means over seeds, in brackets the lowest and the highest",
    )


PANELS = {
    ("text", "bits_per_byte"): "bits per byte, held-out text",
    ("recall", "accuracy"): "in-context recall",
    ("test", "accuracy"): "grammar, trained pairs",
    ("ood", "accuracy"): "grammar, held-out pairs",
}


def draw_curves(finished: Finished, path: Path) -> Path:
    """Scores over training steps, one line per seed; for recall also the score of a guess among the values of the row."""
    with canvas(path, 11, 3) as figure:
        panels = figure.subplots(1, len(PANELS))
        for axes, ((split, metric), title) in zip(panels, PANELS.items(), strict=True):
            for group in finished.groups:
                attention = str(group.settings["attention"])
                for number, run in enumerate(group.runs):
                    curve = run.scores_by_step(split, metric)
                    axes.plot(
                        list(curve),
                        list(curve.values()),
                        color=ATTENTION_COLOURS[attention],
                        linestyle="-" if number == 0 else "--",
                        marker="o",
                        markersize=3,
                        label=NAMES[attention] if number == 0 else None,
                    )
            axes.set(title=title, xlabel="step")
            if metric == "accuracy":
                axes.set_ylim(-0.03, 1.03)
            if split == "recall":
                task = finished.runs[0].record.config.task
                assert isinstance(task, Language)
                axes.axhline(1 / task.num_pairs, color=QUIET, linestyle=":")
        panels[0].legend()
    return path
