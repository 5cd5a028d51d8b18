"""One HTML file about runs: the question, the answer, the evidence, and how it was made.

The page is a list of sections. A section is a function from the runs to a `Section` (or to None, if no run has what it
shows) and a template of the same name; add it to `SECTIONS` and the page has it. Only run directories are read.
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

from recombine.files import write_whole
from recombine.report import figures
from recombine.report.gallery_pictures import define_shapes
from recombine.report.inside import INSIDE_FILTERS, INSIDE_SECTIONS, gallery_section, verdict_section
from recombine.report.runs import ReportRun, compare, differing_settings, metrics_of, reach, read_runs, splits_of
from recombine.report.section import Section
from recombine.report.static import static_figures


def scores_section(runs: Sequence[ReportRun]) -> Section | None:
    metrics = metrics_of(runs)
    references = {
        (metric, split): {
            (each.chance, each.ceiling) for run in runs if run.result and (each := run.score(split, metric))
        }
        for metric in metrics
        for split in splits_of(runs)
    }
    shared = {place: next(iter(found)) for place, found in references.items() if len(found) == 1}
    drawn = {f"scores-{metric}": figures.score_figure(runs, metric) for metric in metrics}
    content = {"metrics": metrics, "splits": splits_of(runs), "shared": shared}
    return Section(name="scores", title="Scores", content=content, figures=drawn) if metrics else None


def curves_section(runs: Sequence[ReportRun]) -> Section | None:
    drawn = {"loss": figures.loss_figure(runs)}
    for metric in metrics_of(runs):
        drawn |= {f"curves-{metric}-{split}": figures.curve_figure(runs, split, metric) for split in splits_of(runs)}
    content = {"metrics": metrics_of(runs), "splits": splits_of(runs)}
    trained = any(run.metrics for run in runs)
    return Section(name="curves", title="Learning curves", content=content, figures=drawn) if trained else None


def certificate_section(runs: Sequence[ReportRun]) -> Section | None:
    groups: dict[str, list[ReportRun]] = {}
    for run in runs:
        if run.certificate:
            groups.setdefault(str(run.certificate.get("sha256")), []).append(run)
    return Section(name="certificate", title="The split", content={"groups": groups}) if groups else None


def origin_section(runs: Sequence[ReportRun]) -> Section:
    differing = differing_settings([run.directory for run in runs])[0]
    return Section(name="origin", title="How it was made", content={"differing": list(differing)})


SECTIONS: tuple[Callable[[Sequence[ReportRun]], Section | None], ...] = (
    verdict_section,
    scores_section,
    curves_section,
    *INSIDE_SECTIONS,
    certificate_section,
    origin_section,
)


def write_report(
    runs: Sequence[Path], out: Path, *, title: str, static: Path | None = None, gallery: bool = True
) -> None:
    """Write the page, whole or not at all; with `static` also its figures as PNG and SVG files into that folder."""
    opened = read_runs(runs)
    write_whole(out, render(opened, title, gallery=gallery).encode(errors="replace"))
    if static is not None:
        for name, content in static_figures(opened, metrics_of(opened)):
            write_whole(static / name, content)


@cache
def load_templates() -> tuple[jinja2.Environment, str, str, str]:
    """The templates, and the scripts as they are: they are no templates."""
    loader = jinja2.PackageLoader("recombine.report")
    environment = jinja2.Environment(loader=loader, autoescape=True, trim_blocks=True, lstrip_blocks=True)
    environment.filters |= {"number": format_number, "metric": figures.metric_title, "split": figures.split_title}
    environment.filters |= INSIDE_FILTERS
    environment.globals |= {"reach": reach, "define_shapes": define_shapes}
    theme, explorer, report = (
        loader.get_source(environment, name)[0] for name in ("theme.js", "explorer.js", "report.js")
    )
    return environment, theme, explorer, report


def render(runs: Sequence[ReportRun], title: str, *, gallery: bool = True) -> str:
    """The page as text. Its security policy forbids the network, and every script but those named here by their hash."""
    from plotly.offline import get_plotlyjs

    environment, theme, explorer, report = load_templates()
    scripts = [theme, explorer + report, get_plotlyjs()]
    builders = [build for build in SECTIONS if gallery or build is not gallery_section]
    sections = [section for build in builders if (section := build(runs))]
    return environment.get_template("page.html").render(
        title=title,
        runs=runs,
        sections=sections,
        comparison=compare(runs, metric) if (metric := next(iter(metrics_of(runs)), None)) else None,
        figures={name: tidy(figure) for section in sections for name, figure in section.figures.items()},
        palettes={"light": figures.LIGHT_PALETTE, "dark": figures.DARK_PALETTE},
        scales=figures.SCALES,
        scripts=[Markup(script) for script in scripts],  # ours and the library's, no user's text
        hashes=[base64.b64encode(hashlib.sha256(script.encode()).digest()).decode() for script in scripts],
        version=metadata.version("recombine"),
    )


def format_number(value: float | None) -> str:
    if value is None or not math.isfinite(value):
        return "–"
    # a small squared error is not 0
    return (f"{value:.1e}" if 0 < abs(value) < 1e-3 else f"{value:.3f}").replace("-", "−")


def tidy(value: Any) -> Any:
    """Six digits are enough for a picture; what is not finite becomes a gap."""
    if isinstance(value, dict):
        return {key: tidy(each) for key, each in value.items()}
    if isinstance(value, list):
        return [tidy(each) for each in value]
    if isinstance(value, float):
        return float(f"{value:.6g}") if math.isfinite(value) else None
    return value
