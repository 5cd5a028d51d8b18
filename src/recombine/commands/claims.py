"""recombine reproduce claims: the card of claims, from the finished runs of all experiments.

Finished runs below `--out` are added to the files in `--results` first. The card is made of these files alone.
"""

from __future__ import annotations

from pathlib import Path

from recombine.commands.console import Output
from recombine.files import replace_file
from recombine.recipes import EXPERIMENTS
from recombine.recipes.card import CardRow, build_card, count_verdicts, tabulate_card
from recombine.recipes.card_page import BEGIN, format_page, summarise_card, update_block
from recombine.recipes.results_index import format_index
from recombine.recipes.stored import collect, results_path, write_results
from recombine.store import Json
from recombine.tasks.base import SCALES


def show_claims(options: Output, *, runs: Path, results: Path, page: Path | None) -> None:
    """Collect finished runs, then print the card and write its page."""
    changed = collect_all(options, runs, results)
    rows = build_card(EXPERIMENTS.values(), results)
    closing = [f"results: {path}" for path in changed]
    if page is not None:
        write_card(rows, page)
        closing.append(f"page: {page}")
    value: Json = {"summary": count_verdicts(rows), "claims": tabulate_card(rows).as_dicts()}
    options.show(value, tabulate_card(rows), *closing)


def collect_all(options: Output, runs: Path, results: Path) -> list[Path]:
    """Add the finished runs of every experiment to its files; returns the files that changed."""
    changed = []
    for experiment in EXPERIMENTS.values() if runs.is_dir() else ():
        for scale in SCALES:
            found = collect(experiment, scale, runs)
            if found and not options.json:
                options.say(f"{experiment.name} ({scale}): {len(found)} finished runs")
            if write_results(results, experiment, scale, found):
                changed.append(results_path(results, experiment, scale))
    if changed:
        replace_file(results / "README.md", format_index(EXPERIMENTS.values(), results).encode())
    return changed


def write_card(rows: list[CardRow], page: Path) -> None:
    """Write the whole page, or the short form between the markers of a file that has them."""
    text = page.read_text() if page.exists() else ""
    content = update_block(text, summarise_card(rows), page) if BEGIN in text else format_page(rows)
    replace_file(page, content.encode())
