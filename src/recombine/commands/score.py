"""recombine score TASK FILE: score predictions for exported instances, whichever program made them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from recombine.commands.console import score_table
from recombine.commands.flags import TaskOptions, parse_task
from recombine.errors import InputError
from recombine.exchange import ScoredPredictions, read_predictions, score_predictions


@dataclass(frozen=True, kw_only=True)
class ScoreOptions(TaskOptions):
    """How predictions are read. The task flags must be those of the export."""


def run(argv: list[str]) -> None:
    names = [argument for argument in argv[:2] if not argument.startswith("-")]
    if len(names) == 1 and not {"-h", "--help"} & set(argv):
        raise InputError(
            f"score {argv[0]} names no file: expected `recombine score TASK FILE`, with predictions for the rows that "
            "`recombine export` wrote"
        )
    flags = [argv[0], *argv[2:]] if len(names) == 2 else argv
    task, options = parse_task(ScoreOptions, flags, verb="score")
    scored = score_predictions(task, read_predictions(Path(argv[1])))
    value = {"file": argv[1], **scored.as_dict()}
    covered = task.split.certificate.min_coverage > 0
    table = score_table(value["scores"], f"{task.name} · {argv[1]}", covered=covered, metrics=value["metrics"])
    options.show(value, table, *describe_verdict(scored))


def describe_verdict(scored: ScoredPredictions) -> list[str]:
    """The verdict in words."""
    if scored.verdict is None:
        found = ", ".join(scored.scores)
        return [f"No verdict: it needs predictions for test and ood, and the file has {found}."]
    verdict = scored.verdict
    words = [f"{verdict.verdict.upper()}\n{verdict.sentence}"]
    others = [each for each in verdict.possible if each != verdict.verdict]
    if others:
        words.append(f"It could also be: {', '.join(others)}.")
    return words
