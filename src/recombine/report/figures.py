"""Figures of runs by Matplotlib: inline SVG on the page, and PNG and SVG files for papers and slides.

Each is drawn once, in the colours of the light page. On the page, these become CSS variables (`render_inline`), so the same
picture follows the reader's colour scheme.
"""

from __future__ import annotations

import io
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from markupsafe import Markup

from recombine.inside.result import DECODER_TITLES
from recombine.report.findings import RESOLUTION, Decoded, EmbeddingMap, Found
from recombine.report.runs import (
    Curve,
    ReportRun,
    RunGroup,
    find_range,
    is_lower_better,
    list_metrics,
    list_splits,
    metric_title,
    split_title,
)
from recombine.tasks.view import (
    COLOUR_SCALES,
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
    from matplotlib.figure import Figure

Draw = Callable[[], "Figure"]
Labelled = Sequence[tuple[str, Any]]  # a title, and what is drawn below it
Shown = ReportRun | RunGroup  # what a figure of scores shows

LIGHT = COLOUR_SCALES["light"]
TEXT = "#000000"
DASHES = ("-", "--", ":", "-.")
ROWS = {"ood": -0.12, "test": 0.12}  # split: place in the row of a run
KIND_TITLES = {"codes": "Latent codes", "residual": "Residual stream", "hidden": "Hidden activations", "site": "Sites"}
DECODER_STYLES: dict[str, dict[str, Any]] = {
    "ood": {"marker": "o"},
    "id": {"marker": "o", "markerfacecolor": "white", "linestyle": "--", "linewidth": 1},
    "untrained": {"marker": "x", "linestyle": "none", "markersize": 5},
    "control": {"linestyle": ":", "linewidth": 1},
    "majority": {"color": QUIET, "linewidth": 0.8},
}
SWAP_WORDS = {"other": "swapped-in {}", "own": "own {}", "neither": "neither", "follows": "follows the donor"}
MAX_NUMBERED = 32  # heads
MAX_DRAWN = 40  # runs in one figure

CSS_COLOURS = {
    **{colour: f"--series-{number}" for number, colour in enumerate(LIGHT_PALETTE)},
    **{colour: f"--follow-{number}" for number, colour in enumerate(LIGHT["follow"])},
    GRID: "--line",
    TRACK: "--track",
    QUIET: "--ink-faint",
    TEXT: "--ink-soft",
    "#ffffff": "--paper",
}
PIXELS_PER_POINT = 1.4
NO_METADATA = dict.fromkeys(("Date", "Creator", "Format", "Type"))


def render_inline(draw: Draw, name: str) -> Markup:
    """A figure as SVG in a page: text stays text, and colours are CSS variables. `name` must be unique on the page."""
    from matplotlib import rc_context

    content = io.StringIO()
    with rc_context(STYLE | {"svg.fonttype": "none", "svg.hashsalt": name}):
        draw().savefig(content, format="svg", metadata=NO_METADATA, transparent=True)
    svg = content.getvalue()
    svg = re.sub(r"<defs>\s*<style.*?</style>\s*</defs>", "", svg[svg.index("<svg") :], count=1, flags=re.DOTALL)
    svg = re.sub(r' xmlns(:xlink)?="[^"]*"| id="[\w.]+_\d+"|(?<=<svg) version="[^"]*"', "", svg)
    for colour, variable in CSS_COLOURS.items():
        svg = svg.replace(colour, f"var({variable})")
    width, height = (float(re.search(rf' {side}="([\d.]+)pt"', svg)[1]) for side in ("width", "height"))  # type: ignore[index]
    size = f'style="width: {width * PIXELS_PER_POINT:.0f}px" viewBox="0 0 {width:g} {height:g}" aria-hidden="true"'
    return Markup(re.sub(r"<svg[^>]*>", f"<svg {size}>", svg, count=1))


def render_files(figures: Mapping[str, Draw]) -> Iterator[tuple[str, bytes]]:
    """Figures as (file name, content), in PNG and SVG; the same runs give the same bytes."""
    from matplotlib import rc_context

    with rc_context(STYLE):
        for name, draw in figures.items():
            figure = draw()
            for suffix in METADATA:
                yield f"{re.sub(r'[^A-Za-z0-9_-]', '-', name)}{suffix}", render_figure(figure, suffix)


def colour_of(run: Shown) -> str:
    return LIGHT_PALETTE[run.series % len(LIGHT_PALETTE)]


def label_of(run: Shown) -> str:
    return escape_text(run.label)


def _choose_drawn(runs: Sequence[Any], metric: str) -> tuple[Sequence[Any], str]:
    """The runs that a figure can show, the best on held-out compositions if there are many, and a line about the others."""
    if len(runs) <= MAX_DRAWN:
        return runs, ""
    scores = {id(run): score for run in runs if (score := run.score("ood", metric))}
    sign = -1 if any(map(is_lower_better, scores.values())) else 1
    merit = {run: sign * score.value for run, score in scores.items()}
    best = sorted(runs, key=lambda run: merit.get(id(run), -math.inf), reverse=True)[:MAX_DRAWN]
    return best, f"the {MAX_DRAWN} of {len(runs):,} runs that are best on held-out compositions"


def draw_scores(runs: Sequence[Shown], metric: str) -> Figure:
    """Scores with their intervals, each on a track from chance to ceiling."""
    runs, left_out = _choose_drawn([run for run in runs if any(run.score(split, metric) for split in ROWS)], metric)
    figure = make_figure(7, 1.1 + 0.45 * len(runs))
    if left_out:
        figure.supxlabel(left_out, color=QUIET)
    axes = figure.subplots()
    for number, run in enumerate(runs):
        for split, place in ROWS.items():
            if score := run.score(split, metric):
                face = colour_of(run) if split == "ood" else "white"
                if track := find_range(score):
                    axes.plot(track, [number + place] * 2, color=TRACK, marker="|", zorder=1)
                axes.plot([score.low, score.high], [number + place] * 2, color=colour_of(run), linewidth=2)
                axes.plot(score.value, number + place, marker="o", color=colour_of(run), markerfacecolor=face)
    scores = (score for run in runs for split in ROWS if (score := run.score(split, metric)))
    if track := next(filter(None, map(find_range, scores)), None):
        sides = ("right", "left") if track[0] < track[1] else ("left", "right")
        for name, x, side in zip(("chance", "ceiling"), track, sides, strict=True):
            axes.text(x, -0.45, name, color=QUIET, ha=side, va="center", fontsize=8)
    axes.set_title("● held-out   ○ seen compositions", fontsize="medium")
    single = [run for item in runs for run in ([item] if isinstance(item, ReportRun) else item.runs)]
    axes.set(xlabel=escape_text(metric_title(metric, single)), ylim=(len(runs) - 0.4, -0.6))
    axes.set_yticks(range(len(runs)), [label_of(run) for run in runs])
    axes.tick_params(axis="y", length=0)
    axes.spines["left"].set_visible(False)
    return figure


def draw_loss(runs: Sequence[ReportRun]) -> Figure:
    """Training loss over steps."""
    from matplotlib.ticker import LogLocator, NullFormatter

    figure = make_figure(7, 3)
    runs, left_out = _choose_drawn(runs, next(iter(list_metrics(runs)), ""))
    if left_out:
        figure.supxlabel(left_out, color=QUIET)
    axes = figure.subplots()
    _draw_curves(axes, [(run, run.loss_curve()) for run in runs])
    axes.set(yscale="log", ylabel="training loss")
    axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axes.yaxis.set_major_formatter("{x:g}")
    axes.yaxis.set_minor_formatter(NullFormatter())
    return _add_legend(figure, axes)


def draw_curves(runs: Sequence[ReportRun], metric: str) -> Figure:
    """Score on each split over steps. The axis has the range where runs end; chance and ceiling are dotted."""
    splits = list_splits(runs)
    figure = make_figure(1 + 2.6 * len(splits), 3.1)
    runs, left_out = _choose_drawn(runs, metric)
    if left_out:
        figure.supxlabel(left_out, color=QUIET)
    panels = figure.subplots(1, len(splits), squeeze=False)[0]
    for axes, split in zip(panels, splits, strict=True):
        _draw_curves(axes, [(run, run.score_curve(split, metric)) for run in runs])
        scores = [score for run in runs if (score := run.score(split, metric))]
        for line in {value for score in scores for value in (score.chance, score.ceiling)} - {None}:
            axes.axhline(line, color=QUIET, linewidth=0.8, linestyle=":")
        axes.set(title=escape_text(split_title(split, runs)), ylim=find_score_range(runs, metric))
    panels[0].set_ylabel(escape_text(metric_title(metric, runs)))
    return _add_legend(figure, panels[0])


def _draw_curves(axes: Axes, curves: Sequence[tuple[ReportRun, Curve]]) -> None:
    for run, (steps, values) in curves:
        dash = DASHES[run.series // len(LIGHT_PALETTE) % len(DASHES)]
        marker = "." if len(steps) <= 40 else None
        axes.plot(steps, values, color=colour_of(run), linestyle=dash, marker=marker, label=label_of(run))
    axes.set_xlabel("step")
    axes.locator_params(axis="x", integer=True)
    axes.grid(axis="y", color=GRID)


def _add_legend(figure: Figure, axes: Axes) -> Figure:
    figure.legend(*axes.get_legend_handles_labels(), loc="outside lower center", ncols=3)
    return figure


def find_score_range(runs: Sequence[ReportRun], metric: str) -> list[float] | None:
    """From the lowest to the highest of chance, ceiling and the second half of every curve, the same for all splits."""
    values: list[float | None] = []
    for run in runs:
        for split in run.scores:
            curve = run.score_curve(split, metric)[1]
            values += curve[len(curve) // 2 :]
            if score := run.score(split, metric):
                values += [score.chance, score.ceiling]
    known = [value for value in values if value is not None and math.isfinite(value)]
    if not known:
        return None
    margin = 0.05 * (max(known) - min(known)) or 0.05
    return [min(known) - margin, max(known) + margin]


def draw_decoders(found: Found[list[Decoded]], metric: str) -> Figure:
    """A score over layers: held-out compositions filled, seen ones open; uninformed decoders are dotted."""
    kinds = list(dict.fromkeys(site.kind for _, sites in found for site in sites))
    figure = make_figure(max(5.2, 1 + 2.4 * len(kinds)), 3.1)
    panels: Sequence[Axes] = figure.subplots(1, len(kinds), sharey=True, squeeze=False)[0]
    lowest = 0.0
    for axes, kind in zip(panels, kinds, strict=True):
        for run, sites in found:
            here = [site for site in sites if site.kind == kind and metric in site.scores]
            for name, style in DECODER_STYLES.items():
                values = [site.scores[metric][name] for site in here]
                known = [(site.layer, value) for site, value in zip(here, values, strict=True) if value is not None]
                style = {"color": colour_of(run), "label": label_of(run) if name == "ood" else None, **style}
                axes.plot([layer for layer, _ in known], [value for _, value in known], **style)
                lowest = min([lowest, *(value for _, value in known)])
        layers = sorted({site.layer for _, sites in found for site in sites if site.kind == kind}, key=str)
        axes.set(title=escape_text(KIND_TITLES.get(kind, kind)), xlabel="layer", xticks=layers)
    panels[0].set(ylim=(max(lowest, -1.0) - 0.04, 1.04), ylabel=DECODER_TITLES[metric])
    key = "● held-out   ○ seen compositions   × untrained   ··· shuffled labels   — majority"
    figure.suptitle(key, fontsize="small")
    return _add_legend(figure, panels[0])


def draw_map(code_map: EmbeddingMap, label: str) -> Figure:
    """Every site, by target and below by module."""
    figure = _draw_maps([(site, code_map, site) for site in code_map.sites])
    figure.suptitle(label)
    return figure


def draw_last_maps(found: Found[EmbeddingMap]) -> Figure:
    """The last layer's codes of each run, by target and below by module (as figures 2D, 5A and 5B of the paper)."""
    return _draw_maps([(label_of(run), code_map, list(code_map.sites)[-1]) for run, code_map in found])


def _draw_maps(columns: Sequence[tuple[str, EmbeddingMap, str]]) -> Figure:
    """One column per (title, map, site); one row per colouring that every map has."""
    colourings = ["target"] + (["module"] if all(code_map.binary for _, code_map, _ in columns) else [])
    figure = make_figure(2.3 * len(columns) + 0.8, 2.3 * len(colourings) + 0.7)
    grid = figure.subplots(len(colourings), len(columns), squeeze=False)
    edge = (-0.03 * RESOLUTION, 1.03 * RESOLUTION)
    for row, colouring in zip(grid, colourings, strict=True):
        for axes, (title, code_map, site) in zip(row, columns, strict=True):
            shown = _scatter(axes, code_map, site, colouring)
            axes.set(xticks=[], yticks=[], xlim=edge, ylim=edge, aspect="equal")
            axes.spines[:].set_visible(False)
            if colouring == "target":
                axes.set_title(escape_text(title))
        if colouring == "target":
            figure.colorbar(shown, ax=list(row), shrink=0.7, label="target")
            row[0].set_ylabel("by target")
        else:
            row[0].set_ylabel("by module" if columns[0][1].single else "by first module")
            handles = row[0].get_legend_handles_labels()
            figure.legend(*handles, loc="outside lower center", ncols=4, fontsize=6, markerscale=2)
    return figure


def _scatter(axes: Axes, code_map: EmbeddingMap, site: str, colouring: str) -> Any:
    places = code_map.sites[site]
    if colouring == "target":
        target = code_map.target.astype(float)
        return axes.scatter(places[:, 0], places[:, 1], c=target, cmap=_blend(LIGHT["ramp"]), s=3, linewidths=0)
    first = code_map.labels.argmax(axis=1)
    for number in sorted(set(first.tolist())):
        chosen = places[first == number]
        colour = LIGHT["class"][number % len(LIGHT["class"])]
        label = escape_text(code_map.modules[number])
        axes.scatter(chosen[:, 0], chosen[:, 1], color=colour, s=3, linewidths=0, label=label)
    return None


def _blend(colours: Sequence[str]) -> Any:
    from matplotlib.colors import LinearSegmentedColormap

    return LinearSegmentedColormap.from_list("scale", colours)


def draw_similarities(panels: Labelled, label: str = "") -> Figure:
    """Cosines of the mean codes of every two modules, minus what all modules share (as figure 5E of the paper)."""
    side = 0.9 + 0.16 * max(len(similarity["modules"]) for _, similarity in panels)
    figure = make_figure(1.6 + side * len(panels), side + 0.8)
    grid = figure.subplots(1, len(panels), squeeze=False)[0]
    for number, (axes, (title, similarity)) in enumerate(zip(grid, panels, strict=True)):
        names = [escape_text(name) for name in similarity["modules"]] if number == 0 else []
        shown = _draw_cells(axes, similarity["centred"], LIGHT["diverging"], -1)
        axes.set(title=escape_text(title), xticks=[], aspect="equal")
        axes.set_yticks(range(len(names)), names, fontsize=6)
    figure.colorbar(shown, ax=list(grid), shrink=0.7, label="cosine, minus the mean")
    figure.suptitle(label)
    return figure


def _draw_cells(axes: Axes, matrix: Sequence[Sequence[float | None]], colours: Sequence[str], low: float | int) -> Any:
    """A matrix as coloured cells, the first row on top."""
    values = [[math.nan if value is None else value for value in row] for row in matrix]
    edges = [[number - 0.5 for number in range(size + 1)] for size in (len(values[0]), len(values))]
    shown = axes.pcolormesh(*edges, values, cmap=_blend(colours), vmin=low, vmax=1, edgecolors="white", linewidth=0.5)
    axes.invert_yaxis()
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)
    return shown


def draw_ablations(run: ReportRun, ablations: Json) -> Figure:
    """The change of the score when a head's code becomes its mean, and when a whole layer's codes are replaced."""
    heads = [row for row in ablations["heads"] if row["kind"] == "mean"] or ablations["heads"]
    step = 1 if len(heads) <= MAX_NUMBERED else 4
    ticks = ["" if row["head"] % step else f"{row['layer']}.{row['head']}" for row in heads]
    figure = make_figure(7.0, 4.6)
    upper, lower = figure.subplots(2, 1)
    _draw_changes(upper, heads, ticks, colour_of(run))
    layers = ablations["layers"]
    _draw_changes(lower, layers, [escape_text(f"{row['layer']}\n{row['kind']}") for row in layers], colour_of(run))
    title = f"change of {escape_text(metric_title(ablations['metric']))}"
    upper.set(title=f"{label_of(run)}: one head, by layer.head", ylabel=title)
    lower.set(title="a whole layer   ● held-out   ○ seen compositions")
    return figure


def _draw_changes(axes: Axes, rows: Sequence[Json], ticks: Sequence[str], colour: str) -> None:
    for split, shift, face in (("test", -0.14, "white"), ("ood", 0.14, colour)):
        for number, row in enumerate(rows):
            if split in row:
                axes.plot([number + shift] * 2, [row[split]["low"], row[split]["high"]], color=colour, linewidth=1)
                style: dict[str, Any] = {"marker": "o", "markersize": 4, "color": colour, "markerfacecolor": face}
                axes.plot(number + shift, row[split]["change"], **style)
    axes.axhline(0, color=QUIET, linewidth=0.8)
    axes.set_xticks(range(len(ticks)), ticks, fontsize=6)


def draw_swap(swap: Json, label: str) -> Figure:
    """What the answer follows when codes are swapped: the donor, with its interval, its own rule, or neither."""
    figure = make_figure(1.5 + 2.8 * len(swap["splits"]), 3.0)
    panels = figure.subplots(1, len(swap["splits"]), sharey=True, squeeze=False)[0]
    own, other = LIGHT["follow"]
    colours = {"other": other, "own": own, "neither": TRACK, "follows": other}
    for axes, (split, rows) in zip(panels, swap["splits"].items(), strict=True):
        left = [0.0] * len(rows)
        names = [row["words"] for row in rows]
        for part in (name for name in colours if name in swap["columns"]):
            widths = [row[part] or 0.0 for row in rows]
            words = SWAP_WORDS[part].format(swap["what"])
            axes.barh(names, widths, left=left, color=colours[part], height=0.65, label=words)
            left = [start + width for start, width in zip(left, widths, strict=True)]
        for name, row in zip(names, rows, strict=True):
            if None not in row["interval"]:
                axes.plot(row["interval"], [name] * 2, color=TEXT, linewidth=1.2, marker="|", markersize=4)
        axes.set(title=split_title(split))
    panels[0].invert_yaxis()
    figure.suptitle(label)
    return _add_legend(figure, panels[0])


def draw_by_rule(splits: dict[str, Json], label: str) -> Figure:
    """How often the answer follows the swapped-in rule (column), by the puzzle's own (row)."""
    figure = make_figure(1.2 + 3.0 * len(splits), 3.2)
    for axes, (split, table) in zip(figure.subplots(1, len(splits), squeeze=False)[0], splits.items(), strict=True):
        _draw_cells(axes, table["values"], ("#f6f6f4", LIGHT["follow"][1]), 0)
        for i, row in enumerate(table["values"]):
            for j, value in enumerate(row):
                if value is not None:
                    axes.text(j, i, f"{value:.0%}", ha="center", va="center", fontsize=6, color="#1c2430")
        columns, rows = ([escape_text(name) for name in table[side]] for side in ("columns", "rows"))
        axes.set_xticks(range(len(columns)), columns, fontsize=6, rotation=45, ha="right")
        axes.set_yticks(range(len(rows)), rows, fontsize=6)
        axes.set(title=split_title(split), xlabel="swapped-in rule", ylabel="own rule")
    figure.suptitle(label)
    return figure
