"""The card of claims as a page of the documentation, and in short for the README."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from itertools import groupby
from pathlib import Path

from recombine.errors import InputError
from recombine.recipes.card import VERDICTS, CardRow, count_verdicts, show_number
from recombine.recipes.experiment import Experiment
from recombine.tables import format_number

BEGIN, END = "<!-- claims: begin -->", "<!-- claims: end -->"
INTRODUCTION = """# Claims

Every claim of the four papers that the experiments of this package decide on, with our number next to the paper's. This page
is written by `recombine reproduce claims` from the files in `results/`; nothing on it is filled in by hand.

- *ours*: the number that decides, with its 95 % interval. With one seed the interval is over compositions; with several it is
  over seeds and compositions (`recombine.seeds`). A number that is read from a single network has none.
- *bound*: what the number must be. Bounds are in the code before the runs that they judge, but those for scale, in-context
  and length generalisation were chosen with earlier runs of the same experiments known, so they are not blind.
- *seen*: the number reaches its bound and the interval agrees. *Seen in part*: one of the two. *Not seen*: neither.
  *Refuted*: the interval lies on the other side. *Not run*: runs are missing.
- *core-hours*: time of the runs that the claim is about, as clocked, often with other work on the machine.
"""
HEADER = (
    "| claim | ours | paper | bound | seeds | verdict | core-hours |",
    "| --- | ---: | ---: | --- | ---: | --- | ---: |",
)


def format_page(rows: Sequence[CardRow]) -> str:
    """The whole page as Markdown."""
    lines = [INTRODUCTION, f"In all: {count_verdicts(rows)}.", ""]
    for paper, of_paper in groupby(sorted(rows, key=lambda row: row.paper), key=lambda row: row.paper):
        lines += [f"## {paper}", ""]
        for experiment, claims in groupby(of_paper, key=lambda row: row.experiment):
            lines += describe_experiment(experiment, list(claims))
    return "\n".join(lines).rstrip() + "\n"


def describe_experiment(experiment: Experiment, rows: Sequence[CardRow]) -> list[str]:
    """The claims of one experiment, with the command that repeats them."""
    lines = [f"### {experiment.question}", ""]
    commands = dict.fromkeys(row.command for row in rows)
    lines += [*(f"`{command}`" for command in commands), ""]
    if experiment.differs:
        lines += [f"Differs from the paper: {experiment.differs}", ""]
    return [*lines, *HEADER, *map(_line, rows), ""]


def _line(row: CardRow) -> str:
    number, published = row.number, row.claim.published
    verdict = row.verdict if not row.missing or number is None else f"{row.verdict} ({row.missing} runs missing)"
    cells = (
        f"{row.claim.text} ({row.claim.source})",
        show_number(number) or "–",
        "–" if published is None else format_number(published),
        row.claim.bound,
        "–" if number is None else str(number.num_seeds),
        f"**{verdict}**" if row.verdict == "seen" else verdict,
        f"{row.core_hours:.2f}" if row.core_hours else "–",
    )
    return f"| {' | '.join(cells)} |"


def summarise_card(rows: Sequence[CardRow]) -> str:
    """How many claims of each paper were seen, for the README."""
    own = [row for row in rows if not row.claim.ours]
    lines = [f"| paper | {' | '.join(VERDICTS)} |", f"| --- |{' ---: |' * len(VERDICTS)}"]
    for paper, of_paper in groupby(sorted(own, key=lambda row: row.paper), key=lambda row: row.paper):
        counts = Counter(row.verdict for row in of_paper)
        lines.append(f"| {paper} | {' | '.join(str(counts[verdict] or '–') for verdict in VERDICTS)} |")
    return "\n".join(lines)


def update_block(text: str, block: str, path: Path) -> str:
    """A text with another block between its markers."""
    if BEGIN not in text or END not in text:
        raise InputError(f"{path} has no place for the claims: expected the lines {BEGIN} and {END}")
    return re.sub(f"{re.escape(BEGIN)}.*?{re.escape(END)}", lambda _: f"{BEGIN}\n{block}\n{END}", text, flags=re.DOTALL)
