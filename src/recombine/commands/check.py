"""recombine check TASK: what a split guarantees, and between which numbers a score on it lies."""

from __future__ import annotations

from dataclasses import dataclass

from rich.table import Table

from recombine.cli import parse_task
from recombine.commands.console import Output, format_number, split_legend
from recombine.evaluate import METRIC_TITLES, score_references
from recombine.store import Json
from recombine.tables import tables_as_dict


@dataclass(frozen=True, kw_only=True)
class CheckOptions(Output):
    """How much to check."""

    num_instances: int = 4_096
    """Instances for each estimate; 0 leaves out all but the certificate."""


def run(argv: list[str]) -> None:
    task, options = parse_task(CheckOptions, argv, verb="check")
    certificate = task.split.certificate.as_dict()
    references = score_references(task, num_instances=options.num_instances) if options.num_instances else {}
    facts = task.tables(options.num_instances) if options.num_instances else []
    value = {
        "task": task.name,
        "certificate": certificate,
        "references": references,
        "tables": tables_as_dict(facts),
    }
    tables = [references_table(references, covered=bool(certificate["covered"]))] if references else []
    options.show(value, certificate_table(certificate), *tables, *facts)


def certificate_table(certificate: Json) -> Table:
    """The certificate, a line each."""
    table = Table(title="certificate", title_justify="left", show_header=False)
    table.add_column()
    table.add_column(overflow="fold")
    coverage = certificate["coverage"]
    covered = "yes" if certificate["covered"] else "NO"
    connected = "yes" if certificate["connected"] else "NO"
    rows = {
        "training compositions": certificate["num_train"],
        "held-out compositions": certificate["num_ood"],
        "compositions with unknown modules or more at once": certificate["num_unknown"],
        "every module covered in training": f"{covered}, at least {certificate['min_coverage']} times",
        "times covered, by module": " ".join(f"{module}:{count}" for module, count in coverage.items()),
        "co-occurrence graph connected": f"{connected}, {certificate['num_components']} component(s)",
        "compositions on two sides": certificate["overlap"],
        "redraws until covered": certificate["redraws"],
        "sha256": certificate["sha256"],
    }
    for name, text in rows.items():
        table.add_row(name, str(text))
    return table


def references_table(references: Json, *, covered: bool) -> Table:
    """Chance and ceiling of each split and metric."""
    table = Table("split", "metric", title="between chance and ceiling", title_justify="left")
    table.caption, table.caption_justify = split_legend(references, covered), "left"
    table.add_column("chance", justify="right")
    table.add_column("ceiling", justify="right")
    for split, metrics in references.items():
        for metric, score in metrics.items():
            numbers = (format_number(score["chance"]), format_number(score["ceiling"]))
            table.add_row(split, METRIC_TITLES.get(metric, metric), *numbers)
    return table
