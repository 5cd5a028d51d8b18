"""recombine reproduce EXPERIMENT: train the runs of an experiment and print them next to the published numbers.

recombine reproduce claims: the verdict on every claim, from the finished runs of all experiments. Finished runs below `--out`
are first added to the files in `--results`. The claims, their figures and the tables in pages of the documentation are made
of these files alone.

recombine reproduce list: every experiment, its question, and its measured cost at each scale.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path
from typing import Annotated

from recombine.cli import Argument, Output, parse
from recombine.foundation import Column, InputError, Table, check_choice, check_positive, replace_file, show_setting
from recombine.inside import diagnose_run, is_probed, probe_run
from recombine.report import write_report
from recombine.sweeps import EngineOptions, Record, find_work, make_plan, train_runs
from recombine.tasks import SCALES, Scale
from recombine.training import Json
from recombine_papers.base import Experiment, Finished, FinishedRun, find_experiment, installed_experiments
from recombine_papers.card import build_card, count_verdicts, tabulate_card
from recombine_papers.experiment import PaperExperiment
from recombine_papers.pages import INDEX_TITLE, format_index, update_page
from recombine_papers.questions import draw_questions
from recombine_papers.stored import check_scores, copy_shared_runs, read_files

Experiments = Mapping[str, PaperExperiment]
NUM_PROBED = 600  # instances per split; `recombine probe RUN` takes more, and more time
NUM_PICTURED = 500  # points per map


@dataclass(frozen=True, kw_only=True)
class ReproduceOptions(EngineOptions, Output):
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


@dataclass(frozen=True, kw_only=True)
class ClaimsOptions(Output):
    """Add finished runs to the stored results, and judge the claims of all experiments by them."""

    examples = (
        "recombine reproduce claims --page docs/claims.md",
        "recombine reproduce claims sraven --json",
    )

    experiments: Annotated[tuple[str, ...], Argument(metavar="EXPERIMENT", positional=True)] = ()
    """Names of experiments with claims, or FILE.py:NAME for your own (default: all that are installed)."""
    out: Path = Path("runs")
    """Folder of run directories."""
    results: Path = Path("results")
    """Folder of stored results, one small file per experiment and scale."""
    page: tuple[Path, ...] = ()
    """Markdown files to write the claims to. In a page with markers, only the text between them is replaced."""
    figures: Path | None = None
    """Write the figures that can be drawn from stored results to this folder."""
    check: bool = False
    """Write nothing: recompute scores from the sums of each seed and composition, and require the pages as they are."""


@dataclass(frozen=True, kw_only=True)
class ListOptions(Output):
    """List the experiments with their questions and their measured costs."""

    examples = ("recombine reproduce list", "recombine reproduce list --json")


def run(argv: list[str]) -> None:
    """The verb, and its verbs `claims` and `list`."""
    if argv[:1] == ["list"]:
        list_experiments(parse(ListOptions, argv[1:], prog="reproduce list"))
    elif argv[:1] == ["claims"]:
        show_claims(parse(ClaimsOptions, argv[1:], prog="reproduce claims"))
    else:
        reproduce(parse(ReproduceOptions, argv, prog="reproduce"))


def reproduce(options: ReproduceOptions) -> None:
    """Run an experiment, and print its tables and its answer."""
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
        table = find_work(make_plan(records, experiment.name).records, options.out, retry=True).as_table()
        options.show({"runs": table.as_dicts()}, table)
        return
    finished = experiment.complete(Finished(tuple(train_records(records, options))))
    device = options.device if options.engine == "local" else "auto"  # workers may have a GPU that this node lacks
    tables = experiment.tables(finished, device)
    answer = experiment.answer(finished)
    value: Json = {
        "experiment": experiment.name,
        "question": experiment.question,
        "scale": scale,
        "runs": [describe_run(run) for run in finished.runs],
        "computed": dict(finished.computed),
        "tables": {table.title: table.as_dicts() for table in tables},
        "answer": answer,
    }
    closing: list[str] = []
    if options.report is not None:
        paths = list(dict.fromkeys(run.run.path for run in finished.runs))
        write_report(paths, options.report, title=experiment.question)
        closing.append(f"report: {options.report}")
    if options.figures is not None:
        figures = experiment.figures(finished, options.figures)
        value["figures"] = [str(path) for path in figures]
        closing += [f"figure: {path}" for path in figures]
    options.show(value, experiment.question, *tables, *closing, *([answer] if answer else []))


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


def train_records(records: Sequence[Record], options: ReproduceOptions) -> list[FinishedRun]:
    """Train every record and, for a report, probe each run; finished runs are reused."""
    if not records:
        return []
    trained = train_runs(
        records,
        out=options.out,
        device=options.device,
        engine=options,
        source=f"reproduce {options.name}",
        quiet=options.is_silent,
    )
    runs = [FinishedRun(record.prepare(), run) for record, run in zip(records, trained, strict=True)]
    if options.report is not None and options.probe:
        for run in {run.run.path: run for run in runs}.values():
            look_inside(run, options)
    return runs


def look_inside(run: FinishedRun, options: ReproduceOptions) -> None:
    """Probe and diagnose a run quickly. A run that cannot be probed is left out of that part of the report."""
    options.say(f"probing {run.record.text}")
    try:
        if not is_probed(run.run):
            probe_run(run.run.path, num_instances=NUM_PROBED, num_pictured=NUM_PICTURED, device=options.device)
        diagnose_run(run.run.path)
    except InputError as error:
        options.say(f"{run.record.text} was not probed: {error}")


def list_experiments(options: Output) -> None:
    """Print the name, the question and the measured cost of every experiment."""
    experiments = installed_experiments()
    columns = [Column(name=f"{scale} (core-hours)", optional=scale == "paper", digits=2) for scale in SCALES]
    table = Table(
        title="Experiments",
        columns=("experiment", Column(name="question", wrap=True), *columns),
        rows=tuple((name, experiment.question, *show_costs(experiment)) for name, experiment in experiments.items()),
        note="measured on one core; –: not measured, or nothing is trained",
    )
    value: Json = {
        name: {"question": experiment.question, "core_hours": dict(zip(SCALES, experiment.core_hours, strict=False))}
        for name, experiment in experiments.items()
    }
    options.show(value, table)


def show_costs(experiment: Experiment) -> list[str]:
    """The core-hours of an experiment at each scale."""
    hours = experiment.core_hours or (None,) * len(SCALES)
    return ["–" if cost is None else f"{cost:g}" for cost in hours]


def show_claims(options: ClaimsOptions) -> None:
    """Collect finished runs, then print the card, and write pages and figures."""
    experiments = find_experiments(options.experiments)
    if options.check:
        check_pages(options, experiments)
        return
    changed = collect_all(options, experiments)
    rows = build_card(experiments.values(), options.results)
    closing = [f"results: {path}" for path in changed]
    for page in options.page:
        text = page.read_text(encoding="utf-8") if page.exists() else ""
        replace_file(page, update_page(text, rows, options.results, page, experiments).encode())
        closing.append(f"page: {page}")
    figures: list[Path] = []
    if options.figures is not None:
        figures = draw_figures(options.results, options.figures, experiments)
        figures += draw_questions(rows, options.results, options.figures)
    value: Json = {
        "summary": count_verdicts(rows),
        "claims": tabulate_card(rows).as_dicts(),
        "figures": [str(path) for path in figures],
    }
    options.show(value, tabulate_card(rows), *closing, *(f"figure: {path}" for path in figures))


def check_pages(options: ClaimsOptions, experiments: Experiments) -> None:
    """Recompute what is stored and what the pages say; an error names the first difference."""
    files = [pair for experiment in experiments.values() for pair in read_files(experiment, options.results).items()]
    scores = sum(check_scores(line, str(options.results / name)) for name, lines in files for line in lines)
    rows = build_card(experiments.values(), options.results)
    for page in options.page:
        text = page.read_text(encoding="utf-8")
        made = update_page(text, rows, options.results, page, experiments)
        for number, (line, expected) in enumerate(zip_longest(text.splitlines(), made.splitlines()), start=1):
            if line != expected:
                raise InputError(f"{page}, line {number}: {line!r}: expected {expected!r}, from {options.results}")
    value: Json = {"scores": scores, "claims": len(rows), "pages": [str(page) for page in options.page]}
    pages = f"{len(options.page)} page{'s' * (len(options.page) != 1)}"
    options.show(
        value, f"{scores} scores and {len(rows)} claims recomputed from {options.results}; {pages} as they must be"
    )


def find_experiments(names: Sequence[str]) -> Experiments:
    """Experiments with claims by name; by default all that are installed."""
    if not names:
        found = installed_experiments()
        return {name: experiment for name, experiment in found.items() if isinstance(experiment, PaperExperiment)}
    experiments = {}
    for name in names:
        experiment = find_experiment(name)
        if not isinstance(experiment, PaperExperiment):
            raise InputError(f"experiment {name!r} has no claims: expected a subclass of PaperExperiment")
        experiments[experiment.name] = experiment
    return experiments


def collect_all(options: ClaimsOptions, experiments: Experiments) -> list[Path]:
    """Calculate what needs no runs, add the finished runs of experiments to their files; returns the files that changed."""
    results, index = options.results, options.results / "README.md"
    if index.exists() and not index.read_bytes().startswith(INDEX_TITLE.encode()):
        raise InputError(f"{index} is another page: expected a folder of results")
    if not results.is_dir() and not options.out.is_dir():
        return []
    changed = []
    for experiment in experiments.values():
        for scale in experiment.judged_scales:
            stored = experiment.store(results, scale, options.out)
            if stored and not options.json:
                options.say(f"{experiment.name} ({scale}): new results")
            changed += stored
    changed += copy_shared_runs(experiments.values(), results)
    if results.is_dir():
        replace_file(index, format_index(experiments.values(), results).encode())
    return list(dict.fromkeys(changed))


def draw_figures(results: Path, folder: Path, experiments: Experiments) -> list[Path]:
    """The figures that stored results are enough for, each at the largest scale with results."""
    folder.mkdir(parents=True, exist_ok=True)
    drawn = []
    for experiment in experiments.values():
        if not experiment.has_figures or experiment.figures_need_runs:
            continue
        stored = (experiment.read(results, scale) for scale in experiment.judged_scales[::-1])
        finished = next(filter(None, stored), None)
        drawn += experiment.figures(finished, folder) if finished is not None else []
    return drawn
