"""The figures of a report for papers and slides, as PNG and SVG files by Matplotlib.

Maps of latent codes and tables of modules for papers and slides, of one run or of several side by side.

Pictures of what happens inside networks for papers and slides, drawn by matplotlib.

Pictures of runs for papers and slides: PNG and SVG files by matplotlib.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from recombine.inside.result import DECODER_TITLES
from recombine.report.explorer import RESOLUTION, EmbeddingMap, read_map
from recombine.report.figures import (
    KIND_TITLES,
    ROWS,
    SPLIT_TITLES,
    choose_dash,
    metric_title,
    number_heads,
    score_range,
    split_title,
)
from recombine.report.findings import (
    READINGS,
    Change,
    Decoded,
    Found,
    gather,
    read_ablations,
    read_decoders,
    read_similarity,
    read_swap,
)
from recombine.report.read import Curve, ReportRun
from recombine.tasks.view import (
    COLOUR_SCALES,
    DARK,
    GRID,
    LIGHT_PALETTE,
    METADATA,
    QUIET,
    STYLE,
    TRACK,
    escape_text,
    make_figure,
    render_figure,
)
from recombine.training.schema import Json

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure as Canvas

LIGHT = COLOUR_SCALES["light"]

Labelled = Sequence[tuple[str, Any]]  # a run's label and what was found in it


def draw_map(code_map: EmbeddingMap, label: str) -> Canvas:
    """Every site, by target and below by module."""
    canvas = _draw_maps([(site, code_map, site) for site in code_map.sites])
    canvas.suptitle(label)
    return canvas


def draw_last_maps(found: Labelled) -> Canvas:
    """The last layer's codes of each run, by target and below by module (as figures 2D, 5A and 5B of the paper)."""
    return _draw_maps([(label, code_map, list(code_map.sites)[-1]) for label, code_map in found])


def _draw_maps(columns: Sequence[tuple[str, EmbeddingMap, str]]) -> Canvas:
    """One column a (title, map, site); one row a colouring that every map has."""
    coloured = all(code_map.binary for _, code_map, _ in columns)
    colourings = ["target"] + (["module"] if coloured else [])
    canvas = make_figure(2.3 * len(columns) + 0.8, 2.3 * len(colourings) + 0.7)
    grid = canvas.subplots(len(colourings), len(columns), squeeze=False)
    for row, colouring in zip(grid, colourings, strict=True):
        for axes, (title, code_map, site) in zip(row, columns, strict=True):
            shown = _scatter(axes, code_map, site, colouring)
            edge = (-0.03 * RESOLUTION, 1.03 * RESOLUTION)
            axes.set(xticks=[], yticks=[], xlim=edge, ylim=edge, aspect="equal")
            axes.spines[:].set_visible(False)
            if colouring == "target":
                axes.set_title(escape_text(title))
        if colouring == "target":
            canvas.colorbar(shown, ax=list(row), shrink=0.7, label="target")
            row[0].set_ylabel("by target")
        else:
            words = "by module" if columns[0][1].single else "by first module"
            row[0].set_ylabel(words)
            handles = row[0].get_legend_handles_labels()
            canvas.legend(*handles, loc="outside lower center", ncols=4, frameon=False, fontsize=6, markerscale=2)
    return canvas


def _scatter(axes: Axes, code_map: EmbeddingMap, site: str, colouring: str) -> Any:
    from matplotlib.colors import LinearSegmentedColormap

    places = code_map.sites[site]
    if colouring == "target":
        ramp = LinearSegmentedColormap.from_list("ramp", LIGHT["ramp"])
        return axes.scatter(places[:, 0], places[:, 1], c=code_map.target.astype(float), cmap=ramp, s=3, linewidths=0)
    first = code_map.labels.argmax(axis=1)
    for number in sorted(set(first.tolist())):
        colour = LIGHT["class"][number % len(LIGHT["class"])]
        chosen = places[first == number]
        label = escape_text(code_map.modules[number])
        axes.scatter(chosen[:, 0], chosen[:, 1], color=colour, s=3, linewidths=0, label=label)
    return None


def draw_similarity(sites: dict[str, Json], label: str) -> Canvas:
    """Every site of a run."""
    canvas = _draw_similarities(list(sites.items()))
    canvas.suptitle(label)
    return canvas


def draw_last_similarities(found: Labelled) -> Canvas:
    """The last layer of each run (as figure 5E of the paper)."""
    return _draw_similarities([(label, list(sites.values())[-1]) for label, sites in found])


def _draw_similarities(panels: Labelled) -> Canvas:
    from matplotlib.colors import LinearSegmentedColormap

    side = 0.9 + 0.16 * max(len(similarity["modules"]) for _, similarity in panels)
    canvas = make_figure(1.6 + side * len(panels), side + 0.8)
    diverging = LinearSegmentedColormap.from_list("diverging", LIGHT["diverging"])
    grid = canvas.subplots(1, len(panels), squeeze=False)[0]
    for number, (axes, (title, similarity)) in enumerate(zip(grid, panels, strict=True)):
        shown = axes.imshow(_fill(similarity["centred"]), cmap=diverging, vmin=-1, vmax=1)
        names = [escape_text(name) for name in similarity["modules"]] if number == 0 else []
        axes.set(title=escape_text(title), xticks=[], yticks=range(len(names)))
        axes.set_yticklabels(names, fontsize=6)
    canvas.colorbar(shown, ax=list(grid), shrink=0.7, label="cosine, minus the mean")
    return canvas


def draw_by_rule(splits: dict[str, Json], label: str) -> Canvas:
    """How often the answer follows the swapped-in rule (column), by the puzzle's own (row)."""
    from matplotlib.colors import LinearSegmentedColormap

    ramp = LinearSegmentedColormap.from_list("follow", ("#f6f6f4", LIGHT["follow"][1]))
    canvas = make_figure(1.2 + 3.0 * len(splits), 3.2)
    for axes, (split, table) in zip(canvas.subplots(1, len(splits), squeeze=False)[0], splits.items(), strict=True):
        axes.imshow(_fill(table["values"]), cmap=ramp, vmin=0, vmax=1, aspect="auto")
        for i, row in enumerate(table["values"]):
            for j, value in enumerate(row):
                if value is not None:
                    axes.text(j, i, f"{value:.0%}", ha="center", va="center", fontsize=6)
        columns, rows = ([escape_text(name) for name in table[side]] for side in ("columns", "rows"))
        axes.set_xticks(range(len(columns)), columns, fontsize=6, rotation=45, ha="right")
        axes.set_yticks(range(len(rows)), rows, fontsize=6)
        axes.set(title=split_title(split), xlabel="swapped-in rule", ylabel="own rule")
    canvas.suptitle(label)
    return canvas


def _fill(matrix: Sequence[Sequence[float | None]]) -> list[list[float]]:
    return [[float("nan") if value is None else value for value in row] for row in matrix]


Style = Callable[[ReportRun], tuple[str, str]]  # colour and label of a run
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


DASHES = ("-", "--", ":", "-.")  # names of matplotlib


def static_figures(runs: Sequence[ReportRun], metrics: Sequence[str]) -> Iterator[tuple[str, bytes]]:
    """The pictures as (file name, content), in PNG and SVG; the same runs give the same bytes."""
    from matplotlib import rc_context

    with rc_context(STYLE):
        pictures = {"loss": make_figure(5, 3)}
        axes = pictures["loss"].subplots()
        _draw_curves(axes, [(run, run.loss_curve()) for run in runs])
        axes.set(yscale="log", ylabel="training loss")
        splits = [split for split in SPLIT_TITLES if any(split in run.scores for run in runs)]
        for metric in metrics:
            canvas = pictures[f"scores-{metric}"] = make_figure(5, 1 + 0.45 * len(runs))
            _draw_scores(canvas.subplots(), runs, metric)
            canvas = pictures[f"curves-{metric}"] = make_figure(1 + 2.6 * len(splits), 2.8)
            for number, split in enumerate(splits, start=1):
                axes = canvas.add_subplot(1, len(splits), number)
                _draw_curves(axes, [(run, run.score_curve(split, metric)) for run in runs])
                axes.set(title=split_title(split), ylabel=_print_metric(metric, runs), ylim=score_range(runs, metric))
        pictures |= inside_figures(runs, lambda run: (_print_colour(run), _print_label(run)))
        for name, canvas in pictures.items():
            for suffix in METADATA:
                yield f"{re.sub(r'[^A-Za-z0-9_-]', '-', name)}{suffix}", render_figure(canvas, suffix)


def _draw_curves(axes: Axes, curves: Sequence[tuple[ReportRun, Curve]]) -> None:
    for run, (steps, values) in curves:
        axes.plot(steps, values, color=_print_colour(run), linestyle=choose_dash(run, DASHES), label=_print_label(run))
    axes.set_xlabel("step")
    axes.grid(axis="y", color=GRID)
    if axes.get_subplotspec().is_first_col():  # type: ignore[union-attr]
        axes.legend(frameon=False)


def _draw_scores(axes: Axes, runs: Sequence[ReportRun], metric: str) -> None:
    for number, run in enumerate(runs):
        colour = _print_colour(run)
        for split, (_, symbol, place) in ROWS.items():
            score, y = run.score(split, metric), number + place
            if score is None:
                continue
            if score.chance is not None and score.ceiling is not None:
                axes.plot([score.chance, score.ceiling], [y, y], color=TRACK, marker="|", zorder=1)
            axes.plot([score.low, score.high], [y, y], color=colour, linewidth=2)
            axes.plot(score.value, y, marker="o", color=colour, markerfacecolor="white" if "open" in symbol else colour)
    labels = [_print_label(run) for run in runs]
    axes.set_title("● held-out   ○ seen compositions", fontsize="medium")
    axes.set(
        xlabel=_print_metric(metric, runs), yticks=range(len(runs)), yticklabels=labels, ylim=(len(runs) - 0.4, -0.6)
    )


def _print_colour(run: ReportRun) -> str:
    return LIGHT_PALETTE[run.series % len(LIGHT_PALETTE)]


def _print_label(run: ReportRun) -> str:
    return escape_text(run.label)


def _print_metric(metric: str, runs: Sequence[ReportRun]) -> str:
    return escape_text(metric_title(metric, runs))
