"""recombine reproduce list: every experiment, its question, and what it costs at each scale."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

from recombine.commands.output import Output
from recombine.engines import EngineFlags, split_cores
from recombine.recipes import EXPERIMENTS, Experiment
from recombine.store import Json
from recombine.sweep.estimate import Cost, Estimate, estimate_runs
from recombine.sweep.kept_costs import PACKAGED, parse_costs, read_costs
from recombine.tables import Column, Table
from recombine.tasks.base import SCALES, Scale


def list_experiments(options: Output, *, split: EngineFlags, measure: bool) -> None:
    """The name, the question and the estimated time of every experiment.

    Measuring all of them takes many minutes, because the experiments have hundreds of distinct sizes. So without `measure`
    the list shows what was measured on this machine before, and otherwise the costs of another machine that are kept in the
    package.
    """
    kept = read_costs(PACKAGED)
    costs = parse_costs(kept)
    rows: list[tuple[str | None, ...]] = []
    value = {}
    for number, (name, experiment) in enumerate(EXPERIMENTS.items(), start=1):
        cells: list[str | None] = []
        described: Json = {"question": experiment.question, "seconds": {}, "measured_here": {}}
        for scale in SCALES:
            watch = partial(say_measured, options, f"{number}/{len(EXPERIMENTS)} {name}, {scale}") if measure else None
            estimate, jobs = estimate_experiment(experiment, scale, split, measure, costs, watch)
            seconds = None if estimate is None else estimate.wall(jobs)
            here = estimate is not None and not estimate.num_elsewhere
            has_runs = estimate is None or estimate.seconds
            time = None if seconds is None else ("" if here else "~") + format_roughly(seconds)
            cells.append(time if has_runs else "no runs")
            described["seconds"][scale], described["measured_here"][scale] = seconds, here
        rows.append((name, experiment.question, *cells))
        value[name] = described
    times = [Column(name=scale, optional=scale == "paper") for scale in SCALES]
    columns: tuple[str | Column, ...] = ("experiment", Column(name="question", wrap=True), *times)
    note = describe_origin(kept, {cell[:1] if cell else "" for row in rows for cell in row[2:]})
    options.show(value, Table(title="Experiments", columns=columns, rows=tuple(rows), note=note))


def format_roughly(seconds: float) -> str:
    """A duration in one unit: `45 s`, `12 min`, `3.5 h`, `4 days`."""
    for length, unit in ((86400, "days"), (3600, "h"), (60, "min")):
        if seconds >= 1.5 * length:
            number = seconds / length
            return f"{number:.0f} {unit}" if number >= 10 or unit == "min" else f"{number:.1f} {unit}"
    return f"{seconds:.0f} s"


def describe_origin(kept: Json, marks: set[str]) -> str:
    """Where the times come from, given the first characters of those that are shown."""
    note = "estimated time of all runs on this machine, with the default --jobs"
    if "~" in marks:
        note += (
            f"\n~ from times on other machines ({kept['processor']}, {kept['measured']}); "
            "`recombine reproduce NAME --dry-run` measures one experiment here, `recombine reproduce list --estimate` all"
        )
    return note + ("\nempty: too large to measure, or not measured yet" if "" in marks else "")


def say_measured(options: Output, label: str, number: int, total: int) -> None:
    if not options.json:
        options.say(f"{label}: size {number}/{total}")


def estimate_experiment(
    experiment: Experiment,
    scale: Scale,
    split: EngineFlags,
    measure: bool,
    costs: Mapping[str, Cost],
    watch: Callable[[int, int], None] | None = None,
) -> tuple[Estimate | None, int]:
    """The estimated cost of all runs of an experiment, None if it is not known, and how many are trained at a time."""
    # not as a plan, which would prepare the text of language runs
    configs = list({record.config.directory_name: record.config for record in experiment.records(scale)}.values())
    jobs, threads = split_cores(len(configs), jobs=split.jobs, threads=split.threads)
    return estimate_runs(configs, threads=threads, measure=measure, elsewhere=costs, watch=watch), jobs
