"""One HTML file about runs: the question, the answer, the evidence, and how the runs were made.

The page is a list of sections (`sections.py`); only run directories are read. It is for people who have not read the paper,
so every term is explained on first use (`TERMS`, shown on hover).
"""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Callable, Sequence
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any

import jinja2
from markupsafe import Markup

from recombine.foundation.display import format_duration
from recombine.foundation.files import write_output
from recombine.inside.result import DECODER_TITLES
from recombine.models.base import Code
from recombine.report.answer import make_answer
from recombine.report.figures import draw_scores, render_files, render_inline
from recombine.report.findings import Diagnosed
from recombine.report.runs import (
    ReportRun,
    group_seeds,
    list_metrics,
    metric_title,
    read_runs,
    show_number,
    split_title,
)
from recombine.report.sections import SECTIONS, Section, show_gallery
from recombine.tasks.base import Task
from recombine.tasks.sampling import SPLIT_MEANINGS
from recombine.tasks.view import COLOUR_SCALES, DARK_PALETTE, LIGHT_PALETTE, define_shapes
from recombine.training.schema import Json

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
    sections = build_sections(opened, gallery=gallery)
    write_output(out, render(opened, title, sections).encode(errors="replace"))
    if static is not None:
        figures = {name: draw for section in sections for name, draw in section.figures.items()}
        for name, content in render_files(figures):
            write_output(static / name, content)


def build_sections(runs: Sequence[ReportRun], *, gallery: bool = True) -> list[Section]:
    """The sections that have something to show; `gallery` loads the networks and shows some of their answers."""
    builders = [build for build in SECTIONS if gallery or build is not show_gallery]
    return [section for build in builders if (section := build(runs))]


def render(runs: Sequence[ReportRun], title: str, sections: Sequence[Section] | None = None) -> str:
    """The page as text; all sections by default."""
    sections = build_sections(runs) if sections is None else sections
    environment = load_templates()
    metric = next(iter(list_metrics(runs)), None)
    groups = group_seeds(runs, metric) if metric else []
    verdicts: list[Diagnosed] = next(
        (section.content["found"] for section in sections if section.name == "verdict"), []
    )
    drawn = {name: draw for section in sections for name, draw in section.figures.items()}
    if metric:
        drawn["answer"] = lambda: draw_scores(groups or runs, metric)
    return render_page(
        "page.html",
        ["theme.js", "report.js"],
        title=title,
        contents=[(section.name, section.title) for section in sections],
        runs=runs,
        example=make_example(runs),
        answer=make_answer(runs, groups, metric, verdicts),
        sections=sections,
        templates={
            section.name: f"{section.name}.html"
            if section.template is None
            else environment.from_string(section.template)
            for section in sections
        },
        groups=groups,
        figures=drawn,
        draw_figure=lambda name: render_inline(drawn[name], name),
        maps=next((section.content.get("maps", {}) for section in sections if section.name == "codes"), {}),
    )


def render_page(template: str, scripts: Sequence[str], **content: Any) -> str:
    """A page as text. Its security policy forbids the network, and every script but those named here, by their hash."""
    environment = load_templates()
    assert environment.loader is not None
    sources = [environment.loader.get_source(environment, name)[0] for name in scripts]
    return environment.get_template(template).render(
        scripts=[Markup(source) for source in sources],  # no user's text
        hashes=[base64.b64encode(hashlib.sha256(source.encode()).digest()).decode() for source in sources],
        palettes={"light": LIGHT_PALETTE, "dark": DARK_PALETTE},
        scales=COLOUR_SCALES,
        version=metadata.version("recombine"),
        **content,
    )


@cache
def load_templates() -> jinja2.Environment:
    loader = jinja2.PackageLoader("recombine.report")
    environment = jinja2.Environment(loader=loader, autoescape=True, trim_blocks=True, lstrip_blocks=True)
    environment.filters |= FILTERS
    environment.globals |= {
        "define_shapes": define_shapes,
        "describe_module": describe_module,
        "explain": explain,
        "TERMS": TERMS,
    }
    return environment


def make_example(runs: Sequence[ReportRun]) -> Json | None:
    """The first held-out instance of the task that all runs have, for the template; None if there is no such task."""
    names = {run.directory.config["task"].get("name") for run in runs}
    task = next((run.task for run in runs if run.task is not None), None)
    if len(names) != 1 or task is None:
        return None
    try:
        batch = task.sample("ood", 0, batch_size=1)
        best = task.best_predictions(batch, split="ood", metric=task.headline)
        card = task.card(batch, 0, task.judge(best, batch)[0][0])
    except Exception:  # an error in a task must not prevent the report
        return None
    return {
        "task": task.name.replace("_", " "),
        "summary": re.sub(r" \([A-Z]{2}\b[^)]*\)", "", task.summary[:1].lower() + task.summary[1:].rstrip(".")),
        "held_out": "" if task.split_meaning("ood") == SPLIT_MEANINGS["ood"] else task.split_meaning("ood"),
        "picture": card.picture,
        "composition": card.composition[:12],
        "joined_by": card.joined_by,
    }


def explain(word: str, shown: str | None = None) -> Markup:
    """A word that is explained on hover."""
    return Markup('<abbr class="term" tabindex="0" title="{}">{}</abbr>').format(TERMS[word], shown or word)


def describe_module(task: Task, module: str) -> str:
    """The name of a module as in the other sections; its number if the task has none."""
    try:
        return f"{module}: {task.describe((int(module),))}"
    except Exception:  # an error in a task must not prevent the report
        return module


def _by_head(rows: Sequence[Json]) -> list[tuple[tuple[int, int], dict[str, Json]]]:
    """((layer, head), {kind: ablation}) for each head."""
    heads: dict[tuple[int, int], dict[str, Json]] = {}
    for row in rows:
        heads.setdefault((row["layer"], row["head"]), {})[row["kind"]] = row
    return list(heads.items())


FILTERS: dict[str, Callable[..., Any]] = {
    "number": show_number,
    "metric": jinja2.pass_context(lambda context, metric: metric_title(metric, context.get("runs", ()))),
    "split": jinja2.pass_context(lambda context, split: split_title(split, context.get("runs", ()))),
    "site": lambda site: re.sub(r"^(.+)\.(\d+)$", r"\1, layer \2", site),
    "decoder": lambda metric: DECODER_TITLES[metric],
    "zip": lambda first, second: list(zip(first, second, strict=True)),
    "labels": lambda runs: [(run.series, run.label) for run in runs],
    "by_head": _by_head,
    "duration": format_duration,
    "capitalize_first": lambda text: text[:1].upper() + text[1:].rstrip("."),
}
