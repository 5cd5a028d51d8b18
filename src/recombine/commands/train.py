"""recombine train TASK: train a model, print its scores and, on the last line, its run directory."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import tyro

from recombine.commands.console import score_table
from recombine.commands.flags import ModelOptions, parse_run
from recombine.run import progress_bar, train_run


@dataclass(frozen=True, kw_only=True)
class TrainOptions(ModelOptions):
    """Where and how to train."""

    out: Path = Path("runs")
    """Folder for run directories."""
    device: str = "auto"
    """Device to train on: auto, cpu, cuda, ..."""
    evaluation_instances: int | None = None
    """Instances per split in the final evaluation (default: as in the paper)."""
    compile: tyro.conf.FlagCreatePairsOff[bool] = False
    """Train under torch.compile, which takes seconds to start. Helps on GPUs, hardly on CPUs."""
    compile_steps: int | None = None
    """Compile this many whole steps into one graph, for example 4. For models with steps of 1 or 2 ms."""


def run(argv: list[str]) -> None:
    config, options = parse_run(TrainOptions, argv, verb="train")
    parts = config.model.count_parts(config.task)
    if parts and not (options.quiet or options.json):
        listed = ", ".join(f"{name} {count:,}" for name, count in parts.items())
        options.say(f"{sum(parts.values()):,} parameters: {listed}")
    with progress_bar(config.name, quiet=options.quiet or options.json) as watch:
        directory = train_run(
            config,
            out=options.out,
            device=options.device,
            evaluation_instances=options.evaluation_instances,
            compile=options.compile,
            compile_steps=options.compile_steps,
            watch=watch,
        )
    result = directory.read_json("result.json", complete=True)
    if options.json:
        print(json.dumps({**result, "run": str(directory.path)}, indent=2))
        return
    title = (
        f"{config.name}  {result['steps']} steps  {result['seconds']:.0f} s  {result['steps_per_second']:.1f} steps/s"
    )
    if not options.quiet:
        covered = config.task.split.certificate.min_coverage > 0
        options.show(result, score_table(result["scores"], title, covered=covered, metrics=result.get("metrics")))
    print(directory.path)
