"""Pages in Markdown that are made of the card of claims and of stored results.

- the page of all claims (`docs/claims.md`): a row per claim and setting, by paper and verdict, then what each experiment did;
- its short form, between `<!-- claims: begin -->` and `<!-- claims: end -->` (`README.md`): a line per main question;
- tables of results, between `<!-- results: scale-width small -->` and `<!-- results: end -->` (pages of the documentation);
- the index of the stored files (`results/README.md`).
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import cast, get_args

from recombine.foundation import Column, InputError, Table, check_choice, format_number, format_value
from recombine.tasks import SCALES, Scale
from recombine_papers.base import cell
from recombine_papers.card import VERDICTS, CardRow, Statement, count_verdicts, list_statements
from recombine_papers.claims import Computes, Excess, SeedRange, Undecided
from recombine_papers.experiment import PaperExperiment
from recombine_papers.questions import tabulate_questions
from recombine_papers.stored import count_core_hours, read_files

BEGIN, END = "<!-- claims: begin -->", "<!-- claims: end -->"
RESULTS_END = "<!-- results: end -->"
CLAIMS_BLOCK = re.compile(f"{BEGIN}.*?{END}", re.DOTALL)
RESULTS_BLOCK = re.compile(rf"<!-- results: ([\w-]+) (\w+) -->\n.*?{RESULTS_END}", re.DOTALL)
NONE = "–"
RIGHT = {"ours", "excess", "paper"}  # columns of claims that are aligned to the right
Cells = dict[str, str]  # the cells of a row by their column

TITLE = "# Claims\n"
INTRODUCTION = f"""{TITLE}
The claims of the four papers, with our number next to the paper's. Most are about trained networks; theorems and counts are
computed. This page is written by `recombine reproduce claims` from the files in `results/`; nothing is entered by hand.

- *Ours*: our number with its 95 % interval; below it, the number of seeds and compositions. Intervals are Student's: over seeds,
  or over compositions if there is one seed (`recombine.training.intervals`). A number from inside a single network has none. With
  two seeds, both values are shown instead; the interval still decides. Logarithms of errors have the median over seeds, with the
  lowest and the highest seed in brackets.
- *Excess*: how much larger a lead is on held-out than on trained compositions, over seeds. A lead without excess is a better fit.
- *Bound*: what the number must be for the claim to be seen. *Blind*: nothing was known of the results when the bound was set.
  *Known*: some results were, as the experiment says, or the claim was added or changed later. Where the paper prints no number,
  the bound is our choice.
- *Seen*: the number meets its bound and the interval agrees: that of a difference excludes zero, that of a level lies within
  the bounds. *Seen in part*: only one of the two. *Smaller than claimed*: the interval of a difference lies above zero and below
  the bound. *Not seen*: neither. *Refuted*: the whole interval is on the wrong side, at the size of the paper; *not reached at our
  size*: the same with smaller networks or less training. *Preliminary*: one seed, which decides nothing. *Not run*: runs are missing.
- *Holm*: the probability that a lead this clear comes by chance, corrected for all leads of the paper that would be seen. Above 0.05
  the lead is seen in part.
- Where the bound is for every seed, the verdict counts seeds: all of them meet it (*seen*), at least half (*seen in part*),
  fewer (*not seen*) or none (*refuted*; for a difference, if it has the wrong sign in all of them).
- "In short" has means over seeds (of ratios, medians) and counts the settings with two seeds or more in which a claim is seen.
- *Runs*: the stored runs behind the claim with their measured time, on a busy machine, and the command that repeats them. Below the
  tables, each experiment has the measured cost of all its runs on one idle core.
"""


def format_page(rows: Sequence[CardRow], results: Path) -> str:
    """The page of all claims."""
    lines = [INTRODUCTION, "## In short", "", summarise_card(rows, results), ""]
    for paper, members in groupby(sorted(rows, key=lambda row: row.paper), key=lambda row: row.paper):
        of_paper = list(members)
        ranked = sorted(of_paper, key=lambda row: VERDICTS.index(row.verdict))
        lines += [f"## {paper}", "", *format_cells(list(map(_cells, ranked)))]
        for experiment, claims in groupby(of_paper, key=lambda row: row.experiment):
            lines += describe_experiment(experiment, list(claims))
    return "\n".join(lines).rstrip() + "\n"


def describe_experiment(experiment: PaperExperiment, rows: Sequence[CardRow]) -> list[str]:
    """What an experiment asks and found, the commands that repeat it, and how it differs from the paper."""
    costs = dict(zip(SCALES, experiment.core_hours, strict=False))

    def describe_command(row: CardRow) -> str:
        hours = costs.get(row.scale)
        return f"`{row.command}`" + ("" if hours is None else f" ({hours:g} core-hours)")

    lines = [f"### {experiment.name}", "", f"*{experiment.question}*", ""]
    for answer in dict.fromkeys(row.answer for row in rows if row.answer):
        lines += [f"**{answer}**", ""]
    lines += [*dict.fromkeys(map(describe_command, rows)), ""]
    for score in dict.fromkeys(experiment.describe_score(row.scale) for row in rows):
        lines += [f"Score: {score}.", ""] if score else []
    if experiment.differs:
        lines += [f"Differs from the paper: {experiment.differs}", ""]
    if experiment.known_before:
        lines += [f"Earlier results known when the bounds were set: {experiment.known_before}", ""]
    return lines


def _cells(row: CardRow) -> Cells:
    missing = f"<br>{row.missing} run{'s' * (row.missing > 1)} missing" if row.missing and row.number else ""
    return {
        "claim": _name(row),
        "verdict": _emphasise(row) + missing,
        "ours": f"{_fold_number(row)}<br>{describe_interval(row)}" if row.number else NONE,
        "excess": _describe_leads(row),
        "paper": NONE if row.claim.published is None else format_number(row.claim.published),
        "bound": shorten_bound(row.claim.bound) + ("" if not row.claim.tested else f"<br>{_fixed(row)}"),
        "runs": _link_runs(row),
    }


def _link_runs(row: CardRow) -> str:
    """The stored runs behind a row, what they cost, and the experiment with its command."""
    name = row.experiment.name
    if row.number is None:
        return f"[{name}](#{name})"
    runs = f"{row.num_runs} run{'s' * (row.num_runs > 1)}" if row.num_runs else "numbers"
    hours = f", {row.core_hours:.2f} core-hours" if row.num_runs else ""
    return f"[{runs}](../results/{row.experiment.stored_name(row.scale)}){hours}<br>[`{row.command}`](#{name})"


def _name(row: CardRow) -> str:
    """The statement with its source, and its setting on a separate line."""
    return f"{row.claim.text} ({row.claim.source})" + (f"<br>*{row.where}*" if row.where else "")


def _fold_number(row: CardRow) -> str:
    """The number, with its interval on a separate line."""
    return format_value(cell(row.number), Column(name="")).replace(" (", "<br>(")


def _fixed(row: CardRow) -> str:
    """Whether results were known when the bound was set."""
    return "*blind*" if row.is_blind else "*known*"


def _describe_leads(row: CardRow) -> str:
    """Beside a lead, the lead on trained compositions and the excess; beside an excess, both leads."""
    if row.leads is None:
        return NONE
    held_out, trained, excess = (format_value(cell(lead), Column(name="")) for lead in row.leads)
    if isinstance(row.claim, Excess):
        return f"{held_out} held out<br>{trained} trained"
    return f"{excess}<br>{trained} trained"


def _emphasise(row: CardRow) -> str:
    return f"**{row.verdict}**" if row.verdict == "seen" else row.verdict


def shorten_bound(bound: str) -> str:
    """A bound with signs instead of words."""
    signs = re.sub(r"(of )?at most ", "≤ ", re.sub(r"(of )?at least ", "≥ ", bound))
    return re.sub(r"-(?=\d)", "−", signs)


def describe_interval(row: CardRow) -> str:
    """What the interval is over."""
    assert row.number is not None
    if isinstance(row.claim, Computes) and (row.claim.exact or row.claim.sample):
        return "exact" if row.claim.exact else row.claim.sample
    total = row.number.num_seeds
    seeds = f"{total} seed{'s' * (total > 1)}"
    if row.unmeasured:
        seeds = f"{total} of {total + row.unmeasured} seeds; the others have no such number"
    if isinstance(row.number, SeedRange) and total > 1:
        seeds = f"median of {seeds}, lowest and highest"
    if isinstance(row.number, Undecided):
        return f"{seeds}; undecided: {row.number.reason}"
    within = row.claim.count_within(row.number)
    if total > 1 and 0 < within < total:
        seeds += f", {within} of them within the bound"
    count = row.number.num_compositions
    words = seeds if count is None else f"{seeds}, {count} compositions"
    return words if row.chance is None else f"{words}<br>p = {row.chance:.2g} (Holm)"


def summarise_card(rows: Sequence[CardRow], results: Path) -> str:
    """A line per main question, what is not tested, and how many claims have each verdict."""
    statements = [statement for statement in list_statements(rows) if not statement.first.claim.ours]
    lines = format_cells(tabulate_questions(rows, results))
    untested = [statement.first.claim.text for statement in statements if not statement.first.claim.tested]
    lines += [f"Not tested here: {'; '.join(untested)}.", ""] if untested else []
    return "\n".join([*lines, count_claims(statements)])


def count_claims(statements: Sequence[Statement]) -> str:
    """How many claims have each verdict: those about trained networks, and computed ones."""
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
    run = [row for statement in statements for row in statement.rows if row.number is not None]
    if run:
        blind = sum(row.is_blind for row in run)
        sentences.append(f"Of {len(run)} rows that were run, {blind} are blind and {len(run) - blind} known.")
    return " ".join(sentences)


INDEX_TITLE = "# Results\n"
INDEX_INTRODUCTION = f"""{INDEX_TITLE}
The numbers behind [the card of claims](../docs/claims.md): scores, learning curves and measured numbers of every finished
run, without its parameters. One line per run. `recombine reproduce claims --out RUNS` adds the finished runs of a folder and
writes this page. A line is used only while the code would make the same run: its hash covers names, versions and settings.

- A run that serves several experiments is in the file of each.
- *core-hours*: wall time multiplied by threads; other work on the machine makes them longer.
- *interrupted*: how often runs were stopped and resumed in another environment (code, machine or number of threads).
"""


def format_index(experiments: Collection[PaperExperiment], folder: Path) -> str:
    """The index of the stored files, those of calculations last."""
    files = [lines for experiment in experiments for lines in read_files(experiment, folder).values()]
    distinct = {line["hash"]: line for lines in files for line in lines}
    total = count_core_hours(list(distinct.values()))
    rows = [row for experiment in experiments for row in experiment.describe_stored(folder)]
    rows.sort(key=lambda row: row["runs"] == "none")
    lines = [INDEX_INTRODUCTION, f"In all: {len(distinct)} different runs, {total:.1f} core-hours.", ""]
    return "\n".join(lines + format_cells(rows, right={"runs", "core-hours", "interrupted"}))


def update_page(
    text: str, rows: Sequence[CardRow], results: Path, page: Path, experiments: Mapping[str, PaperExperiment]
) -> str:
    """A page with current claims and results between its markers; without markers, the page of all claims."""
    if BEGIN not in text and not RESULTS_BLOCK.search(text):
        if text and not text.startswith(TITLE):
            raise InputError(f"{page} is another page: expected a new file, the page of claims, or one with markers")
        return format_page(rows, results)
    if BEGIN in text and not CLAIMS_BLOCK.search(text):
        raise InputError(f"{page} has no place for the claims: expected the lines {BEGIN} and {END}")
    text = CLAIMS_BLOCK.sub(lambda _: f"{BEGIN}\n{summarise_card(rows, results)}\n{END}", text)
    return fill_results(text, results, experiments)


def fill_results(text: str, folder: Path, experiments: Mapping[str, PaperExperiment]) -> str:
    """A text with the current table of an experiment between each pair of markers."""

    def fill(match: re.Match[str]) -> str:
        name, scale = match.groups()
        experiment = experiments[check_choice("experiment", name, experiments)]
        chosen = cast(Scale, check_choice("scale", scale, get_args(Scale)))
        finished = experiment.read(folder, chosen)
        body = f"*`{experiment.command(chosen)}` has not been run.*"
        if finished:
            answer = experiment.answer(finished)
            body = "\n\n".join([*([answer] if answer else []), format_table(experiment.summarise(finished))])
        return f"<!-- results: {name} {scale} -->\n{body}\n{RESULTS_END}"

    return RESULTS_BLOCK.sub(fill, text)


def format_table(table: Table) -> str:
    """A table of results: its title, the rows, and its note as a line below. Columns of numbers are aligned to the right."""
    rows = table.as_text()
    numbers = [name for column, name in enumerate(table.names) if all(row[column][:1] in "−0123456789" for row in rows)]
    lines = [
        f"**{table.title}**",
        "",
        *format_cells([dict(zip(table.names, row, strict=True)) for row in rows], numbers),
    ]
    return "\n".join([*lines, *([f"{'; '.join(table.note.splitlines())}."] if table.note else [])]).rstrip()


def format_cells(rows: Sequence[Cells], right: Iterable[str] = RIGHT) -> list[str]:
    """A table in Markdown, and an empty line, without the columns in which no row has anything."""
    names = [name for name in (rows[0] if rows else ()) if any(row[name] not in ("", NONE) for row in rows)]
    lines = [names, ["---:" if name in set(right) else "---" for name in names]]
    lines += [[row[name] for name in names] for row in rows]
    return [*(f"| {' | '.join(line)} |" for line in lines), ""] if rows else []
