"""recombine check TASK: what a split guarantees, and its reference scores: chance, ceiling and agnostic optimum."""

from __future__ import annotations

from dataclasses import dataclass

from recombine.cli.flags import TaskOptions, parse_task, score_table
from recombine.foundation.display import Column, Table
from recombine.foundation.errors import InputError, require
from recombine.tasks.sampling import count_repeated, find_leaks
from recombine.training.schema import Json
from recombine.training.score import describe_metrics, describe_splits, score_references

MAX_AUDITED = 2_000  # instances per split that are searched for compositions of other splits


@dataclass(frozen=True, kw_only=True)
class CheckOptions(TaskOptions):
    """How much to check."""

    examples = ("recombine check fuzzy-logic --held-out 0.7", "recombine check runs/sraven-hyla-0123456789ab")

    num_instances: int = 4_096
    """Instances per estimate. With 0, only the certificate is printed."""


def run(argv: list[str]) -> None:
    task, options = parse_task(CheckOptions, argv, verb="check")
    require(options.num_instances >= 0, "num_instances", options.num_instances, "0 or a positive whole number")
    certificate = task.split.certificate.as_dict()
    leaks = find_leaks(task, num_instances=min(options.num_instances or MAX_AUDITED, MAX_AUDITED))
    references = score_references(task, num_instances=options.num_instances) if options.num_instances else {}
    num_compared = options.num_instances or MAX_AUDITED
    repeated = count_repeated(task, num_instances=num_compared)
    metrics = describe_metrics(task, references.values())
    value = {
        "task": task.name,
        "certificate": certificate,
        "leaks": [leak._asdict() for leak in leaks],
        "repeated": repeated,
        "metrics": metrics,
        "references": references,
    }
    tables = (
        [score_table(references, "reference scores", metrics=metrics, splits=describe_splits(task))]
        if references
        else []
    )
    options.show(value, certificate_table(certificate), f"sha256 {certificate['sha256']}\n", *tables)
    for split, count in repeated.items():
        if count and not options.json:
            print(f"{count:,} of {num_compared:,} instances of {split} are also among {num_compared:,} of train.")
    if leaks:
        raise InputError(f"task {task.name!r} breaks its split: {leaks[0]}")


def certificate_table(certificate: Json) -> Table:
    """The certificate, one fact per line."""
    coverage = certificate["coverage"]
    covered = "yes" if certificate["covered"] else "NO"
    connected = "yes" if certificate["connected"] else "NO"
    rows = {
        "training compositions": certificate["num_train"],
        "held-out compositions": certificate["num_ood"],
        "compositions of the split unknown": certificate["num_unknown"],
        "every module trained": f"{covered}, at least {certificate['min_coverage']} times",
        "training compositions per module": " ".join(f"{module}:{count}" for module, count in coverage.items()),
        "modules connected by co-occurrence": connected
        if certificate["num_components"] == 1
        else f"{connected}, {certificate['num_components']} groups",
        "compositions in two splits": certificate["overlap"],
        "redraws until every module is trained": certificate["redraws"],
    }
    columns = ("fact", Column(name="value", wrap=True))
    return Table(
        title="certificate of the split", columns=columns, rows=tuple((name, str(text)) for name, text in rows.items())
    )
