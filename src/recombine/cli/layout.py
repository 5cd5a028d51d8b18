"""Print tables without ever truncating or breaking a number or a name.

A table that is too wide for the terminal is shown without its optional columns. If that is not enough, it is stacked, one
block of lines per row. Output to a file or a pipe has the full width of the table.
"""

from __future__ import annotations

import textwrap

from rich import box
from rich.console import Console
from rich.measure import Measurement
from rich.table import Table as RichTable
from rich.text import Text

from recombine.foundation.errors import spell_out
from recombine.foundation.tables import Table

WIDE = 10_000
SENTENCE = 32  # minimum width of a column of sentences, in characters


def print_table(console: Console, table: Table | RichTable) -> None:
    """Print a table at the width it needs, without optional columns, or stacked."""
    drawn, width = _measure(console, table)
    if width > console.width and console.is_terminal and isinstance(table, Table):
        shorter = table.without_optional()
        drawn_shorter, width_shorter = _measure(console, shorter)
        if width_shorter <= console.width:
            table, drawn, width = shorter, drawn_shorter, width_shorter
    if width > console.width and not console.is_terminal:
        console = Console(file=console.file, width=width)
    elif width > console.width:
        console.print(stack(table, console.width), highlight=False, soft_wrap=True)
        return
    if isinstance(table, Table):  # titles and notes may be wider than the table
        console.print(Text(table.title, style="italic"), highlight=False)
    console.print(drawn, highlight=False)
    if isinstance(table, Table) and table.note:
        console.print(Text(f"{table.note}\n", style="dim italic"), highlight=False)


def _measure(console: Console, table: Table | RichTable) -> tuple[RichTable, int]:
    """The table as it is drawn, and the width that it needs."""
    drawn = draw(table) if isinstance(table, Table) else table
    needed = Measurement.get(console, console.options.update(width=WIDE), drawn)
    return drawn, needed.minimum if isinstance(table, Table) else needed.maximum


def draw(table: Table) -> RichTable:
    """The table with a line per row, without its title and note."""
    drawn = RichTable(box=box.SIMPLE_HEAD)
    rows = table.as_text()
    for number, column in enumerate(table.formats):
        texts = [spell_out(row[number]) for row in rows]
        is_text = all(isinstance(row[number], str | None) for row in table.rows)
        longest = max(map(len, (column.name, *texts)))
        drawn.add_column(
            column.name,
            justify="left" if is_text else "right",
            no_wrap=not column.wrap,
            min_width=min(longest, SENTENCE) if column.wrap else longest,
        )
    for row in rows:
        drawn.add_row(*map(Text, map(spell_out, row)))
    return drawn


def stack(table: Table | RichTable, width: int) -> Text:
    """The table with a block of lines per row, a line per column that is not empty; sentences are wrapped."""
    if isinstance(table, RichTable):
        return stack(_plain(table), width)
    names = table.names
    indent = max(map(len, names))
    blocks = []
    is_pair = len(names) == 2
    for row in table.as_text():
        texts = [spell_out(text) for text in row]
        lines = [_fold(name.rjust(indent), text, width) for name, text in zip(names, texts, strict=True) if text]
        blocks.append(f"  {texts[0]}: {texts[1]}" if is_pair else "\n".join(lines))
    note = [textwrap.fill(line, width) for line in table.note.splitlines()]
    text = ("\n" if is_pair else "\n\n").join([*blocks, *note])
    return Text(f"{table.title}\n", style="italic").append(f"{text}\n", style="not italic")


def _fold(name: str, text: str, width: int) -> str:
    """A value after its name; a sentence goes on below its beginning."""
    before = f"  {name}  "
    if " " not in text or width - len(before) < SENTENCE:
        return before + text
    return textwrap.fill(
        text,
        width,
        initial_indent=before,
        subsequent_indent=" " * len(before),
        break_long_words=False,
        break_on_hyphens=False,
    )


def _plain(table: RichTable) -> Table:
    """The text of a table of rich."""
    rows = zip(*([str(cell) for cell in column.cells] for column in table.columns), strict=True)
    names = tuple(str(column.header) for column in table.columns)
    return Table(title=str(table.title or ""), columns=names, rows=tuple(rows), note=str(table.caption or ""))
