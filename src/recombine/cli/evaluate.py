"""recombine evaluate RUN: score a trained run on any splits and any number of instances."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from recombine.cli.flags import RunOutput, score_table
from recombine.cli.main import Argument, RunPath, parse
from recombine.foundation.display import tables_as_dict
from recombine.tasks.sampling import SplitName
from recombine.training.benchmark import load_run
from recombine.training.schema import Json
from recombine.training.score import describe_metrics, describe_splits, score, scores_as_dict
from recombine.training.session import resolve_device


@dataclass(frozen=True, kw_only=True)
class EvaluateOptions(RunOutput):
    """Score a trained run again, for example on more instances. Prints the scores and leaves result.json as it is."""

    examples = (
        "recombine evaluate runs/sraven-hyla-0123456789ab",
        "recombine evaluate runs/sraven-hyla-0123456789ab --splits ood --num-instances 50000",
    )

    run: RunPath
    """Run directory."""
    splits: Annotated[tuple[SplitName, ...], Argument(metavar="SPLIT")] = ()
    """Splits to score, such as test or ood (default: all but train)."""
    num_instances: int | None = None
    """Instances per split (default: as in the paper)."""
    device: str = "auto"
    """Device to run on: auto, cpu, cuda, ..."""


def run(argv: list[str]) -> None:
    options = parse(EvaluateOptions, argv, prog="evaluate")
    directory, config, model = load_run(options.run, options.device, code=options.code)
    scores = score(
        model,
        config.task,
        splits=options.splits or None,
        num_instances=options.num_instances,
        device=resolve_device(options.device),
    )
    task, num_instances = config.task, options.num_instances
    num_instances = task.evaluation_instances if num_instances is None else num_instances
    tables = task.evaluation_tables(model, num_instances, resolve_device(options.device))
    value: Json = {"run": str(directory.path)}
    if directory.finished:
        value |= directory.read_json("result.json")
    value |= {"metrics": describe_metrics(config.task, scores.values()), "scores": scores_as_dict(scores)}
    value |= {"tables": tables_as_dict(tables)} if tables else {}
    value["splits"] = describe_splits(config.task)
    options.show(
        value, score_table(value["scores"], config.name, metrics=value["metrics"], splits=value["splits"]), *tables
    )
