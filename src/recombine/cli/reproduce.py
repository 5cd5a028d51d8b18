"""recombine reproduce EXPERIMENT: train the runs of an experiment, and print them next to the published numbers.

`recombine reproduce list` and `recombine reproduce claims` are verbs of the papers (`recombine_papers/verb.py`).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated

from recombine.cli.main import Argument, Output, parse
from recombine.cli.sweep import show_work
from recombine.cli.sweep_status import SweepDisplay
from recombine.foundation.display import show_setting, tables_as_dict
from recombine.foundation.errors import InputError, check_choice, check_positive
from recombine.inside.probe import is_probed, probe_run
from recombine.inside.verdict import diagnose_run
from recombine.report.page import write_report
from recombine.sweeps.engine import Engine, Outcome
from recombine.sweeps.experiment import Finished, FinishedRun, find_experiment, installed_experiments
from recombine.sweeps.local import LocalEngine
from recombine.sweeps.plan import Plan, describe_plan, make_plan
from recombine.sweeps.records import Record
from recombine.sweeps.run import EngineFlags, Work, find_work, raise_failure, run_sweep
from recombine.sweeps.status import SweepReader
from recombine.tasks.base import Scale
from recombine.training.directory import RunDirectory
from recombine.training.run import train_run
from recombine.training.schema import Json
from recombine.training.session import progress_bar

NUM_PROBED = 600  # instances per split; `recombine probe RUN` takes more, and more time
NUM_PICTURED = 500  # points per map


@dataclass(frozen=True, kw_only=True)
class ReproduceOptions(EngineFlags, Output):
    """Run an experiment and print it next to the paper's figures. `recombine sweep status DIR` shows how far it is."""

    examples = (
        "recombine reproduce demo --jobs 2 --report report.html",
        "recombine reproduce fuzzy-logic --scale tiny --attention softmax hyla --seeds 0 1",
    )

    name: Annotated[str, Argument(metavar="EXPERIMENT", positional=True)]
    """Name of an experiment (`recombine reproduce list` prints them), or FILE.py:NAME for your own."""
    scale: Scale | None = None
    """Size of the experiment: tiny takes minutes, paper has the paper's sizes (default: depends on the experiment)."""
    only: Annotated[tuple[str, ...], Argument(metavar="NAME=VALUE")] = ()
    """Run only these settings, e.g. --only model=vanilla trunk=softmax,hyla."""
    attention: Annotated[tuple[str, ...], Argument(metavar="NAME")] = ()
    """Run only these attentions, e.g. --attention softmax hyla. Short for --only attention=softmax,hyla."""
    steps: int | None = None
    """Training steps of every run (default: as the experiment says)."""
    seeds: tuple[int, ...] = ()
    """Random seeds for every setting, e.g. --seeds 0 1 2 (default: as the experiment says)."""
    out: Path = Path("runs")
    """Folder for run directories."""
    device: str = "auto"
    """Device to train on: auto, cpu, cuda, ..."""
    report: Path | None = None
    """Write an HTML report to this file."""
    probe: bool = True
    """For the report, probe and diagnose each run."""
    figures: Path | None = None
    """Write the figures of the experiment to this folder."""
    dry_run: bool = False
    """List the runs; train nothing."""


def run(argv: list[str]) -> None:
    if argv[:1] in (["claims"], ["list"]):
        from recombine_papers.verb import run as run_papers

        run_papers(argv)
        return
    options = parse(ReproduceOptions, argv, prog="reproduce")
    experiment = find_experiment(options.name)
    if options.figures is not None and not experiment.has_figures:
        drawn = [name for name, known in installed_experiments().items() if known.has_figures]
        raise InputError(f"experiment {experiment.name!r} has no figures: expected one of {', '.join(drawn)}")
    scale = options.scale or experiment.default_scale
    planned = list(experiment.records(scale))
    if not planned and (options.steps or options.seeds):
        raise InputError(f"experiment {experiment.name!r} does not train: expected neither --steps nor --seeds")
    records = choose_records(planned, options)
    if options.dry_run:
        show_work(find_work(make_plan(records, experiment.name).records, options.out, retry=True), options)
        return
    finished = experiment.complete(train_records(records, options) if records else Finished(()))
    device = options.device if options.engine == "local" else "auto"  # workers may have a GPU that this node lacks
    tables = experiment.tables(finished, device)
    closing: list[str] = []
    value: Json = {
        "experiment": experiment.name,
        "question": experiment.question,
        "scale": scale,
        "runs": [describe_run(run) for run in finished.runs],
        "computed": dict(finished.computed),
        "tables": tables_as_dict(tables),
    }
    if options.report is not None:
        paths = list(dict.fromkeys(run.run.path for run in finished.runs))
        write_report(paths, options.report, title=experiment.question)
        closing.append(f"report: {options.report}")
    if options.figures is not None:
        figures = experiment.figures(finished, options.figures)
        value["figures"] = [str(path) for path in figures]
        closing += [f"figure: {path}" for path in figures]
    answer = experiment.answer(finished)
    value["answer"] = answer
    closing += [answer] if answer else []
    options.show(value, experiment.question, *tables, *closing)


def choose_records(records: Iterable[Record], options: ReproduceOptions) -> list[Record]:
    """The records of an experiment with the chosen steps and seeds that meet the conditions of --only."""
    chosen = list(records)
    if options.steps is not None:
        check_positive(steps=options.steps)
        chosen = [record.with_steps(options.steps) for record in chosen]
    if options.seeds:
        chosen = [record.with_seed(seed) for record in chosen for seed in options.seeds]
    distinct = list({(record.key, record.seed): record for record in chosen}.values())
    attention = (f"attention={','.join(options.attention)}",) if options.attention else ()
    for condition in (*options.only, *attention):
        distinct = filter_records(distinct, condition)
    return distinct


def filter_records(records: Sequence[Record], condition: str) -> list[Record]:
    """The records that meet a condition such as `model=vanilla` or `trunk=softmax,hyla`."""
    name, equals, values = condition.partition("=")
    if not equals or not values:
        raise InputError(f"--only {condition!r}: expected NAME=VALUE, such as seed=0")
    settings = [
        {_plain(key): _plain(show_setting(value)) for key, value in {**record.settings, "seed": record.seed}.items()}
        for record in records
    ]
    name = check_choice("setting", _plain(name), dict.fromkeys(key for row in settings for key in row))
    known = dict.fromkeys(row[name] for row in settings if name in row)
    wanted = {check_choice(f"value of {name}", _plain(value), known) for value in values.split(",")}
    return [record for record, row in zip(records, settings, strict=True) if row.get(name) in wanted]


def _plain(text: str) -> str:
    """A name or a number in one of the ways to write it: `held-out` and `held_out` are `held out`."""
    try:
        return f"{float(text):g}"
    except ValueError:
        return text.strip().replace("-", " ").replace("_", " ")


def describe_run(run: FinishedRun) -> Json:
    """A record and its result, without the sums per composition."""
    result = {name: value for name, value in run.result.items() if name != "composition_sums"}
    return {
        "settings": dict(run.record.settings),
        "seed": run.record.seed,
        "path": str(run.run.path),
        "result": result,
    }


def train_records(records: Sequence[Record], options: ReproduceOptions) -> Finished:
    """Train every record; finished runs are reused, and records that share a configuration share a run."""
    plan = make_plan(records, f"reproduce {options.name}")
    engine = options.open_engine(len(plan.records))
    work = find_work(plan.records, options.out, retry=True)
    if work.finished:
        options.say(f"{len(work.finished)} of {len(plan.records)} runs in {options.out} were finished already")
    if isinstance(engine, LocalEngine) and engine.jobs == 1:
        for number, record in enumerate(work.todo, start=1):
            with progress_bar(f"{number}/{len(work.todo)} {record.text}", quiet=options.is_silent) as bar:
                train_run(record.config, out=options.out, device=options.device, watch=bar)
    elif work.todo:
        train_with_engine(plan, work, engine, options)
    runs = {key: RunDirectory(options.out / key) for key in plan.by_key}
    if options.report is not None and options.probe:
        for key, record in plan.by_key.items():
            look_inside(runs[key], options, record.text)
    prepared = (record.prepare() for record in records)
    return Finished(tuple(FinishedRun(record, runs[record.config.directory_name]) for record in prepared))


def train_with_engine(plan: Plan, work: Work, engine: Engine, options: ReproduceOptions) -> None:
    """Train what is left through an engine. A run that fails does not stop the others; its error is raised at the end."""
    options.say(engine.describe())
    failed: list[Outcome] = []

    def done(record: Record, outcome: Outcome) -> None:
        display.report(record, outcome)
        failed.extend([outcome] if outcome.kind else [])

    reader, quiet = SweepReader(options.out, describe_plan(plan)), options.is_silent
    with SweepDisplay(reader, total=len(plan.records), done=len(work.finished), quiet=quiet) as display:
        run_sweep(plan, engine, out=options.out, device=options.device, work=work, done=done)
    if failed:
        raise_failure(replace(failed[0], error=f"{len(failed)} of {len(work.todo)} runs failed; {failed[0].error}"))


def look_inside(run: RunDirectory, options: ReproduceOptions, label: str) -> None:
    """Probe and diagnose a run quickly. A run that cannot be probed is left out of that part of the report."""
    options.say(f"probing {label}")
    try:
        if not is_probed(run):
            probe_run(run.path, num_instances=NUM_PROBED, num_pictured=NUM_PICTURED, device=options.device)
        diagnose_run(run.path)
    except InputError as error:
        options.say(f"{label} was not probed: {error}")
