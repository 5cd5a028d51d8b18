"""Tables of stored results within pages of the documentation, between markers:

    <!-- results: scale-width small -->
    ...
    <!-- results: end -->

`recombine reproduce claims --page PAGE` writes what is between them, so that a page and `results/` cannot disagree.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import cast, get_args

from recombine.errors import check_choice
from recombine.recipes.experiment import Experiment
from recombine.tables import Table
from recombine.tasks.base import Scale

END = "<!-- results: end -->"
BLOCK = re.compile(r"<!-- results: ([\w-]+) (\w+) -->\n.*?" + re.escape(END), re.DOTALL)


def has_blocks(text: str) -> bool:
    return BLOCK.search(text) is not None


def fill_blocks(text: str, folder: Path, experiments: Mapping[str, Experiment]) -> str:
    """A text with the current results between its markers."""

    def fill(match: re.Match[str]) -> str:
        name, scale = match.groups()
        experiment = experiments[check_choice("experiment", name, experiments)]
        chosen = cast(Scale, check_choice("scale", scale, get_args(Scale)))
        finished = experiment.read(folder, chosen)
        command = f"`{experiment.command(chosen)}`"
        answer = experiment.answer(finished) if finished else ""
        body = format_markdown(experiment.summarise(finished)) if finished else f"*{command} has not been run.*"
        body = f"{answer}\n\n{body}" if answer else body
        return f"<!-- results: {name} {scale} -->\n{body}\n{END}"

    return BLOCK.sub(fill, text)


def format_markdown(table: Table) -> str:
    """A table in Markdown: its title, the rows, and its note as a line below."""
    names, rows = table.names, table.as_text()
    kept = [column for column in range(len(names)) if any(row[column] for row in rows)]
    lines = [f"**{table.title}**", "", _join([names[column] for column in kept])]
    lines.append("| " + " | ".join("---:" if _is_number(rows, column) else "---" for column in kept) + " |")
    lines += [_join([row[column] for column in kept]) for row in rows]
    return "\n".join([*lines, *(["", "; ".join(table.note.splitlines()) + "."] if table.note else [])])


def _join(cells: list[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _is_number(rows: list[list[str]], column: int) -> bool:
    return all(row[column][:1] in "−0123456789" for row in rows)
