"""recombine diagnose RUN: does it generalise, and if not, why not? Probes the run first if necessary."""

from __future__ import annotations

from dataclasses import dataclass

from recombine.cli.flags import OneRunOptions
from recombine.cli.main import parse
from recombine.foundation.display import Cell, Column, Table, Value
from recombine.foundation.errors import InputError
from recombine.inside.probe import is_probed, probe_run
from recombine.inside.result import DECODER_TITLES
from recombine.inside.verdict import Diagnosis, diagnose_run
from recombine.training.directory import RunDirectory

NUM_INSTANCES = 4_000  # per split, if the run must be probed first
REACHED = "reached: position of the score between chance (0 %) and the ceiling (100 %)"
UNINFORMED = (
    "decoder: a linear classifier or regression from activations to modules, fitted on seen compositions\n"
    "uninformed: the best of the majority class, shuffled labels and an untrained network"
)


@dataclass(frozen=True, kw_only=True)
class DiagnoseOptions(OneRunOptions):
    """Say whether a run generalises to held-out compositions and, if not, why not. Probes the run first if needed.

    The verdict is also written to diagnosis.json in the run directory.
    """

    examples = (
        "recombine diagnose runs/sraven-hyla-0123456789ab",
        "recombine diagnose runs/sraven-hyla-0123456789ab --json",
    )

    num_instances: int | None = None
    """Instances per split of the probe (default: as probed before, or 4,000)."""


def run(argv: list[str]) -> None:
    options = parse(DiagnoseOptions, argv, prog="diagnose")
    directory = RunDirectory.open(options.run)
    if not directory.finished:
        raise InputError(f"{directory.path} has no result.json: expected a finished run")
    if not is_probed(directory, num_instances=options.num_instances, code=options.code):
        probe_run(
            options.run,
            num_instances=options.num_instances or NUM_INSTANCES,
            tsne=False,
            say=lambda part: options.say(f"probe: {part}"),
            **options.select("device", "code"),
        )
    diagnosis = diagnose_run(options.run)
    closing = [f"Next: {diagnosis.advice}."]
    if diagnosis.alternatives:
        closing.insert(0, f"Within its intervals the verdict could also be: {', '.join(diagnosis.alternatives)}.")
    opening = f"{diagnosis.verdict.upper()}\n{diagnosis.sentence}"
    options.show(dict(diagnosis.as_dict()), opening, evidence_table(diagnosis), *closing)


def evidence_table(diagnosis: Diagnosis) -> Table:
    """The numbers behind the verdict."""
    evidence = diagnosis.evidence
    rows: list[tuple[Value, ...]] = []
    splits = evidence["splits"]
    for score, words in ((evidence["trained"], splits["trained"]), (evidence["held_out"], splits["held_out"])):
        cell = Cell(value=score["value"], low=score["low"], high=score["high"])
        placed = f"{100 * score['placed']:.0f} %".replace("-", "−")
        rows.append((f"{evidence['title']}, {words}", cell, score["chance"], score["ceiling"], placed))
    read = evidence["decodability"]
    if read is not None:
        title = f"decoder {DECODER_TITLES[read['metric']]}"
        rows.append((f"{title}, {splits['trained']}", read["trained"], "", "", ""))
        rows.append((f"{title}, {splits['held_out']}", read["held_out"], "", "", ""))
        rows.append((f"{title}, uninformed", read["baseline"], "", "", ""))
    rows.append(("every module trained", "yes" if evidence["covered"] else "NO", "", "", ""))
    rows.append(("modules connected", "yes" if evidence["connected"] else "NO", "", "", ""))
    columns: tuple[str | Column, ...] = (
        Column(name="evidence", wrap=True),
        "value (95 % interval)",
        Column(name="chance", optional=True),
        Column(name="ceiling", optional=True),
        "reached",
    )
    note = REACHED if read is None else f"{REACHED}\n{UNINFORMED}"
    return Table(title="evidence", columns=columns, rows=tuple(rows), note=note)
