"""One HTML file about runs: the question, the answer, the evidence, and how the runs were made.

The page is a list of sections, one file each in `sections`. Only run directories are read.
"""

from __future__ import annotations

import base64
import hashlib
import math
from collections.abc import Callable, Sequence
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any

import jinja2
from markupsafe import Markup

from recombine.drawing.palette import DARK_PALETTE, LIGHT_PALETTE, SCALES
from recombine.drawing.svg import define_shapes
from recombine.evaluate import Score
from recombine.files import write_whole
from recombine.registry import Code
from recombine.report import figures, inside_figures
from recombine.report.figures import score_figure
from recombine.report.groups import group_seeds, seed_lead
from recombine.report.interventions import Change
from recombine.report.opening import TERMS, explain, make_example
from recombine.report.printed import static_figures
from recombine.report.runs import ReportRun, compare, metrics_of, reach, read_runs
from recombine.report.sections import list_sections
from recombine.store import Json
from recombine.tasks import Task

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
        scales=SCALES,
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
    "decoder": lambda metric: inside_figures.DECODER_TITLES[metric],
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
