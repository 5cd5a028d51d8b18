"""The card of claims: every claim of the papers with our number, its interval, the verdict, the cost and the command.

The card is made from stored results alone (`recombine_papers.stored`), so that the page, the README and the numbers behind
them cannot disagree.

The card of claims as a page of the documentation, and in short for the README.

A statement that is judged in several settings has one row, of the first setting that was run; the others are folded away
below. In the short form its verdict is over all settings.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from pathlib import Path

from recombine.foundation import Column, InputError, Table, format_number, format_value
from recombine.sweeps import Finished, Record, cell, matches
from recombine.tasks import SCALES, Scale
from recombine.training import SeedScore, hash_config
from recombine_papers.calculation import Computes
from recombine_papers.claims import Between, Claim, Verdict, decide
from recombine_papers.experiment import PaperExperiment
from recombine_papers.measured_claims import HigherEach, SeedRange, Undecided
from recombine_papers.registry import paper_of
from recombine_papers.stored import StoredRun

VERDICTS: tuple[Verdict, ...] = ("seen", "seen in part", "not seen", "refuted", "not run")


@dataclass(frozen=True, kw_only=True)
class CardRow:
    """One claim with what decides on it."""

    experiment: PaperExperiment
    scale: Scale
    claim: Claim
    verdict: Verdict
    number: SeedScore | None
    core_hours: float  # of the runs that the claim is about, all seeds
    missing: int  # runs that the claim is about and that have not been made
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


def build_card(experiments: Iterable[PaperExperiment], folder: Path) -> list[CardRow]:
    """A row for every claim of the experiments: at the scale with most seeds, the larger one if equal.

    Smaller scales than the default are for a quick look: the bounds of the claims are not meant for them.
    """
    return [row for experiment in experiments for row in build_rows(experiment, folder)]


def build_rows(experiment: PaperExperiment, folder: Path) -> Iterator[CardRow]:
    stored = {scale: experiment.read(folder, scale) for scale in experiment.judged_scales[::-1]}
    planned = {scale: list_hashes(experiment, scale) for scale in stored}
    answers = {scale: experiment.answer(finished) if finished.runs else "" for scale, finished in stored.items()}
    for claim in experiment.claims:
        rows = {
            scale: _decide(experiment, scale, claim, finished, planned[scale]) for scale, finished in stored.items()
        }
        decided = [replace(row, answer=answers[row.scale]) for row in rows.values() if row.number is not None]
        yield max(decided, key=count_seeds) if decided else rows[experiment.default_scale]


def count_seeds(row: CardRow) -> int:
    return 0 if row.number is None else row.number.num_seeds


def list_hashes(experiment: PaperExperiment, scale: Scale) -> list[tuple[Record, str]]:
    """The records of an experiment with the hashes of their runs."""
    return [(record, hash_config(record.config.identity)) for record in experiment.records(scale)]


def _decide(
    experiment: PaperExperiment,
    scale: Scale,
    claim: Claim,
    finished: Finished,
    planned: Sequence[tuple[Record, str]],
) -> CardRow:
    verdict, number = decide(claim, experiment, finished) if finished else ("not run", None)
    done = {hash_config(run.record.config.identity): run for run in finished.runs if isinstance(run, StoredRun)}
    concerned = {name: record for record, name in planned if is_concerned(claim, record)}
    return CardRow(
        experiment=experiment,
        scale=scale,
        claim=claim,
        verdict=verdict,
        number=number,
        core_hours=math.fsum(done[name].core_hours for name in concerned.keys() & done.keys())
        + (finished.computed_hours if number is not None else 0.0),
        missing=len(concerned.keys() - done.keys()),
        unmeasured=0 if number is None else max(0, count_shared_seeds(claim, finished) - number.num_seeds),
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


BEGIN, END = "<!-- claims: begin -->", "<!-- claims: end -->"
TITLE = "# Claims\n"
INTRODUCTION = f"""{TITLE}
The claims of the four papers, with our number next to the paper's. Most are about trained networks; theorems and counts are
computed. This page is written by `recombine reproduce claims` from the files in `results/`; nothing is entered by hand.

- *Ours*: our number with its 95 % interval; below it, the number of seeds and compositions. With several seeds the interval
  is over seeds and compositions together (`recombine.training.intervals`), with one seed over compositions. For numbers that are measured
  inside the networks it is over seeds; a single network has no interval. With two seeds, both values are shown instead; the
  interval, too wide to be useful, still enters the verdict (`recombine reproduce claims --json`). Logarithms of errors have
  the median over seeds, with the lowest and the highest seed in brackets.
- *Bound*: what the number must be for the claim to be seen. Bounds were fixed in the code before the runs. If earlier
  results were already known, the experiment says so. Where the paper prints no number, the bound is our choice.
- *Seen*: the number meets its bound and the interval agrees: that of a difference excludes zero, that of a level lies within
  the bounds. *Seen in part*: only one of the two. *Not seen*: neither. *Refuted*: the whole interval is on the wrong side,
  at our size and in our setting. *Not run*: runs are missing. A number from inside a single network has no interval, so it
  is seen in part at best.
- Where the bound is for every seed, the verdict counts seeds: all of them meet it (*seen*), at least half (*seen in part*),
  fewer (*not seen*) or none (*refuted*; for a difference, if it has the wrong sign in all of them).
- "In short" has one verdict for all settings of a claim that were run. If they differ, it is *seen in part* where the claim
  is seen, at least in part, in any of them, and *not seen* otherwise. The number is of the setting in italics; *settings*
  gives the lowest and the highest of all.
- *Core-hours*: measured time of the runs behind the claim, on a busy machine. Next to a command: measured cost of all its runs
  on one idle core.
"""
NONE = "–"
SHORT_COLUMNS = ("claim", "verdict", "ours", "seeds", "paper", "bound")
NUMBERS = {"ours", "seeds", "paper", "core-hours"}  # columns that are aligned to the right
Cells = dict[str, str]  # the cells of a row by their column


def format_page(rows: Sequence[CardRow]) -> str:
    """The whole page as Markdown."""
    lines = [INTRODUCTION, "## In short", "", summarise_card(rows), ""]
    for paper, of_paper in groupby(sorted(rows, key=lambda row: row.paper), key=lambda row: row.paper):
        lines += [f"## {paper}", ""]
        for experiment, claims in groupby(of_paper, key=lambda row: row.experiment):
            lines += describe_experiment(experiment, list_statements(claims))
    return "\n".join(lines).rstrip() + "\n"


def describe_experiment(experiment: PaperExperiment, statements: Sequence[Statement]) -> list[str]:
    """The claims of one experiment, with the command that repeats them."""
    rows = [row for statement in statements for row in statement.rows]
    lines = [f"### {experiment.question}", ""]
    answers = dict.fromkeys(row.answer for row in rows if row.answer)
    lines += [line for answer in answers for line in (f"**{answer}**", "")]
    lines += [*dict.fromkeys(f"`{row.command}`{describe_total_cost(experiment, row.scale)}" for row in rows), ""]
    scores = dict.fromkeys(experiment.describe_score(row.scale) for row in rows)
    lines += [line for score in scores if score for line in (f"Score: {score}.", "")]
    if experiment.differs:
        lines += [f"Differs from the paper: {experiment.differs}", ""]
    if experiment.known_before:
        lines += [f"Earlier results known when the bounds were set: {experiment.known_before}", ""]
    shown = [statement.first for statement in statements]
    lines += format_table([{"claim": _name(row, f" ({row.claim.source})"), **_cells(row)} for row in shown])
    further = [row for statement in statements for row in statement.further]
    if further:
        summary = f"<summary>Other settings: {count_verdicts(further)}</summary>"
        folded = [line for statement in statements for line in describe_further(statement)]
        lines += ["<details markdown>", summary, "", *folded, "</details>", ""]
    return lines


def describe_total_cost(experiment: PaperExperiment, scale: Scale) -> str:
    """The measured cost of all runs of an experiment."""
    hours = dict(zip(SCALES, experiment.core_hours, strict=False)).get(scale)
    return "" if hours is None else f" ({hours:g} core-hours)"


def describe_further(statement: Statement) -> list[str]:
    """The further settings of a statement: a table of those that were run, and a line of the others."""
    if not statement.further:
        return []
    lines = [f"*{statement.first.claim.text}*", ""]
    run = [row for row in statement.further if row.number is not None]
    missing = [row.where for row in statement.further if row.number is None]
    lines += format_table([{"setting": row.where or NONE, **_cells(row)} for row in run]) if run else []
    return lines + ([f"Not run: {'; '.join(missing)}.", ""] if missing else [])


def format_table(rows: Sequence[Cells]) -> list[str]:
    """A table in Markdown without the columns in which no row has anything."""
    kept = [name for name in rows[0] if any(row[name] != NONE for row in rows)]
    lines = [
        kept,
        ["---:" if name in NUMBERS else "---" for name in kept],
        *([row[name] for name in kept] for row in rows),
    ]
    return [*(f"| {' | '.join(cells)} |" for cells in lines), ""]


def _cells(row: CardRow) -> Cells:
    missing = f"<br>{row.missing} run{'s' * (row.missing > 1)} missing" if row.missing and row.number else ""
    return {
        "verdict": _emphasise(row) + missing,
        "ours": f"{_fold_number(row)}<br>{describe_interval(row)}" if row.number else NONE,
        "paper": NONE if row.claim.published is None else format_number(row.claim.published),
        "bound": shorten_bound(row.claim.bound),
        "core-hours": describe_cost(row),
    }


def _name(row: CardRow, source: str = "") -> str:
    """The statement, with its setting on a line of its own."""
    return f"{row.claim.text}{source}" + (f"<br>*{row.where}*" if row.where else "")


def _fold_number(row: CardRow) -> str:
    """The number, with its interval on a line of its own."""
    return show_number(row.number).replace(" (", "<br>(")


def _emphasise(row: CardRow | Statement) -> str:
    return f"**{row.verdict}**" if row.verdict == "seen" else row.verdict


def shorten_bound(bound: str) -> str:
    """A bound with signs instead of words."""
    signs = re.sub(r"(of )?at most ", "≤ ", re.sub(r"(of )?at least ", "≥ ", bound))
    return re.sub(r"-(?=\d)", "−", signs)


def describe_interval(row: CardRow) -> str:
    """What the interval is over."""
    assert row.number is not None
    if isinstance(row.claim, Computes) and row.claim.exact:
        return "exact"
    if isinstance(row.claim, Computes) and row.claim.sample:
        return row.claim.sample
    total = row.number.num_seeds
    seeds = f"{total} seed{'s' * (total > 1)}"
    planned = total + row.unmeasured
    if row.unmeasured:
        seeds = f"{total} of {planned} seeds; the others have no such number"
    if isinstance(row.number, SeedRange) and total > 1:
        seeds = f"median of {seeds}, lowest and highest"
    if isinstance(row.number, Undecided):
        return f"{seeds}; undecided: {row.number.reason}"
    within = row.claim.count_within(row.number) if isinstance(row.claim, Between | HigherEach) else total
    if total > 1 and 0 < within < total:
        seeds += f", {within} of them within the bound"
    count = row.number.num_compositions
    return seeds if count is None else f"{seeds}, {count} compositions"


def describe_cost(row: CardRow) -> str:
    """Core-hours spent."""
    return f"{row.core_hours:.2f}" if row.core_hours else NONE


def summarise_card(rows: Sequence[CardRow]) -> str:
    """The headline claims that have been run, how many have not, and how many claims have each verdict."""
    statements = [statement for statement in list_statements(rows) if not statement.first.claim.ours]
    headlines = sorted((each for each in statements if each.first.claim.headline), key=lambda each: each.first.paper)
    cells: list[Cells] = []
    missing = []
    for paper, members in groupby(headlines, key=lambda statement: statement.first.paper):
        of_paper = list(members)
        run = [statement for statement in of_paper if statement.first.number is not None]
        if run:
            cells += [dict.fromkeys(SHORT_COLUMNS, "") | {"claim": f"**{link_paper(paper)}**"}, *map(_short_cells, run)]
        if len(run) < len(of_paper):
            missing.append(f"{len(of_paper) - len(run)} of *{paper.partition(' (')[0]}*")
    lines = format_table(cells) if cells else []
    if missing:
        lines += [f"Main claims not run yet: {', '.join(missing)}.", ""]
    lines.append(count_claims(statements))
    return "\n".join(lines)


def count_claims(statements: Sequence[Statement]) -> str:
    """How many claims have each verdict: those about trained networks, computed ones, and those that cannot be tested."""
    kinds: dict[tuple[str, str], list[Statement]] = {}
    for statement in statements:
        if statement.first.claim.tested:
            kinds.setdefault(statement.first.claim.kind, []).append(statement)
    sentences = []
    for (one, several), members in kinds.items():
        rows = [row for statement in members for row in statement.rows]
        missing = sum(row.number is None for row in rows)
        settings = f"{len(rows) - missing} settings" + (f" ({missing} more not run)" if missing else "")
        kind = one if len(members) == 1 else several
        sentences.append(f"{len(members)} {kind}, run in {settings}: {count_verdicts(members)}.")
    untested = len(statements) - sum(map(len, kinds.values()))
    plural = "s" * (untested > 1)
    return " ".join([*sentences, *([f"{untested} claim{plural} cannot be tested here."] if untested else [])])


def _short_cells(statement: Statement) -> Cells:
    row, cells = statement.first, _cells(statement.first)
    return {
        "claim": _name(row),
        "verdict": _emphasise(statement) + _count_settings(statement),
        "ours": _fold_number(row) + _span_settings(statement),
        "seeds": NONE if row.number is None else str(row.number.num_seeds),
        "paper": cells["paper"],
        "bound": cells["bound"],
    }


def _count_settings(statement: Statement) -> str:
    """The settings that were run, and how they differ, if there are several; and how many were not run."""
    run = [row for row in statement.rows if row.number is not None]
    missing = len(statement.rows) - len(run)
    same = {row.verdict for row in run} == {statement.verdict}
    parts = []
    if len(run) > 1:
        parts.append(f"in {len(run)} settings" if same else f"{len(run)} settings: {count_verdicts(run)}")
    if missing:
        parts.append(f"{missing} setting{'s' * (missing > 1)} not run")
    return "".join(f"<br>{part}" for part in parts)


def _span_settings(statement: Statement) -> str:
    """The lowest and the highest number of all settings, if there are several."""
    values = [row.number.value for row in statement.rows if row.number is not None]
    if len(values) < 2:
        return ""
    return f"<br>settings: {format_number(min(values))} … {format_number(max(values))}"


def link_paper(paper: str) -> str:
    """The title of a paper as a link to arXiv, where the number is part of it."""
    return re.sub(r"^(.*) \(arXiv ([\d.]+)\)$", r"[\1](https://arxiv.org/abs/\2)", paper)


def update_block(text: str, block: str, path: Path) -> str:
    """A text with another block between its markers."""
    if BEGIN not in text or END not in text:
        raise InputError(f"{path} has no place for the claims: expected the lines {BEGIN} and {END}")
    return re.sub(f"{re.escape(BEGIN)}.*?{re.escape(END)}", lambda _: f"{BEGIN}\n{block}\n{END}", text, flags=re.DOTALL)
