"""Maps of latent codes and tables of modules for papers and slides, of one run or of several side by side."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from recombine.drawing.canvas import escape_text, make_figure
from recombine.drawing.palette import SCALES
from recombine.report.explorer import RESOLUTION, EmbeddingMap
from recombine.report.figures import split_title
from recombine.store import Json

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure as Canvas

LIGHT = SCALES["light"]

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
