"""The help of a verb, in the order in which people need it: examples, what to run, how long, where, and output last.

tyro knows every flag with its type and default and prints them in frames. `read_frames` takes them out of that text;
`write_page` sorts them, removes what says nothing (`{None}|INT`, `default: None`) and prints them at the terminal's width.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

WIDTH = 80  # at which tyro prints the frames that are read here
OUTPUT = ("--json", "--quiet", "--verbose", "--help")
WHERE = (
    *("--code", "--out", "--image", "--report", "--figures", "--charts", "--device"),
    *("--engine", "--jobs", "--threads", "--gpus", "--address", "--partition", "--time-limit", "--answer-within"),
    *("--compile", "--compile-steps", "--deterministic", "--shard", "--track"),
)
TITLES = {
    "positional arguments": "Arguments",
    "options": "What to run",
    "options options": "What to run",
    "training options": "Training",
    "task options": "Task",
    "model options": "Model",
}
COLUMN = 26  # where descriptions start


@dataclass(frozen=True, kw_only=True)
class Entry:
    """A flag or an argument with its description."""

    call: str
    text: str

    @property
    def names(self) -> list[str]:
        return re.findall(r"--[\w-]+", self.call)


def write_page(printed: str, *, examples: Sequence[str], width: int) -> str:
    """The page for what tyro prints for `--help`."""
    head, frames = printed.split("╭─", 1)[0], list(read_frames(printed))
    usage, _, description = head.strip().partition("\n\n")
    usage = re.sub(r" \[(-[^\]]*|OPTIONS)\]", "", " ".join(usage.split()))
    parts = [
        f"{_tidy_call(usage, keep_brackets=True)} [flags]",
        *([textwrap.fill(" ".join(description.split()), width)] if description else []),
    ]
    if examples:
        parts.append("\n".join(["Examples", *(f"  {example}" for example in examples)]))
    trains = any(title == "training options" for title, _ in frames)
    for title, entries in sort_entries(frames).items():
        if entries:
            parts.append(_write_group("Options" if title == "What to run" and not trains else title, entries, width))
    return "\n\n".join(parts)


def sort_entries(frames: Sequence[tuple[str, list[Entry]]]) -> dict[str, list[Entry]]:
    """The entries by title: arguments, what to run, training, task, model, where to, output."""
    groups: dict[str, list[Entry]] = {title: [] for title in dict.fromkeys(TITLES.values())}
    where, output = [], []
    for title, entries in frames:
        for entry in entries:
            if any(name in OUTPUT for name in entry.names):
                output.append(entry)
            elif title.startswith("options") and any(name in WHERE for name in entry.names):
                where.append(entry)
            else:
                groups.setdefault(TITLES.get(title, title), []).append(entry)
    where.sort(key=lambda entry: min(WHERE.index(name) for name in entry.names if name in WHERE))
    output.sort(key=lambda entry: OUTPUT.index(entry.names[-1]))
    return groups | {"Where and how": where, "Output": output}


def read_frames(printed: str) -> Iterator[tuple[str, list[Entry]]]:
    """The title and the entries of every frame."""
    for frame in re.findall(r"╭─.*?╰─*╯", printed, re.DOTALL):
        title, *lines = frame.splitlines()[:-1]
        rows = [line.strip("│")[1:].rstrip() for line in lines]
        rule = next((number for number, row in enumerate(rows) if row and not row.strip("─")), -1)
        yield title.strip("╭╮─ "), list(_read_entries(rows[rule + 1 :]))


def _read_entries(rows: Sequence[str]) -> Iterator[Entry]:
    call, text = "", ""
    for row in rows:
        if row.startswith(" "):
            text = f"{text} {row.strip()}"
        elif row.startswith("-") or text or not call:  # the next entry; otherwise a long list of choices goes on
            if call:
                yield _tidy(call, text)
            call, _, text = row.partition("  ")
        else:
            call += row
    if call:
        yield _tidy(call, text)


def _tidy(call: str, text: str) -> Entry:
    text = " ".join(text.split())
    text = re.sub(r" ?\((default: (None|False|''|)|required|repeatable)\)$", "", text)
    text = text.replace("(default: True)", "(default: on)")
    return Entry(call=_tidy_call(call), text=text.replace("show this help message and exit", "Print this page."))


def _tidy_call(call: str, *, keep_brackets: bool = False) -> str:
    call = re.sub(r"\{None\}\|", "", call).replace("{None,", "{")
    call = re.sub(r"\[*([A-Z.]+) \[\1 \.\.\.\]\]*", r"\1 ...", call)
    call = re.sub(r"^(-[\w-]+) ([^,]+), (--[\w-]+) \2$", r"\1, \3 \2", call)  # the value of two names once
    return call if keep_brackets else re.sub(r"\[([A-Z]+(?: \.\.\.)?)\]", r"\1", call)


def _write_group(title: str, entries: Sequence[Entry], width: int) -> str:
    lines = [title]
    for entry in entries:
        text = textwrap.wrap(entry.text, max(width - COLUMN, 30), break_on_hyphens=False)
        call = textwrap.wrap(entry.call.replace(",", ", ") if len(entry.call) > width - 2 else entry.call, width - 2)
        fits = len(call) == 1 and len(call[0]) + 4 <= COLUMN
        lines += [f"  {call[0]}".ljust(COLUMN) + text.pop(0)] if fits and text else [f"  {line}" for line in call]
        lines += [" " * COLUMN + line for line in text]
    return "\n".join(lines)
