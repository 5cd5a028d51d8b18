"""recombine reproduce claims: the verdict on every claim, from the finished runs of all experiments.

Finished runs below `--out` are first added to the files in `--results`. The claims, their figures and the tables in pages of
the documentation are made of these files alone.

recombine reproduce list: every experiment, its question, and its measured cost at each scale.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from recombine.cli import Argument, Output, parse
from recombine.foundation import Column, InputError, Table, replace_file
from recombine.sweeps import Experiment, find_experiment, installed_experiments
from recombine.tasks import SCALES
from recombine.training import Json
from recombine_papers.card import build_card, count_verdicts, tabulate_card
from recombine_papers.experiment import PaperExperiment
from recombine_papers.pages import INDEX_TITLE, format_index, update_page
from recombine_papers.stored import copy_shared_runs

Experiments = Mapping[str, PaperExperiment]


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


@dataclass(frozen=True, kw_only=True)
class ListOptions(Output):
    """List the experiments with their questions and their measured costs."""

    examples = ("recombine reproduce list", "recombine reproduce list --json")


def run(argv: list[str]) -> None:
    """The verbs `claims` and `list`."""
    if argv[0] == "list":
        list_experiments(parse(ListOptions, argv[1:], prog="reproduce list"))
    else:
        show_claims(parse(ClaimsOptions, argv[1:], prog="reproduce claims"))


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
    changed = collect_all(options, experiments)
    rows = build_card(experiments.values(), options.results)
    closing = [f"results: {path}" for path in changed]
    for page in options.page:
        text = page.read_text(encoding="utf-8") if page.exists() else ""
        replace_file(page, update_page(text, rows, options.results, page, experiments).encode())
        closing.append(f"page: {page}")
    figures = draw_figures(options.results, options.figures, experiments) if options.figures is not None else []
    value: Json = {
        "summary": count_verdicts(rows),
        "claims": tabulate_card(rows).as_dicts(),
        "figures": [str(path) for path in figures],
    }
    options.show(value, tabulate_card(rows), *closing, *(f"figure: {path}" for path in figures))


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
