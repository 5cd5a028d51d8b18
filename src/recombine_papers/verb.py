"""recombine reproduce claims: the card of claims, from the finished runs of all experiments.

Finished runs below `--out` are added to the files in `--results` first. The card, its figures and the tables in pages of the
documentation are made of these files alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from recombine.cli.output import Output
from recombine.foundation import InputError, replace_file
from recombine.training import Json
from recombine_papers import EXPERIMENTS
from recombine_papers.card import (
    BEGIN,
    TITLE,
    CardRow,
    build_card,
    count_verdicts,
    format_page,
    summarise_card,
    tabulate_card,
    update_block,
)
from recombine_papers.stored import INDEX_TITLE, copy_shared_runs, fill_blocks, format_index, has_blocks


def show_claims(options: Output, *, runs: Path, results: Path, pages: Sequence[Path], figures: Path | None) -> None:
    """Collect finished runs, then print the card, and write pages and figures."""
    changed = collect_all(options, runs, results)
    rows = read_card(results)
    closing = [f"results: {path}" for path in changed]
    for page in pages:
        replace_file(
            page, update_page(page.read_text(encoding="utf-8") if page.exists() else "", rows, results, page).encode()
        )
        closing.append(f"page: {page}")
    drawn = draw_figures(results, figures) if figures is not None else []
    value: Json = {
        "summary": count_verdicts(rows),
        "claims": tabulate_card(rows).as_dicts(),
        "figures": [str(path) for path in drawn],
    }
    options.show(value, tabulate_card(rows), *closing, *(f"figure: {path}" for path in drawn))


def read_card(results: Path) -> list[CardRow]:
    """The card that the files in a folder give."""
    return build_card(EXPERIMENTS.values(), results)


def collect_all(options: Output, runs: Path, results: Path) -> list[Path]:
    """Calculate what needs no runs, add the finished runs of experiments to their files; returns the files that changed."""
    index = results / "README.md"
    if index.exists() and not index.read_bytes().startswith(INDEX_TITLE.encode()):
        raise InputError(f"{index} is another page: expected a folder of results")
    if not results.is_dir() and not runs.is_dir():
        return []
    changed = []
    for experiment in EXPERIMENTS.values():
        for scale in experiment.judged_scales:
            stored = experiment.store(results, scale, runs)
            if stored and not options.json:
                options.say(f"{experiment.name} ({scale}): new results")
            changed += stored
    changed += copy_shared_runs(EXPERIMENTS.values(), results)
    if results.is_dir():
        replace_file(index, format_index(EXPERIMENTS.values(), results).encode())
    return list(dict.fromkeys(changed))


def update_page(text: str, rows: Sequence[CardRow], results: Path, page: Path) -> str:
    """The short form and tables between the markers of a page that has some; otherwise the whole card."""
    if BEGIN not in text and not has_blocks(text):
        if text and not text.startswith(TITLE):
            raise InputError(f"{page} is another page: expected a new file, the page of claims, or one with markers")
        return format_page(rows)
    text = update_block(text, summarise_card(rows), page) if BEGIN in text else text
    return fill_blocks(text, results, EXPERIMENTS)


def draw_figures(results: Path, folder: Path) -> list[Path]:
    """The figures that stored results are enough for, each at the largest scale with results."""
    folder.mkdir(parents=True, exist_ok=True)
    drawn = []
    for experiment in EXPERIMENTS.values():
        if not experiment.has_figures or experiment.figures_need_runs:
            continue
        stored = (experiment.read(results, scale) for scale in experiment.judged_scales[::-1])
        finished = next(filter(None, stored), None)
        drawn += experiment.figures(finished, folder) if finished is not None else []
    return drawn
