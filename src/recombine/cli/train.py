"""recombine train TASK: train a model, print its scores and, on the last line, its run directory."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from recombine.cli.flags import ModelOptions, parse_run, score_table
from recombine.cli.main import Argument
from recombine.integrations.trackers import TrackerName, build_tracker
from recombine.training.config import RunConfig
from recombine.training.directory import RunDirectory
from recombine.training.run import train_run
from recombine.training.score import describe_effort, describe_splits
from recombine.training.session import is_follower, leave_group, progress_bar


@dataclass(frozen=True, kw_only=True)
class TrainOptions(ModelOptions):
    """Where and how to train."""

    examples = (
        "recombine train hyperteacher --scale small",
        "recombine train fuzzy-logic --scale small --attention hyla --seed 1",
    )

    out: Path = Path("runs")
    """Folder for run directories."""
    device: str = "auto"
    """Device to train on: auto (CUDA if there is one, otherwise the CPU), cpu, cuda, mps (untested), ..."""
    evaluation_instances: int | None = None
    """Instances per split in the final evaluation (default: as in the paper)."""
    compile: bool = False
    """Train under torch.compile, which takes seconds to start. Helps on GPUs, hardly on CPUs."""
    deterministic: bool = False
    """Use only algorithms that give the same bits in every run on the same device. May be slower on GPUs."""
    threads: int | None = None
    """Threads of the processor (default: one for a small model, otherwise as many as there are cores)."""
    again: bool = False
    """Evaluate a run again that is finished already."""
    shard: bool = False
    """Under torchrun, keep a part of the model in each process (FSDP2), for models that do not fit one device."""
    track: Annotated[tuple[TrackerName, ...], Argument(repeatable=True)] = ()
    """Also send the metrics to tensorboard or wandb. Repeatable."""


def run(argv: list[str]) -> None:
    config, options = parse_run(TrainOptions, argv, verb="train")
    with progress_bar(config.name, quiet=options.is_silent or is_follower()) as bar:
        directory = train_run(
            config,
            watch=bar,
            trackers=[build_tracker(name) for name in options.track],
            **options.select(
                "out", "device", "evaluation_instances", "compile", "shard", "deterministic", "threads", "again"
            ),
        )
    leave_group()
    if not is_follower():
        if bar is not None and not bar.meter.started:
            options.say(f"{directory.path} was finished already; below are its scores. To train it again, delete it.")
        show_result(config, directory, options)


def show_result(config: RunConfig, directory: RunDirectory, options: TrainOptions) -> None:
    """Print the scores of a finished run and its directory."""
    result = directory.read_json("result.json", complete=True)
    if options.json:
        print(json.dumps({**result, "run": str(directory.path)}, indent=2))
        return
    for note in describe_effort(config, result):
        options.say(note)
    title = (
        f"{config.name}  {result['steps']} steps  {result['seconds']:.0f} s  {result['steps_per_second']:.1f} steps/s"
    )
    if not options.quiet:
        splits = describe_splits(config.task)
        options.show(result, score_table(result["scores"], title, metrics=result.get("metrics"), splits=splits))
    print(directory.path)
