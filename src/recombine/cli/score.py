"""recombine score TASK FILE...: score predictions for exported instances, whichever program made them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from recombine.cli.flags import TaskOptions, parse_task, score_table
from recombine.cli.main import Argument
from recombine.integrations.exchange.predictions import ScoredPredictions, read_predictions, score_predictions
from recombine.tasks.text import Parser
from recombine.training.score import describe_splits


@dataclass(frozen=True, kw_only=True)
class ScoreOptions(TaskOptions):
    """How predictions are read. The task flags must be those of the export."""

    examples = (
        "recombine score sraven predictions.parquet",
        "recombine score fuzzy-logic predictions.npz --scale tiny --json",
    )

    files: Annotated[tuple[Path, ...], Argument(metavar="FILE", positional=True)]
    """Predictions for the rows that `recombine export` wrote: .parquet, .csv, .jsonl or .npz."""
    parser: Parser = "lenient"
    """How answers are read from text: the response is the answer (strict), or contains it (lenient)."""


def run(argv: list[str]) -> None:
    task, options = parse_task(ScoreOptions, argv, verb="score")
    files = [str(path) for path in options.files]
    scored = score_predictions(task, read_predictions(*files, parser=options.parser), parser=options.parser)
    value = {"files": files, **scored.as_dict()}
    table = score_table(value["scores"], task.name, metrics=value["metrics"], splits=describe_splits(task))
    options.show(value, table, *describe_answers(scored), *describe_verdict(scored))


def describe_answers(scored: ScoredPredictions) -> list[str]:
    """How many responses had no readable answer."""
    if scored.unparsed is None:
        return []
    counts = (f"{count} of {scored.num_instances[split]} ({split})" for split, count in scored.unparsed.items())
    return [f"Responses without a readable answer, which count as wrong: {', '.join(counts)}."]


def describe_verdict(scored: ScoredPredictions) -> list[str]:
    """The verdict in words."""
    if scored.verdict is None:
        splits = ", ".join(scored.scores)
        return [f"No verdict: it needs predictions for test and ood, and the file has {splits}."]
    verdict = scored.verdict
    words = [f"{verdict.verdict.upper()}\n{verdict.sentence}"]
    others = [name for name in verdict.possible if name != verdict.verdict]
    if others:
        words.append(f"It could also be: {', '.join(others)}.")
    return words
