"""The card of claims: every claim of the papers with our number, its interval, the verdict, the cost and the command.

The card is made from stored results alone (`recombine.recipes.stored`), so that the page, the README and the numbers behind
them cannot disagree.
"""

from __future__ import annotations

import importlib
import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from recombine.recipes.claims import Claim, Verdict, decide
from recombine.recipes.comparison import cell
from recombine.recipes.experiment import Experiment, Finished, matches
from recombine.recipes.record import Record
from recombine.recipes.stored import StoredRun, read_results, results_path
from recombine.run import RunConfig
from recombine.seeds import SeedScore
from recombine.store import hash_config
from recombine.tables import Column, Table, format_value
from recombine.tasks.base import SCALES, Scale

Estimate = Callable[[RunConfig], float | None]  # core-hours of a run, if known
VERDICTS: tuple[Verdict, ...] = ("seen", "seen in part", "not seen", "refuted", "not run")


@dataclass(frozen=True, kw_only=True)
class CardRow:
    """One claim with what decides on it."""

    experiment: Experiment
    scale: Scale
    claim: Claim
    verdict: Verdict
    number: SeedScore | None
    core_hours: float  # of the runs that the claim is about, all seeds
    missing: int  # runs that the claim is about and that have not been made
    missing_hours: float | None  # what they would cost, if known
    answer: str = ""  # of the experiment, by the runs of this scale

    @property
    def paper(self) -> str:
        return paper_of(self.experiment)

    @property
    def command(self) -> str:
        return f"recombine reproduce {self.experiment.name} --scale {self.scale}"


def paper_of(experiment: Experiment) -> str:
    """The title of the paper that an experiment belongs to: the first line of its folder's docstring."""
    folder = importlib.import_module(type(experiment).__module__.rpartition(".")[0])
    return (folder.__doc__ or "").partition(": runs")[0]


@dataclass(frozen=True, kw_only=True)
class Statement:
    """One statement: the row that decides, and those of further settings."""

    decisive: CardRow
    further: tuple[CardRow, ...]


def list_statements(rows: Iterable[CardRow]) -> list[Statement]:
    """Rows with the same text together. The first that has been run decides, in the order of the claims."""
    groups: dict[tuple[str, str], list[CardRow]] = {}
    for row in rows:
        groups.setdefault((row.experiment.name, row.claim.text), []).append(row)
    statements = []
    for members in groups.values():
        decisive = next((row for row in members if row.number is not None), members[0])
        statements.append(Statement(decisive=decisive, further=tuple(row for row in members if row is not decisive)))
    return statements


def build_card(
    experiments: Iterable[Experiment], folder: Path, estimate: Estimate = lambda config: None
) -> list[CardRow]:
    """A row for every claim of the experiments: at the largest scale with results, else at the default scale."""
    return [row for experiment in experiments for row in build_rows(experiment, folder, estimate)]


def build_rows(experiment: Experiment, folder: Path, estimate: Estimate) -> Iterator[CardRow]:
    scales = [scale for scale in SCALES[::-1] if results_path(folder, experiment, scale).exists()]
    stored = {scale: read_results(folder, experiment, scale) for scale in scales}
    planned = {scale: list_hashes(experiment, scale) for scale in {*scales, experiment.default_scale}}
    answers = {scale: experiment.answer(runs) if runs.runs else "" for scale, runs in stored.items()}
    for claim in experiment.claims:
        rows = (_decide(experiment, scale, claim, runs, planned[scale], estimate) for scale, runs in stored.items())
        decided = [replace(row, answer=answers[row.scale]) for row in rows if row.number]
        scale = experiment.default_scale
        yield decided[0] if decided else _decide(experiment, scale, claim, Finished(()), planned[scale], estimate)


def list_hashes(experiment: Experiment, scale: Scale) -> list[tuple[Record, str]]:
    """The records of an experiment with the hashes of their runs."""
    return [(record, hash_config(record.config.identity)) for record in experiment.records(scale)]


def _decide(
    experiment: Experiment,
    scale: Scale,
    claim: Claim,
    finished: Finished,
    planned: Sequence[tuple[Record, str]],
    estimate: Estimate,
) -> CardRow:
    verdict, number = decide(claim, experiment, finished) if finished.runs else ("not run", None)
    done = {hash_config(run.record.config.identity): run for run in finished.runs if isinstance(run, StoredRun)}
    concerned = {name: record for record, name in planned if is_concerned(claim, record)}
    hours = [estimate(record.config) for name, record in concerned.items() if name not in done]
    return CardRow(
        experiment=experiment,
        scale=scale,
        claim=claim,
        verdict=verdict,
        number=number,
        core_hours=math.fsum(done[name].core_hours for name in concerned.keys() & done.keys()),
        missing=len(hours),
        missing_hours=None if None in hours else sum((hour for hour in hours if hour is not None), 0.0),
    )


def is_concerned(claim: Claim, record: Record) -> bool:
    """Whether a claim is about a record: it has the settings that the claim names, or the claim names none."""
    variants = [value for value in vars(claim).values() if isinstance(value, Mapping)]
    return not variants or any(matches(record.settings, variant) for variant in variants)


def tabulate_card(rows: Sequence[CardRow]) -> Table:
    """The card for the command line."""
    return Table(
        title="Claims of the papers",
        columns=(
            Column(name="claim", wrap=True),
            "verdict",
            "ours",
            "paper",
            "seeds",
            Column(name="bound", wrap=True),
            Column(name="core-hours", format="fixed", digits=2),
            "experiment",
        ),
        rows=tuple(
            (
                row.claim.title,
                row.verdict,
                cell(row.number),
                row.claim.published,
                None if row.number is None else row.number.num_seeds,
                row.claim.bound,
                row.core_hours,
                f"{row.experiment.name} ({row.scale})",
            )
            for row in rows
        ),
        note=f"{count_verdicts(rows)}\nin brackets: 95 % intervals, with three seeds or more over seeds and compositions; "
        "with two seeds, both values",
    )


def count_verdicts(rows: Sequence[CardRow]) -> str:
    """How many claims have each verdict, in words."""
    counts = Counter(row.verdict for row in rows)
    return ", ".join(f"{counts[verdict]} {verdict}" for verdict in VERDICTS if counts[verdict])


def show_number(number: SeedScore | None) -> str:
    """A number with its interval as text."""
    return format_value(cell(number), Column(name=""))
