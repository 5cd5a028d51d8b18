"""recombine reproduce list: every experiment, its question, and what it costs on this machine at each scale."""

from __future__ import annotations

from recombine.commands.live import format_duration
from recombine.commands.output import Output
from recombine.engines import split_cores
from recombine.recipes import EXPERIMENTS, Experiment
from recombine.sweep.estimate import estimate_runs
from recombine.sweep.plan import make_plan
from recombine.tables import Column, Table
from recombine.tasks.base import SCALES, Scale


def list_experiments(options: Output, *, measure: bool, jobs: int | None, threads: int | None) -> None:
    """The name, the question and the estimated time of every experiment. Times that are not known are measured on request.

    Measuring all of them takes many minutes, because the experiments have hundreds of distinct sizes. So the list shows what
    was measured before, by `--estimate` or by `--dry-run` of an experiment.
    """
    seconds: dict[str, dict[Scale, float | None]] = {}
    for number, (name, experiment) in enumerate(EXPERIMENTS.items(), start=1):
        if measure and not options.json:
            options.say(f"{number}/{len(EXPERIMENTS)} {name}")
        seconds[name] = {scale: estimate_time(experiment, scale, measure, jobs, threads) for scale in SCALES}
    rows = []
    for name, experiment in EXPERIMENTS.items():
        times = [None if value is None else format_duration(value) for value in seconds[name].values()]
        rows.append((name, experiment.question, *times))
    unknown = any(value is None for times in seconds.values() for value in times.values())
    note = "estimated time on this machine, with as many runs at a time as `recombine reproduce` takes by default"
    if unknown:
        note += "\nempty: not measured yet; `recombine reproduce list --estimate` measures all, NAME --dry-run one"
    columns = ("experiment", Column(name="question", wrap=True), *SCALES)
    value = {
        name: {"question": experiment.question, "seconds": seconds[name]} for name, experiment in EXPERIMENTS.items()
    }
    options.show(value, Table(title="Experiments", columns=columns, rows=tuple(rows), note=note))


def estimate_time(
    experiment: Experiment, scale: Scale, measure: bool, jobs: int | None, threads: int | None
) -> float | None:
    """Seconds until all runs of an experiment have ended; None if a size has not been measured."""
    records = make_plan(experiment.records(scale), experiment.name).records
    jobs, threads = split_cores(len(records), jobs=jobs, threads=threads)
    estimate = estimate_runs([record.config for record in records], threads=threads, measure=measure)
    return None if estimate is None else estimate.wall(jobs)
