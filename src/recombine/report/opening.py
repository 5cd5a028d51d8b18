"""The top of the page: what is asked, an instance as an example, and the answer as a picture.

The page is for people who have not read the paper, so every term is explained where it stands (`TERMS`, shown on hover).
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from markupsafe import Markup

from recombine.report.runs import ReportRun
from recombine.tasks import Task
from recombine.tasks.sampling import SPLIT_MEANINGS

TERMS = {
    "module": "A part that instances are made of, such as a rule of a puzzle or a term of a function.",
    "composition": "The set of modules that makes an instance together.",
    "held-out": "Consisting of modules that were all trained, but never trained together.",
    "seen": "Trained, and scored on new instances.",
    "chance": "The score of the best answer that ignores the input.",
    "ceiling": "The best score that any predictor can have. It is below a perfect score where instances are ambiguous.",
    "interval": "95 % interval: what to expect if the compositions were drawn again, and with several seeds the seeds too.",
    "latent code": "The attention scores of all heads for one pair of query and key.",
    "decoder": "A linear classifier or regression from activations to modules, fitted on seen compositions.",
    "purity": "Share of the ten nearest neighbours of a code with the same target or module.",
    "verdict": "Why the network does or does not recombine what it learned, from fixed thresholds on measured numbers.",
    "R²": "1 for a perfect prediction, 0 for predicting the mean: the mean over outputs of 1 − squared error / variance.",
    "R² pooled": "As R², with squared errors and variances summed before dividing.",
}


def explain(word: str, shown: str | None = None) -> Markup:
    """A word that is explained on hover."""
    return Markup('<abbr class="term" tabindex="0" title="{}">{}</abbr>').format(TERMS[word], shown or word)


@dataclass(frozen=True, kw_only=True)
class Example:
    """An instance of a held-out composition."""

    task: str
    summary: str
    held_out: str  # what the split `ood` holds, if not just held-out compositions of trained modules
    picture: Markup
    composition: tuple[str, ...]
    joined_by: str


def make_example(runs: Sequence[ReportRun]) -> Example | None:
    """The first held-out instance of the task that all runs have; None if there is no such task."""
    names = {run.directory.config.get("task", {}).get("name") for run in runs}
    task = next((run.task for run in runs if run.task is not None), None)
    if len(names) != 1 or task is None:
        return None
    try:
        return _draw(task)
    except Exception:  # an error in a task must not prevent the report
        return None


def _draw(task: Task) -> Example:
    batch = task.sample("ood", 0, batch_size=1)
    best = task.best_predictions(batch, split="ood", metric=task.headline)
    card = task.card(batch, 0, task.judge(best, batch)[0][0])
    return Example(
        task=task.name.replace("_", " "),
        summary=re.sub(r" \([A-Z]{2}\b[^)]*\)", "", task.summary[:1].lower() + task.summary[1:].rstrip(".")),
        held_out="" if task.split_meaning("ood") == SPLIT_MEANINGS["ood"] else task.split_meaning("ood"),
        picture=card.picture,
        composition=card.composition[:12],
        joined_by=card.joined_by,
    )
