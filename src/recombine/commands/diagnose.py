"""recombine diagnose RUN: does it generalise, and if not, why not? Probes the run first if necessary."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import tyro
from rich.table import Table

from recombine.cli import parse
from recombine.commands.console import RunOutput
from recombine.diagnose import DECODER_TITLES, Diagnosis, diagnose_run
from recombine.errors import InputError
from recombine.probe import is_probed, probe_run
from recombine.store import RunDirectory
from recombine.tables import format_number


@dataclass(frozen=True, kw_only=True)
class DiagnoseOptions(RunOutput):
    """What to diagnose."""

    run: tyro.conf.Positional[Path]
    """Run directory of a finished run. Writes diagnosis.json there."""
    num_instances: int = 4_000
    """Instances per split, if the run must be probed first."""
    device: str = "auto"
    """Device to run on: auto, cpu, cuda, ..."""


def run(argv: list[str]) -> None:
    options = parse(DiagnoseOptions, argv, prog="diagnose")
    directory = RunDirectory.open(options.run)
    if not directory.finished:
        raise InputError(f"{directory.path} has no result.json: expected a finished run")
    if not is_probed(directory, code=options.code):
        say = (lambda _: None) if options.json else (lambda part: options.say(f"probe: {part}"))
        probe_run(
            options.run,
            num_instances=options.num_instances,
            tsne=False,
            device=options.device,
            say=say,
            code=options.code,
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
    table = Table("evidence")
    table.add_column("value", justify="right")
    table.add_column("95 % interval", justify="right")
    table.add_column("chance … ceiling", justify="right")
    for score, words in ((evidence["trained"], "trained"), (evidence["held_out"], "held out")):
        interval = f"{format_number(score['low'])} … {format_number(score['high'])}"
        ends = f"{format_number(score['chance'])} … {format_number(score['ceiling'])}: {score['placed']:.0%}"
        table.add_row(f"{evidence['title']}, {words}", format_number(score["value"]), interval, ends)
    read = evidence["decodability"]
    if read is not None:
        title = f"decoder's {DECODER_TITLES[read['metric']]}"
        table.add_row(f"{title}, trained", format_number(read["trained"]), "", "")
        table.add_row(f"{title}, held out", format_number(read["held_out"]), "", "")
        table.add_row(f"{title}, uninformed", format_number(read["baseline"]), "", "")
    table.add_row("every module trained", "yes" if evidence["covered"] else "NO", "", "")
    table.add_row("modules connected", "yes" if evidence["connected"] else "NO", "", "")
    return table
