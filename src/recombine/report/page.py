"""One HTML file about runs: the question, the answer, the evidence, and how the runs were made.

The page is a list of sections, one file each in `sections`. Only run directories are read.

The top of the page: what is asked, an instance as an example, and the answer as a picture.

The page is for people who have not read the paper, so every term is explained where it stands (`TERMS`, shown on hover).
"""

from __future__ import annotations

import base64
import hashlib
import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any

import jinja2
from markupsafe import Markup

from recombine.foundation.files import write_whole
from recombine.inside.result import DECODER_TITLES
from recombine.models.base import Code
from recombine.report import figures
from recombine.report import figures as inside_figures
from recombine.report.figures import score_figure
from recombine.report.findings import Change
from recombine.report.printed import static_figures
from recombine.report.read import ReportRun, compare, group_seeds, metrics_of, reach, read_runs, seed_lead
from recombine.report.sections import list_sections
from recombine.tasks.base import Task
from recombine.tasks.sampling import SPLIT_MEANINGS
from recombine.tasks.view import COLOUR_SCALES, DARK_PALETTE, LIGHT_PALETTE, define_shapes
from recombine.training.schema import Json
from recombine.training.score import Score

TERMS = {
    "module": "A part that instances are made of, such as a rule of a puzzle or a term of a function.",
    "composition": "The set of modules that makes an instance together.",
    "held-out": "Consisting of modules that were all trained, but never trained together.",
    "seen": "Trained, and scored on new instances.",
    "chance": "The score of the best answer that ignores the input.",
    "ceiling": "The best score that any predictor can have. It is below a perfect score where instances are ambiguous.",
    "interval": "95 % interval: what to expect if the compositions were drawn again, and with several seeds the seeds too.",
    "latent code": "The attention scores of all heads for one pair of query and key.",
    "decoder": "A linear classifier or regression from activations to modules, fitted on seen compositions.",
    "purity": "Share of the ten nearest neighbours of a code with the same target or module.",
    "verdict": "Why the network does or does not recombine what it learned, from fixed thresholds on measured numbers.",
    "R²": "1 for a perfect prediction, 0 for predicting the mean: the mean over outputs of 1 − squared error / variance.",
    "R² pooled": "As R², with squared errors and variances summed before dividing.",
}


def explain(word: str, shown: str | None = None) -> Markup:
    """A word that is explained on hover."""
    return Markup('<abbr class="term" tabindex="0" title="{}">{}</abbr>').format(TERMS[word], shown or word)


@dataclass(frozen=True, kw_only=True)
class Example:
    """An instance of a held-out composition."""

    task: str
    summary: str
    held_out: str  # what the split `ood` holds, if not just held-out compositions of trained modules
    picture: Markup
    composition: tuple[str, ...]
    joined_by: str


def make_example(runs: Sequence[ReportRun]) -> Example | None:
    """The first held-out instance of the task that all runs have; None if there is no such task."""
    names = {run.directory.config.get("task", {}).get("name") for run in runs}
    task = next((run.task for run in runs if run.task is not None), None)
    if len(names) != 1 or task is None:
        return None
    try:
        return _draw(task)
    except Exception:  # an error in a task must not prevent the report
        return None


def _draw(task: Task) -> Example:
    batch = task.sample("ood", 0, batch_size=1)
    best = task.best_predictions(batch, split="ood", metric=task.headline)
    card = task.card(batch, 0, task.judge(best, batch)[0][0])
    return Example(
        task=task.name.replace("_", " "),
        summary=re.sub(r" \([A-Z]{2}\b[^)]*\)", "", task.summary[:1].lower() + task.summary[1:].rstrip(".")),
        held_out="" if task.split_meaning("ood") == SPLIT_MEANINGS["ood"] else task.split_meaning("ood"),
        picture=card.picture,
        composition=card.composition[:12],
        joined_by=card.joined_by,
    )


# of bidirectional text
MARKS = {
    number: f"⟨U+{number:04X}⟩" for number in (0x61C, 0x200E, 0x200F, *range(0x202A, 0x202F), *range(0x2066, 0x206A))
}


def write_report(
    runs: Sequence[Path],
    out: Path,
    *,
    title: str,
    static: Path | None = None,
    gallery: bool = True,
    code: Sequence[Code] = (),
) -> None:
    """Write the page atomically; with `static`, also write its figures as PNG and SVG files to that folder.

    `code` names classes from outside the package, as for `load_run`.
    """
    opened = read_runs(runs, code)
    write_whole(out, render(opened, title, gallery=gallery).encode(errors="replace"))
    if static is not None:
        for name, content in static_figures(opened, metrics_of(opened)):
            write_whole(static / name, content)


@cache
def load_templates() -> tuple[jinja2.Environment, str, str, str]:
    """The environment for templates; scripts are read as plain text."""
    loader = jinja2.PackageLoader("recombine.report")
    environment = jinja2.Environment(
        loader=loader, autoescape=True, finalize=show_marks, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters |= FILTERS
    environment.globals |= {
        "reach": reach,
        "reach_of": reach_of,
        "define_shapes": define_shapes,
        "describe_module": describe_module,
        "explain": explain,
        "TERMS": TERMS,
    }
    theme, explorer, report = (
        loader.get_source(environment, name)[0] for name in ("theme.js", "explorer.js", "report.js")
    )
    return environment, theme, explorer, report


def render(runs: Sequence[ReportRun], title: str, *, gallery: bool = True) -> str:
    """The page as text. Its security policy forbids the network, and every script but those named here by their hash."""
    from plotly.offline import get_plotlyjs

    environment, theme, explorer, report = load_templates()
    scripts = [theme, explorer + report, get_plotlyjs()]
    builders = {name: build for name, build in list_sections().items() if gallery or name != "gallery"}
    sections = [section for build in builders.values() if (section := build(runs))]
    templates = {
        section.name: section.name + ".html" if section.template is None else environment.from_string(section.template)
        for section in sections
    }
    metric = next(iter(metrics_of(runs)), None)
    groups = group_seeds(runs, metric) if metric else []
    answer = (
        {"answer": score_figure(groups or list(runs), metric)} if metric and any(run.scores for run in runs) else {}
    )
    return environment.get_template("page.html").render(
        title=title,
        example=make_example(runs),
        runs=runs,
        sections=sections,
        templates=templates,
        comparison=compare(runs, metric) if metric else None,
        groups=groups,
        lead=seed_lead(groups, metric) if metric else None,
        figures={
            name: tidy(figure) for part in (answer, *(s.figures for s in sections)) for name, figure in part.items()
        },
        palettes={"light": LIGHT_PALETTE, "dark": DARK_PALETTE},
        scales=COLOUR_SCALES,
        scripts=[Markup(script) for script in scripts],  # ours and the library's, no user's text
        hashes=[base64.b64encode(hashlib.sha256(script.encode()).digest()).decode() for script in scripts],
        version=metadata.version("recombine"),
    )


def reach_of(score: Json) -> float | None:
    """The position of a score of `result.json` between chance (0) and ceiling (1)."""
    return reach(Score(**{name: score[name] for name in ("value", "low", "high", "chance", "ceiling")}), score["value"])


def describe_module(task: Task, module: str) -> str:
    """The name of a module as in the other sections; its number if the task has none."""
    try:
        return f"{module}: {task.describe((int(module),))}"
    except Exception:  # an error in a task must not prevent the report
        return module


def _title_site(site: str) -> str:
    kind, _, layer = site.rpartition(".")
    return f"{kind}, layer {layer}" if kind and layer.isdigit() else site


def _by_head(changes: Sequence[Change]) -> dict[tuple[int, int | None], dict[str, Change]]:
    """{(layer, head): {kind: change}}."""
    heads: dict[tuple[int, int | None], dict[str, Change]] = {}
    for change in changes:
        heads.setdefault((change.layer, change.head), {})[change.kind] = change
    return heads


def _runs_of(context: jinja2.runtime.Context) -> list[ReportRun]:
    """The runs of a page; none in a page that shows something else."""
    return [run for run in context.get("runs", ()) if isinstance(run, ReportRun)]


@jinja2.pass_context
def _title_metric(context: jinja2.runtime.Context, metric: str) -> str:
    return figures.metric_title(metric, _runs_of(context))


@jinja2.pass_context
def _title_split(context: jinja2.runtime.Context, split: str) -> str:
    return figures.split_title(split, _runs_of(context))


FILTERS: dict[str, Callable[..., Any]] = {
    "number": lambda value: format_number(value),
    "signed": lambda value: ("+" if value > 0 else "") + format_number(value),
    "metric": _title_metric,
    "split": _title_split,
    "site": _title_site,
    "decoder": lambda metric: DECODER_TITLES[metric],
    "kind": lambda kind: inside_figures.KIND_TITLES.get(kind, kind),
    "zip": lambda first, second: list(zip(first, second, strict=True)),
    "by_head": lambda changes: list(_by_head(changes).items()),
    "selectin": lambda options, values: [option for option in options if option[0] in values],
    "duration": lambda seconds: format_duration(seconds),
    "capitalize_first": lambda text: text[:1].upper() + text[1:].rstrip("."),
}


def format_number(value: float | None) -> str:
    if value is None or not math.isfinite(value):
        return "–"
    # a small squared error is not 0
    return (f"{value:.1e}" if 0 < abs(value) < 1e-3 else f"{value:.3f}").replace("-", "−")


def format_duration(seconds: float) -> str:
    """Seconds, minutes or hours."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5_400 else f"{seconds / 3_600:.1f} h"


def tidy(value: Any) -> Any:
    """Round to six digits, which is enough for a picture; values that are not finite become gaps."""
    if isinstance(value, dict):
        return {key: tidy(item) for key, item in value.items()}
    if isinstance(value, list):
        return [tidy(item) for item in value]
    if isinstance(value, float):
        return float(f"{value:.6g}") if math.isfinite(value) else None
    return show_marks(value)


def show_marks(value: Any) -> Any:
    """Text in which marks that change the direction of writing are shown, not obeyed: a name cannot reorder the page."""
    return value.translate(MARKS) if type(value) is str else value
