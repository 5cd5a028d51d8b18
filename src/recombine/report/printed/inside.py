"""Pictures of what happens inside networks for papers and slides, drawn by matplotlib."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from recombine.drawing.canvas import escape_text, make_figure
from recombine.drawing.palette import DARK, QUIET, SCALES, TRACK
from recombine.report.explorer import read_map
from recombine.report.figures import metric_title, split_title
from recombine.report.findings import READINGS, Decoded, Found, gather, read_decoders, read_similarity
from recombine.report.inside_figures import DECODER_TITLES, KIND_TITLES, number_heads
from recombine.report.interventions import Change, read_ablations, read_swap
from recombine.report.printed.maps import (
    draw_by_rule,
    draw_last_maps,
    draw_last_similarities,
    draw_map,
    draw_similarity,
)
from recombine.report.runs import ReportRun
from recombine.store import Json

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure as Canvas

Style = Callable[[ReportRun], tuple[str, str]]  # colour and label of a run
LIGHT = SCALES["light"]
PRESENCE_METRICS = ("f1", "auc", "exact")
SWAP_WORDS = {"other": "swapped-in {}", "own": "own {}", "neither": "neither", "follows": "follows the donor"}


def inside_figures(runs: Sequence[ReportRun], style: Style) -> Iterator[tuple[str, Canvas]]:
    """Each picture with its name. A run whose files cannot be read is left out; the page reports it."""
    for key in READINGS:
        decoded = gather(runs, partial(read_decoders, key=key))[0]
        present = {metric for _, sites in decoded for site in sites for metric in site.scores}
        for metric in [name for name in PRESENCE_METRICS if name in present] or sorted(present):
            yield f"{key}-{metric}", _draw_decoders(decoded, metric, style)
    maps = gather(runs, read_map)[0]
    for run, code_map in maps:
        yield f"codes-{run.series}", draw_map(code_map, style(run)[1])
    similarities = gather(runs, read_similarity)[0]
    for run, similarity in similarities:
        yield f"similarity-{run.series}", draw_similarity(similarity, style(run)[1])
    if len(runs) > 1 and maps:
        yield "codes-last", draw_last_maps([(style(run)[1], code_map) for run, code_map in maps])
    if len(runs) > 1 and similarities:
        yield (
            "similarity-last",
            draw_last_similarities([(style(run)[1], similarity) for run, similarity in similarities]),
        )
    for run, ablations in gather(runs, read_ablations)[0]:
        yield f"ablations-{run.series}", _draw_ablations(ablations, *style(run))
    for run, swap in gather(runs, read_swap)[0]:
        if swap["splits"]:
            yield f"swap-{run.series}", _draw_swap(swap, style(run)[1])
        if swap["by_rule"]:
            yield f"by-rule-{run.series}", draw_by_rule(swap["by_rule"], style(run)[1])


def _draw_decoders(found: Found[list[Decoded]], metric: str, style: Style) -> Canvas:
    kinds = list(dict.fromkeys(site.kind for _, sites in found for site in sites))
    canvas = make_figure(max(5.2, 1 + 2.4 * len(kinds)), 2.8)
    panels: Sequence[Axes] = canvas.subplots(1, len(kinds), sharey=True, squeeze=False)[0]
    looks: dict[str, dict[str, Any]] = {
        "ood": {"marker": "o"},
        "id": {"marker": "o", "markerfacecolor": "white", "linestyle": "--", "linewidth": 1},
        "untrained": {"marker": "x", "linestyle": "none", "markersize": 5},
        "control": {"linestyle": ":", "linewidth": 1},
        "majority": {"color": QUIET, "linewidth": 0.8},
    }
    for axes, kind in zip(panels, kinds, strict=True):
        for run, sites in found:
            colour, label = style(run)
            here = [site for site in sites if site.kind == kind and metric in site.scores]
            for name, look in looks.items():
                values = [site.scores[metric][name] for site in here]
                known = [(site.layer, value) for site, value in zip(here, values, strict=True) if value is not None]
                look = {"color": colour, "label": label if name == "ood" else None, **look}
                axes.plot([layer for layer, _ in known], [value for _, value in known], **look)
        layers = sorted({site.layer for _, sites in found for site in sites if site.kind == kind}, key=str)
        axes.set(title=escape_text(KIND_TITLES.get(kind, kind)), xlabel="layer", xticks=layers)
    if metric in PRESENCE_METRICS:
        panels[0].set(ylim=(-0.02, 1.02))
    panels[0].set(ylabel=DECODER_TITLES[metric])
    panels[0].legend(frameon=False, fontsize="small")
    canvas.suptitle(
        "● held-out   ○ seen compositions   × untrained   ··· shuffled labels   — majority", fontsize="small"
    )
    return canvas


def _draw_ablations(ablations: Json, colour: str, label: str) -> Canvas:
    heads = [change for change in ablations["heads"] if change.kind == "mean"] or ablations["heads"]
    canvas = make_figure(7.0, 4.6)
    upper, lower = canvas.subplots(2, 1)
    ticks = [
        f"{change.layer}.{number}" if number else "" for change, number in zip(heads, number_heads(heads), strict=True)
    ]
    _draw_changes(upper, heads, ticks, colour)
    _draw_changes(
        lower,
        ablations["layers"],
        [escape_text(f"{change.layer}\n{change.kind}") for change in ablations["layers"]],
        colour,
    )
    upper.set(
        title=f"{label}: one head, by layer.head", ylabel=f"change of {escape_text(metric_title(ablations['metric']))}"
    )
    lower.set(title="a whole layer   ● held-out   ○ seen compositions")
    return canvas


def _draw_changes(axes: Axes, changes: Sequence[Change], ticks: Sequence[str], colour: str) -> None:
    for split, shift, face in (("test", -0.14, "white"), ("ood", 0.14, colour)):
        for number, ablation in enumerate(changes):
            if split in ablation.splits:
                change, low, high = ablation.splits[split]
                axes.plot([number + shift] * 2, [low, high], color=colour, linewidth=1)
                axes.plot(number + shift, change, marker="o", markersize=4, color=colour, markerfacecolor=face)
    axes.axhline(0, color=QUIET, linewidth=0.8)
    axes.set_xticks(range(len(ticks)), ticks, fontsize=6)


def _draw_swap(swap: Json, label: str) -> Canvas:
    canvas = make_figure(1.5 + 2.8 * len(swap["splits"]), 3.0)
    panels = canvas.subplots(1, len(swap["splits"]), sharey=True, squeeze=False)[0]
    colours = {
        "other": LIGHT["follow"][1],
        "own": LIGHT["follow"][0],
        "neither": TRACK,
        "follows": LIGHT["follow"][1],
    }
    for axes, (split, rows) in zip(panels, swap["splits"].items(), strict=True):
        left = [0.0] * len(rows)
        names = [row["words"] for row in rows]
        for part in (name for name in colours if name in swap["columns"]):
            widths = [row[part] or 0.0 for row in rows]
            axes.barh(
                names, widths, left=left, color=colours[part], height=0.65, label=SWAP_WORDS[part].format(swap["what"])
            )
            left = [start + width for start, width in zip(left, widths, strict=True)]
        for name, row in zip(names, rows, strict=True):
            if None not in row["interval"]:
                axes.plot(row["interval"], [name] * 2, color=DARK, linewidth=1.2, marker="|", markersize=4)
        axes.set(title=split_title(split))
    panels[0].invert_yaxis()
    canvas.legend(*panels[0].get_legend_handles_labels(), loc="outside lower center", ncols=3, frameon=False)
    canvas.suptitle(label)
    return canvas
