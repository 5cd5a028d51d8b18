"""recombine evaluate RUN: score a trained run on any splits and any number of instances."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from recombine.cli.flags import OneRunOptions, score_table
from recombine.cli.main import Argument, parse
from recombine.tasks.sampling import SplitName
from recombine.training.benchmark import load_run
from recombine.training.schema import Json
from recombine.training.score import describe_metrics, describe_splits, score, scores_as_dict
from recombine.training.session import resolve_device


@dataclass(frozen=True, kw_only=True)
class EvaluateOptions(OneRunOptions):
    """Score a trained run again, for example on more instances. Prints the scores and leaves result.json as it is."""

    examples = (
        "recombine evaluate runs/sraven-hyla-0123456789ab",
        "recombine evaluate runs/sraven-hyla-0123456789ab --splits ood --num-instances 50000",
    )

    splits: Annotated[tuple[SplitName, ...], Argument(metavar="SPLIT")] = ()
    """Splits to score, such as test or ood (default: all but train)."""
    num_instances: int | None = None
    """Instances per split (default: as in the paper)."""


def run(argv: list[str]) -> None:
    options = parse(EvaluateOptions, argv, prog="evaluate")
    directory, config, model = load_run(options.run, options.device, code=options.code)
    task, device = config.task, resolve_device(options.device)
    num_instances = task.evaluation_instances if options.num_instances is None else options.num_instances
    scores = score(model, task, splits=options.splits or None, num_instances=num_instances, device=device)
    tables = task.evaluation_tables(model, num_instances, device)
    value: Json = {"run": str(directory.path)}
    if directory.finished:
        value |= directory.read_json("result.json")
    value |= {"metrics": describe_metrics(task, scores.values()), "scores": scores_as_dict(scores)}
    value |= {"tables": {table.title: table.as_dicts() for table in tables}} if tables else {}
    value["splits"] = describe_splits(task)
    options.show(
        value, score_table(value["scores"], config.name, metrics=value["metrics"], splits=value["splits"]), *tables
    )
