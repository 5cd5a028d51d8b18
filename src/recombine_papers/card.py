"""The card of claims: every claim of the papers with our number, its interval, the verdict, the cost and the command.

The card is made from stored results alone (`recombine_papers.stored`), so that the pages and the numbers behind them cannot
disagree. A statement that is judged in several settings has one verdict over all of them.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import get_args

from recombine.foundation import Column, InputError, Table
from recombine.sweeps import Record, matches
from recombine.tasks import Scale
from recombine.training import SeedScore, hash_config
from recombine_papers.base import Finished, cell
from recombine_papers.claims import BOUND_COLUMN, CLAIM_COLUMN, Claim, Lead, Leads, Verdict, correct_leads, decide
from recombine_papers.experiment import PaperExperiment
from recombine_papers.stored import StoredRun

SOME = "seen in some settings"  # the verdict on a statement whose settings differ
VERDICTS = ("seen", SOME, *get_args(Verdict)[1:])
Planned = list[tuple[str, Record]]  # records with the hashes of their runs; several records may share a run


@dataclass(frozen=True, kw_only=True)
class CardRow:
    """One claim with its verdict and the number that decides."""

    experiment: PaperExperiment
    scale: Scale
    claim: Claim
    verdict: Verdict
    number: SeedScore | None
    num_runs: int  # that the claim is about and that are stored, all seeds
    core_hours: float  # of these runs
    missing: int  # runs that the claim is about and that have not been made
    unmeasured: int = 0  # seeds whose runs are stored without the number
    answer: str = ""  # of the experiment, by the runs of this scale
    leads: Leads | None = None  # of claims about leads: held out, trained, and the excess
    chance: float | None = None  # of a lead: the probability after Holm's correction, where the lead would be seen

    @property
    def is_blind(self) -> bool:
        """Whether no result was known when the bound was set."""
        known = self.experiment.known_before if self.claim.known is None else self.claim.known
        return not known

    @property
    def paper(self) -> str:
        return self.experiment.paper

    @property
    def where(self) -> str:
        """The setting, with the scale if it is not the experiment's default."""
        scale = "" if self.scale == self.experiment.default_scale else f"scale {self.scale}"
        return ", ".join(part for part in (self.claim.where, scale) if part)

    @property
    def command(self) -> str:
        return self.experiment.command(self.scale)


@dataclass(frozen=True, kw_only=True)
class Statement:
    """One statement of a paper in all settings in which it is judged: the row that is shown, and the others."""

    first: CardRow
    further: tuple[CardRow, ...]

    @property
    def rows(self) -> tuple[CardRow, ...]:
        return (self.first, *self.further)

    @property
    def decided(self) -> list[CardRow]:
        """The settings with two seeds or more, or those with one if there are no others."""
        run = [row for row in self.rows if row.verdict != "not run"]
        return [row for row in run if row.verdict != "preliminary"] or run

    @property
    def verdict(self) -> str:
        """The verdict that all settings share, *seen in some settings*, or *not seen* in any."""
        return combine_verdicts([row.verdict for row in self.rows])


def combine_verdicts(verdicts: Iterable[Verdict]) -> str:
    """One verdict for several settings; those with one seed count only if there are no others."""
    run: set[Verdict] = {verdict for verdict in verdicts if verdict != "not run"}
    decided = run - {"preliminary"} or run
    if len(decided) <= 1:
        return decided.pop() if decided else "not run"
    return SOME if "seen" in decided else "not seen"


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


def build_card(experiments: Iterable[PaperExperiment], folder: Path) -> list[CardRow]:
    """A row for every claim of the experiments: at the scale with most seeds, the larger one if equal.

    Smaller scales than the default are for a quick look: the bounds of the claims are not meant for them.
    """
    return correct_papers([row for experiment in experiments for row in build_rows(experiment, folder)])


def correct_papers(rows: list[CardRow]) -> list[CardRow]:
    """The rows after Holm's test over the leads of each paper that would be seen: what fails is seen in part."""
    corrected: dict[int, CardRow] = {}
    for paper in dict.fromkeys(row.paper for row in rows):
        members = [(position, row) for position, row in enumerate(rows) if row.paper == paper]
        decided = correct_leads([row.claim for _, row in members], [(row.verdict, row.number) for _, row in members])
        for (position, row), (verdict, chance) in zip(members, decided, strict=True):
            corrected[position] = replace(row, chance=chance, verdict=verdict)
    return [corrected[position] for position in range(len(rows))]


def build_rows(experiment: PaperExperiment, folder: Path) -> Iterator[CardRow]:
    """The rows of one experiment. A claim about settings that no run can have is an error, not a claim that was not run."""
    stored = {scale: experiment.read(folder, scale) for scale in experiment.judged_scales[::-1]}
    planned = {scale: list_planned(experiment, scale) for scale in stored}
    answers = {scale: experiment.answer(finished) if finished.runs else "" for scale, finished in stored.items()}
    for claim in experiment.claims:
        for settings in claim.variants if claim.tested else ():
            if not any(matches(record.settings, settings) for records in planned.values() for _, record in records):
                raise InputError(f"claim {claim.title!r} of {experiment.name!r} is about {settings}: no run has these")
        rows = [judge_claim(experiment, scale, claim, stored[scale], planned[scale]) for scale in stored]
        decided = [replace(row, answer=answers[row.scale]) for row in rows if row.number is not None]
        if decided:
            yield max(decided, key=lambda row: 0 if row.number is None else row.number.num_seeds)
        else:
            yield next(row for row in rows if row.scale == experiment.default_scale)


def list_planned(experiment: PaperExperiment, scale: Scale) -> Planned:
    return [(hash_config(record.config.identity), record) for record in experiment.records(scale)]


def judge_claim(
    experiment: PaperExperiment, scale: Scale, claim: Claim, finished: Finished, planned: Planned
) -> CardRow:
    """The row of a claim at one scale."""
    verdict, number = decide(claim, experiment, finished) if finished else ("not run", None)
    done = {hash_config(run.record.config.identity): run for run in finished.runs if isinstance(run, StoredRun)}
    concerned = {name for name, record in planned if is_concerned(claim, record)}
    hours = math.fsum(done[name].core_hours for name in concerned & done.keys())
    return CardRow(
        experiment=experiment,
        scale=scale,
        claim=claim,
        verdict=verdict,
        number=number,
        num_runs=len(concerned & done.keys()),
        core_hours=hours + (finished.computed_hours if number is not None else 0.0),
        missing=len(concerned - done.keys()),
        leads=claim.split_lead(experiment, finished) if isinstance(claim, Lead) and number is not None else None,
        unmeasured=0 if number is None else max(0, count_shared_seeds(claim, finished) - number.num_seeds),
    )


def count_shared_seeds(claim: Claim, finished: Finished) -> int:
    """The seeds with which every setting that a claim names was run; 0 if it names none."""
    groups = finished.find_all(*claim.variants) if claim.variants else None
    return len(groups[0].seeds) if groups else 0


def is_concerned(claim: Claim, record: Record) -> bool:
    """Whether a claim is about a record: it has the settings that the claim names, or the claim names none."""
    return not claim.variants or any(matches(record.settings, variant) for variant in claim.variants)


def tabulate_card(rows: Iterable[CardRow]) -> Table:
    """The card for the command line."""
    rows, hours = list(rows), Column(name="core-hours", format="fixed", digits=2)
    return Table(
        title="Claims of the papers",
        columns=(CLAIM_COLUMN, "verdict", "ours", "paper", "seeds", BOUND_COLUMN, hours, "experiment"),
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
        note=f"{count_verdicts(rows)}\nin brackets: 95 % intervals over seeds; with one seed, over compositions; "
        "with two seeds, both values; where the bound is for every seed, the median with the lowest and the highest",
    )


def count_verdicts(rows: Iterable[CardRow | Statement]) -> str:
    """How many rows or statements have each verdict, in words."""
    counts = Counter(row.verdict for row in rows)
    return ", ".join(f"{counts[verdict]} {verdict}" for verdict in VERDICTS if counts[verdict])
