"""The card of claims: every claim of the papers with our number, its interval, the verdict, the cost and the command.

The card is made from stored results alone (`recombine.recipes.stored`), so that the page, the README and the numbers behind
them cannot disagree.
"""

from __future__ import annotations

import importlib
import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from recombine.recipes.claims import Claim, Verdict, decide
from recombine.recipes.comparison import cell
from recombine.recipes.experiment import Experiment, Finished, matches
from recombine.recipes.record import Record
from recombine.recipes.stored import StoredRun
from recombine.run import RunConfig
from recombine.seeds import SeedScore
from recombine.store import hash_config
from recombine.tables import Column, Table, format_value
from recombine.tasks.base import Scale

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
    unmeasured: int = 0  # seeds whose runs are there but do not have the number
    answer: str = ""  # of the experiment, by the runs of this scale

    @property
    def paper(self) -> str:
        return paper_of(self.experiment)

    @property
    def where(self) -> str:
        """The setting, with the scale if it is not the experiment's default."""
        scale = "" if self.scale == self.experiment.default_scale else f"scale {self.scale}"
        return ", ".join(part for part in (self.claim.where, scale) if part)

    @property
    def command(self) -> str:
        return self.experiment.command(self.scale)


def paper_of(experiment: Experiment) -> str:
    """The title of the paper that an experiment belongs to: the first line of its folder's docstring."""
    folder = importlib.import_module(type(experiment).__module__.rpartition(".")[0])
    return (folder.__doc__ or "").partition(": runs")[0]


@dataclass(frozen=True, kw_only=True)
class Statement:
    """One statement of a paper in all settings in which it is judged: the row that is shown, and the others."""

    first: CardRow
    further: tuple[CardRow, ...]

    @property
    def rows(self) -> tuple[CardRow, ...]:
        return (self.first, *self.further)

    @property
    def verdict(self) -> Verdict:
        """The verdict over all settings that have been run."""
        return combine_verdicts([row.verdict for row in self.rows])


def combine_verdicts(verdicts: Iterable[Verdict]) -> Verdict:
    """One verdict for several settings: what all of them say, else *seen in part* if it is seen in any of them."""
    found = set(verdicts) - {"not run"}
    if len(found) <= 1:
        return found.pop() if found else "not run"
    return "seen in part" if found & {"seen", "seen in part"} else "not seen"


def list_statements(rows: Iterable[CardRow]) -> list[Statement]:
    """Rows of a paper with the same text together, in the order of the claims; the first that has been run is shown."""
    groups: dict[tuple[str, str], list[CardRow]] = {}
    for row in rows:
        groups.setdefault((row.paper, row.claim.text), []).append(row)
    statements = []
    for members in groups.values():
        first = next((row for row in members if row.number is not None), members[0])
        statements.append(Statement(first=first, further=tuple(row for row in members if row is not first)))
    return statements


def build_card(
    experiments: Iterable[Experiment], folder: Path, estimate: Estimate = lambda config: None
) -> list[CardRow]:
    """A row for every claim of the experiments: at the scale with most seeds, the larger one if equal.

    Smaller scales than the default are for a quick look: the bounds of the claims are not meant for them.
    """
    return [row for experiment in experiments for row in build_rows(experiment, folder, estimate)]


def build_rows(experiment: Experiment, folder: Path, estimate: Estimate) -> Iterator[CardRow]:
    stored = {scale: experiment.read(folder, scale) for scale in experiment.judged_scales[::-1]}
    planned = {scale: list_hashes(experiment, scale) for scale in stored}
    answers = {scale: experiment.answer(finished) if finished.runs else "" for scale, finished in stored.items()}
    for claim in experiment.claims:
        rows = {
            scale: _decide(experiment, scale, claim, finished, planned[scale], estimate)
            for scale, finished in stored.items()
        }
        decided = [replace(row, answer=answers[row.scale]) for row in rows.values() if row.number is not None]
        yield max(decided, key=count_seeds) if decided else rows[experiment.default_scale]


def count_seeds(row: CardRow) -> int:
    return 0 if row.number is None else row.number.num_seeds


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
    verdict, number = decide(claim, experiment, finished) if finished else ("not run", None)
    done = {hash_config(run.record.config.identity): run for run in finished.runs if isinstance(run, StoredRun)}
    concerned = {name: record for record, name in planned if is_concerned(claim, record)}
    hours = [estimate(record.config) for name, record in concerned.items() if name not in done]
    return CardRow(
        experiment=experiment,
        scale=scale,
        claim=claim,
        verdict=verdict,
        number=number,
        core_hours=math.fsum(done[name].core_hours for name in concerned.keys() & done.keys())
        + (finished.computed_hours if number is not None else 0.0),
        missing=len(hours),
        unmeasured=0 if number is None else max(0, count_shared_seeds(claim, finished) - number.num_seeds),
        missing_hours=None if None in hours else sum((hour for hour in hours if hour is not None), 0.0),
    )


def count_shared_seeds(claim: Claim, finished: Finished) -> int:
    """The seeds with which every setting that a claim names was run; 0 if it names none."""
    groups = finished.find_all(*claim.variants) if claim.variants else None
    return len(groups[0].seeds) if groups else 0


def is_concerned(claim: Claim, record: Record) -> bool:
    """Whether a claim is about a record: it has the settings that the claim names, or the claim names none."""
    return not claim.variants or any(matches(record.settings, variant) for variant in claim.variants)


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
                row.command.removeprefix("recombine reproduce "),
            )
            for row in rows
        ),
        note=f"{count_verdicts(rows)}\nin brackets: 95 % intervals, with three seeds or more over seeds and compositions; "
        "with two seeds, both values; where the bound is for every seed, the median with the lowest and the highest",
    )


def count_verdicts(rows: Iterable[CardRow | Statement]) -> str:
    """How many rows or statements have each verdict, in words."""
    counts = Counter(row.verdict for row in rows)
    return ", ".join(f"{counts[verdict]} {verdict}" for verdict in VERDICTS if counts[verdict])


def show_number(number: SeedScore | None) -> str:
    """A number with its interval as text."""
    return format_value(cell(number), Column(name=""))
