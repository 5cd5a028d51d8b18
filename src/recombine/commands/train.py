"""recombine train TASK: train a model, write its run directory, print its scores and, last, its path."""

from __future__ import annotations

import json
from dataclasses import dataclass, make_dataclass
from pathlib import Path
from typing import Annotated, Any

import tyro

from recombine.cli import parse, split_task
from recombine.commands.console import Output, progress_bar, score_table
from recombine.run import RunConfig, default_run, train_run
from recombine.tasks import TASKS
from recombine.tasks.base import Scale


@dataclass(frozen=True, kw_only=True)
class TrainOptions(Output):
    """Where and how to run; what to run is below."""

    scale: Scale = "paper"
    """Where the defaults of all other flags come from."""
    model: str | None = None
    """Kind of model, if not the task's first; its own flags follow from it."""
    out: Path = Path("runs")
    """Folder for run directories."""
    device: str = "auto"
    """auto, cpu, cuda, ..."""
    evaluation_instances: int | None = None
    """Instances a split in the final evaluation, if not the paper's number."""
    compile: tyro.conf.FlagCreatePairsOff[bool] = False
    """Train under torch.compile, which takes seconds to start; it pays on GPUs, hardly on CPUs."""


def run(argv: list[str]) -> None:
    task_class, flags = split_task(argv, prog="train")
    options, config = parse_run(task_class.name, flags)
    with progress_bar(config.name, quiet=options.quiet or options.json) as watch:
        directory = train_run(
            config,
            out=options.out,
            device=options.device,
            evaluation_instances=options.evaluation_instances,
            compile=options.compile,
            watch=watch,
        )
    result = directory.read_json("result.json")
    if options.json:
        print(json.dumps({**result, "run": str(directory.path)}, indent=2))
        return
    title = (
        f"{config.name}  {result['steps']} steps  {result['seconds']:.0f} s  {result['steps_per_second']:.1f} steps/s"
    )
    if not options.quiet:
        covered = config.task.split.certificate.min_coverage > 0
        options.show(result, score_table(result["scores"], title, covered=covered))
    print(directory.path)


def parse_run(task: str, flags: list[str]) -> tuple[TrainOptions, RunConfig]:
    """Task, model and training from flat flags, starting from the defaults of the scale."""
    default_scale: Any = _find(flags, "--scale") or "paper"
    default = default_run(task, default_scale, _find(flags, "--model"))
    flat = tyro.conf.OmitArgPrefixes
    named = Annotated[str | None, tyro.conf.arg(metavar="{" + ",".join(TASKS[task].models) + "}")]
    of_task = make_dataclass("TrainOptions", [("model", named, None)], bases=(TrainOptions,), frozen=True, kw_only=True)
    of_task.__doc__ = TrainOptions.__doc__
    owner = make_dataclass(
        "options",
        [
            ("output", flat[of_task], of_task()),
            ("task", flat[type(default.task)], default.task),
            ("model", flat[type(default.model)], default.model),
            ("training", flat[type(default.training)], default.training),
        ],
    )
    options: Any = parse(owner, flags, prog=f"train {task.replace('_', '-')}")
    config = RunConfig(task=options.task, model=options.model, training=options.training)
    return options.output, config


def _find(flags: list[str], name: str) -> Any:
    """The value of a flag that decides which others there are, so that it must be read before them."""
    for i, flag in enumerate(flags):
        if flag == name and i + 1 < len(flags):
            return flags[i + 1]
        if flag.startswith(f"{name}="):
            return flag.removeprefix(f"{name}=")
    return None
