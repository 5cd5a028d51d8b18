"""recombine reproduce NAME: run a named experiment, print it beside the paper's figures, and report on it."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro
from rich import box
from rich.table import Table

from recombine.cli import parse
from recombine.commands.check import audit_table, audits_as_dict
from recombine.commands.console import Output, format_number, format_score, progress_bar
from recombine.diagnose import diagnose_run
from recombine.engines import train_runs
from recombine.errors import InputError, check_choice
from recombine.evaluate import METRIC_TITLES, compare
from recombine.probe import is_probed, probe_run
from recombine.recipes import EXPERIMENTS, Experiment
from recombine.report.drawings import DRAWINGS
from recombine.report.html import write_report
from recombine.run import RunConfig, train_run
from recombine.store import Json, RunDirectory
from recombine.tasks.base import Scale

NUM_PROBED = 600  # instances a split; `recombine probe RUN` takes more, and more time
NUM_PICTURED = 500  # points of a map


@dataclass(frozen=True, kw_only=True)
class ReproduceOptions(Output):
    """Which experiment, and how large."""

    name: Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="EXPERIMENT")]
    """One of those that `recombine reproduce list` prints."""
    scale: Scale = "small"
    """Size of the experiment: tiny takes minutes, paper the paper's budget."""
    out: Path = Path("runs")
    """Folder for run directories."""
    jobs: int = 1
    """Runs to train at the same time; cores are shared out among them. Small models gain most."""
    device: str = "auto"
    """auto, cpu, cuda, ..."""
    report: Annotated[Path | None, tyro.conf.arg(metavar="FILE")] = None
    """Write an HTML report to this file."""
    probe: bool = True
    """For the report, look inside each run and say why it does or does not recombine."""
    figures: Annotated[Path | None, tyro.conf.arg(metavar="FOLDER")] = None
    """Write the experiment's own figures to this folder, if it has any."""


def run(argv: list[str]) -> None:
    options = parse(ReproduceOptions, argv, prog="reproduce")
    if options.name == "list":
        list_experiments(options)
        return
    experiment = EXPERIMENTS[check_choice("experiment", options.name, EXPERIMENTS)]
    if options.figures is not None:
        check_choice("experiment with figures", experiment.name, DRAWINGS)
    runs = train_all(experiment, options)
    results = {label: run.read_json("result.json") for label, run in runs.items()}
    paths = [run.path for run in runs.values()]
    value: Json = {
        "experiment": experiment.name,
        "scale": options.scale,
        "runs": [str(path) for path in paths],
        "results": results,
    }
    closing = []
    if options.report is not None:
        write_report(paths, options.report, title=experiment.question)
        closing.append(f"report: {options.report}")
    if experiment.tables is None:
        closing.insert(0, "intervals come from a bootstrap over combinations; differences are paired")
        tables: list[Table | str] = [comparison_table(experiment, results, options.scale)]
    else:
        options.say("reading the runs")
        audits = experiment.tables(runs, options.device)
        value["tables"] = audits_as_dict(audits)
        tables = [experiment.question, *map(audit_table, audits)]
    if options.figures is not None:
        figures = DRAWINGS[experiment.name](runs, options.figures)
        value["figures"] = [str(path) for path in figures]
        closing += [f"figure: {path}" for path in figures]
    options.show(value, *tables, *closing)


def list_experiments(options: Output) -> None:
    table = Table("experiment", "question")
    for each in EXPERIMENTS.values():
        table.add_row(each.name, each.question)
    options.show({name: each.question for name, each in EXPERIMENTS.items()}, table)


def train_all(experiment: Experiment, options: ReproduceOptions) -> dict[str, RunDirectory]:
    """The runs of an experiment, by label; those that are finished stay as they are."""
    configs, runs = experiment.runs(options.scale), {}
    if options.jobs != 1:
        train_at_once(configs, options)
    for number, (label, config) in enumerate(configs.items(), start=1):
        with progress_bar(f"{number}/{len(configs)} {label}", quiet=options.quiet or options.json) as watch:
            runs[label] = train_run(config, out=options.out, device=options.device, watch=watch)
        if options.report is not None and options.probe:
            look_inside(runs[label], options, label)
    return runs


def train_at_once(configs: dict[str, RunConfig], options: ReproduceOptions) -> None:
    """Several at a time, with a line for each that ends."""
    numbers = itertools.count(1)

    def done(label: str, run: RunDirectory) -> None:
        minutes = run.read_json("result.json")["seconds"] / 60
        options.say(f"{next(numbers)}/{len(configs)} {label}: {minutes:.1f} min")

    train_runs(configs, jobs=options.jobs, out=options.out, device=options.device, done=done)


def look_inside(run: RunDirectory, options: ReproduceOptions, label: str) -> None:
    """Probe and diagnose a run, in seconds; what cannot be done is said, and left out of the report."""
    if not options.json:
        options.say(f"looking inside {label}")
    try:
        if not is_probed(run):
            probe_run(run.path, num_instances=NUM_PROBED, num_pictured=NUM_PICTURED, device=options.device)
        diagnose_run(run.path)
    except InputError as error:
        options.say(f"{label} is left out of what happens inside: {error}")


def comparison_table(experiment: Experiment, results: Json, scale: Scale) -> Table:
    """Ours beside the paper's, where the task is the same."""
    published = experiment.published if experiment.published_scale in (None, scale) else {}
    metric = METRIC_TITLES.get(experiment.metric, experiment.metric)
    steps = " / ".join(dict.fromkeys(str(result["steps"]) for result in results.values()))
    where = f"on combinations never trained on ({experiment.split}) after {steps} steps"
    title = f"{experiment.question}\n{metric} {where}, with 95 % intervals"
    table = Table("", title=title, title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False)
    baseline, baseline_result = next(iter(results.items()))
    for name in (metric, f"above {baseline}", "trained on", "paper", "minutes"):
        table.add_column(name, justify="right", no_wrap=True)
    for name, reference in reference_rows(experiment, baseline_result).items():
        table.add_row(name, format_number(reference), style="dim")
    for label, result in results.items():
        value, interval, *_ = format_score(result["scores"][experiment.split][experiment.metric])
        table.add_row(
            label.replace("_", " "),
            f"{value}\n{interval}",
            "" if label == baseline else format_difference(experiment, result, baseline_result),
            format_number(result["scores"]["test"][experiment.metric]["value"]),
            format_published(published.get(label)),
            f"{result['seconds'] / 60:.1f}",
        )
    return table


def format_difference(experiment: Experiment, result: Json, other: Json) -> str:
    """The paired difference on the same instances, with its interval."""
    sums, others = (each["composition_sums"][experiment.split][experiment.metric] for each in (result, other))
    difference = compare(sums, others)
    return f"{format_number(difference.value)}\n{format_number(difference.low)} … {format_number(difference.high)}"


def reference_rows(experiment: Experiment, result: Json) -> dict[str, float]:
    """What needs no training: chance, simple strategies, the exact solver."""
    score = result["scores"][experiment.split][experiment.metric]
    baselines = {
        name: values[experiment.split][experiment.metric] for name, values in result.get("baselines", {}).items()
    }
    return {"chance": score["chance"], **baselines, "exact solver": score["ceiling"]}


def format_published(figure: tuple[float, float] | None) -> str:
    if figure is None:
        return ""
    value, error = figure
    return format_number(value) + ("" if math.isnan(error) else f"±{error:.3f}")
