"""Write the table of faults in docs/reliability.md from what `make soak` measured.

    python docs/write_reliability.py build/soak    # summarise a soak in results/reliability.json, then write the table
    python docs/write_reliability.py               # write the table from results/reliability.json

A soak leaves `recovery.jsonl` (tests/faults/faults.py) and `tests.xml` (pytest).
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

ROOT = Path(__file__).parents[1]
SUMMARY, PAGE = ROOT / "results" / "reliability.json", ROOT / "docs" / "reliability.md"
BEGIN, END = "<!-- faults: begin -->", "<!-- faults: end -->"
MOST_CASES = 10  # beyond which a summary does not list them


@dataclass(frozen=True)
class Row:
    """A row of the table: which fault of the log it is about, and the words around the numbers."""

    fault: str
    text: str
    tried: str
    repeat: str
    note: str = ""
    recovery: str = "{times}"


ROWS = [
    Row(
        "random kills",
        "SIGKILL at random moments of a training, checkpoints every 2 steps",
        "{tried} kills: {tried_by_case}",
        "-m slow tests/faults/test_kills.py -k many",
    ),
    Row(
        "kills at every operation",
        "SIGKILL at an operation on files: before it, after it, or with half of the bytes written",
        "all {tried} of a run with four checkpoints",
        "-m slow tests/faults/test_kills.py -k every_operation_on",
    ),
    Row(
        "text, every operation",
        "the same while text is prepared",
        "all {tried} of a preparation",
        "-m slow tests/faults/test_kills.py -k every_operation_while",
    ),
    Row(
        "kills of a sweep",
        "SIGKILL of a sweep of 3 runs in 2 processes at random moments, and its workers with it",
        "{tried} kills",
        "-m slow tests/faults/test_kills.py -k sweep",
    ),
    Row(
        "signals",
        "SIGINT, SIGTERM and SIGHUP during training",
        "{tried}",
        "tests/faults/test_kills.py -k signals",
        "a checkpoint of the last step, exit code 128 + signal",
    ),
    Row(
        "full disk",
        "disk full while a verb writes, or at 4 moments of a training",
        "{tried}",
        "-m 'slow or not slow' tests/faults/test_disk_and_rights.py -k 'full_disk or room'",
        "the old file stays",
        "{times_by_case}",
    ),
    Row(
        "folder without write permission",
        "folder without write permission",
        "{tried} verbs",
        "-m 'slow or not slow' tests/faults/test_disk_and_rights.py -k folder",
        recovery="{times_by_case}",
    ),
    Row(
        "finished run in a folder without write permission",
        "a finished run in such a folder, `train` again",
        "{tried}",
        "tests/faults/test_disk_and_rights.py -k finished",
        "exit code 0, since there is nothing to write",
    ),
    Row(
        "64 kB file system",
        "a 64 kB file system that is full during training, then larger",
        "{tried}",
        "-m slow tests/faults/test_disk_and_rights.py -k real",
        recovery="{times}, with the start of Python",
    ),
    Row(
        "memory exhausted",
        "memory exhausted during training",
        "{tried}",
        "tests/faults/test_disk_and_rights.py -k memory",
        "exit code 2 with the size that was asked for",
    ),
    Row(
        "flipped bit",
        "one bit flipped in the last checkpoint of a killed training",
        "{tried} places",
        "tests/faults/test_kills.py -k flipped",
        "the damage is named, training goes on from the checkpoint before it",
    ),
    Row(
        "random damage",
        "random damage to one file of a run, then a verb that reads it",
        "{tried} cases",
        "-m slow tests/faults/test_damage.py -k much",
        "no other number, no traceback",
        "{times} after the file was restored; {unneeded} cases needed none",
    ),
    Row(
        "two processes",
        "two processes on one run",
        "{tried}",
        "tests/faults/test_kills.py -k two_processes",
        "the second ends with exit code 2",
    ),
    Row(
        "hanging compiler",
        "a compiler that hangs when asked for its version, or while it compiles",
        "{tried}, with a limit of 2 s instead of 60 and 600 s",
        "-m 'slow or not slow' tests/faults/test_kills.py -k hangs",
        "it is ended at the limit and not asked again; torch computes instead",
        "{times} from the limit to the end of the training",
    ),
    Row(
        "power failure",
        "power failure, imitated: what is not synced is lost",
        "all {tried} renames of a training",
        "tests/faults/test_order.py -k rename",
        "content before its name, the folder after, rows of metrics before their checkpoint",
        "none: the order of operations is checked",
    ),
    Row(
        "jumping clock",
        "a wall clock that jumps by decades",
        "{tried} run",
        "tests/faults/test_order.py -k clock",
        recovery="none needed",
    ),
]


def summarise(lines: Iterable[Mapping[str, Any]], *, by_case: bool = True) -> dict[str, Any]:
    """How often a fault was tried, how many recoveries lost something, and what they took."""
    rows = list(lines)
    summary = {"tried": sum(row["tried"] for row in rows), "lost": sum(bool(row["lost"]) for row in rows)}
    timed = [row for row in rows if "seconds" in row]
    summary["recoveries"] = len(timed)
    for name in ("seconds", "cpu_seconds"):
        taken = [row[name] for row in timed if name in row]
        if taken:
            summary[name] = {"median": round(statistics.median(taken), 2), "most": round(max(taken), 2)}
    cases = list(dict.fromkeys(row["case"] for row in rows))
    if by_case and len(cases) <= MOST_CASES:
        summary["cases"] = {
            case: summarise([row for row in rows if row["case"] == case], by_case=False) for case in sorted(cases)
        }
    return summary


def summarise_soak(folder: Path) -> dict[str, Any]:
    """Everything a soak measured, for results/reliability.json."""
    from recombine.training.session import describe_environment

    environment = describe_environment("cpu")
    lines = [json.loads(line) for line in (folder / "recovery.jsonl").read_text().splitlines()]
    (suite,) = ElementTree.parse(folder / "tests.xml").getroot()
    faults = dict.fromkeys(line["fault"] for line in lines)
    return {
        "date": time.strftime("%Y-%m-%d"),
        "processor": environment["processor"],
        "source_sha256": environment["source_sha256"],
        "tests": {name: int(suite.attrib[name]) for name in ("tests", "failures", "errors", "skipped")}
        | {"minutes": round(float(suite.attrib["time"]) / 60, 1)},
        "faults": {fault: summarise(line for line in lines if line["fault"] == fault) for fault in sorted(faults)},
    }


def format_times(summary: Mapping[str, Any]) -> str:
    """`0.9 s, at most 3.0 s (CPU 0.3 s, at most 1.0 s)`: the median and the longest, if there were several."""
    words = []
    for name in ("seconds", "cpu_seconds"):
        if name in summary:
            most = f", at most {summary[name]['most']:.1f} s" if summary["recoveries"] > 1 else ""
            words.append(f"{summary[name]['median']:.1f} s{most}")
    return words[0] + "".join(f" (CPU {cpu})" for cpu in words[1:]) if words else "none"


def format_row(row: Row, summary: Mapping[str, Any]) -> str:
    cases = summary.get("cases", {})
    words = {
        "tried": f"{summary['tried']:,}",
        "tried_by_case": ", ".join(f"{each['tried']} {case.replace('_', ' ')}" for case, each in cases.items()),
        "times": format_times(summary),
        "times_by_case": "; ".join(f"{case} {format_times(each)}" for case, each in cases.items()),
        "unneeded": f"{summary['tried'] - summary['recoveries']:,}",
    }
    lost = f"in {summary['lost']} recoveries" if summary["lost"] else "nothing"
    lost += f"; {row.note}" if row.note else ""
    cells = (row.text, row.tried.format(**words), lost, row.recovery.format(**words), f"`pytest {row.repeat}`")
    return f"| {' | '.join(cells)} |"


def format_table(summary: Mapping[str, Any]) -> str:
    """The table of faults as Markdown."""
    head = ["| fault | tried | lost | recovery | repeat with |", "| --- | --- | --- | --- | --- |"]
    return "\n".join([*head, *(format_row(row, summary["faults"][row.fault]) for row in ROWS)])


def describe_soak(summary: Mapping[str, Any]) -> str:
    """What was run, and what failed."""
    tests = summary["tests"]
    return (
        f"Last run on {summary['date']} ({summary['processor']}): {tests['tests']:,} tests in {tests['minutes']:.0f} minutes, "
        f"{tests['failures'] + tests['errors']} failed, {tests['skipped']} skipped, "
        f"with {summary['faults']['command lines']['tried']:,} random command lines."
    )


def format_part(summary: Mapping[str, Any]) -> str:
    """The part of the page that is written."""
    return f"{describe_soak(summary)}\n\n{format_table(summary)}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("soak", type=Path, nargs="?", help="Folder that `make soak` wrote.")
    folder = parser.parse_args().soak
    if folder is not None:
        SUMMARY.write_text(json.dumps(summarise_soak(folder), indent=2) + "\n")
    part = format_part(json.loads(SUMMARY.read_text()))
    before, rest = PAGE.read_text().split(BEGIN)
    PAGE.write_text(f"{before}{BEGIN}\n{part}\n{END}{rest.split(END)[1]}")
    print(part)


if __name__ == "__main__":
    main()
