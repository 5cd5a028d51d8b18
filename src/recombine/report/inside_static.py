"""Pictures of what happens inside networks for papers and slides, drawn by matplotlib."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from recombine.report.explorer import CodeMap, read_map
from recombine.report.figures import SCALES, metric_title, split_title
from recombine.report.findings import Decoded, Found, gather, read_decoders, read_similarity
from recombine.report.inside_figures import DECODER_TITLES, KIND_TITLES
from recombine.report.interventions import Change, read_ablations, read_swap
from recombine.report.runs import ReportRun
from recombine.store import Json

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure as Canvas

Style = Callable[[ReportRun], tuple[str, str]]  # colour and label of a run
LIGHT = SCALES["light"]


def inside_figures(runs: Sequence[ReportRun], style: Style) -> Iterator[tuple[str, Canvas]]:
    """Each picture by name; a run whose files cannot be read is left out, as the page says."""
    for key in ("decoders", "decoders_pictured"):
        decoded = gather(runs, partial(read_decoders, key=key))[0]
        for metric in DECODER_TITLES:
            if any(metric in each.scores for _, sites in decoded for each in sites):
                yield f"{key}-{metric}", _draw_decoders(decoded, metric, style)
    for run, code_map in gather(runs, read_map)[0]:
        yield f"codes-{run.series}", _draw_map(code_map, style(run)[1])
    for run, similarity in gather(runs, read_similarity)[0]:
        yield f"similarity-{run.series}", _draw_similarity(similarity, style(run)[1])
    for run, ablations in gather(runs, read_ablations)[0]:
        yield f"ablations-{run.series}", _draw_ablations(ablations, *style(run))
    for run, swap in gather(runs, read_swap)[0]:
        if swap["splits"]:
            yield f"swap-{run.series}", _draw_swap(swap, style(run)[1])


def print_text(text: str) -> str:
    """Matplotlib reads a formula between dollars and hides a label that starts with an underscore."""
    return "\u200b" + text.replace("$", r"\$")


def _make_canvas(width: float, height: float) -> Canvas:
    from matplotlib.figure import Figure as Canvas

    return Canvas(figsize=(width, height), layout="constrained")


def _draw_decoders(found: Found[list[Decoded]], metric: str, style: Style) -> Canvas:
    kinds = list(dict.fromkeys(each.kind for _, sites in found for each in sites))
    canvas = _make_canvas(1 + 2.4 * len(kinds), 2.8)
    panels: Sequence[Axes] = canvas.subplots(1, len(kinds), sharey=True, squeeze=False)[0]
    looks: dict[str, dict[str, Any]] = {
        "ood": {"marker": "o"},
        "id": {"marker": "o", "markerfacecolor": "white", "linestyle": "--", "linewidth": 1},
        "control": {"linestyle": ":", "linewidth": 1},
        "majority": {"color": "#767f88", "linewidth": 0.8},
    }
    for axes, kind in zip(panels, kinds, strict=True):
        for run, sites in found:
            colour, label = style(run)
            here = [each for each in sites if each.kind == kind and metric in each.scores]
            for name, look in looks.items():
                values = [each.scores[metric][name] for each in here]
                known = [(each.layer, value) for each, value in zip(here, values, strict=True) if value is not None]
                look = {"color": colour, "label": label if name == "ood" else None, **look}
                axes.plot([layer for layer, _ in known], [value for _, value in known], **look)
        layers = sorted({each.layer for _, sites in found for each in sites if each.kind == kind}, key=str)
        axes.set(title=print_text(KIND_TITLES.get(kind, kind)), xlabel="layer", xticks=layers)
    panels[0].set(ylabel=DECODER_TITLES[metric])
    panels[0].legend(frameon=False, fontsize="small")
    canvas.suptitle("● unseen   ○ seen combinations   ··· shuffled labels   — majority", fontsize="small")
    return canvas


def _draw_map(code_map: CodeMap, label: str) -> Canvas:
    """By target, and below by module where each point has one."""
    from matplotlib.colors import LinearSegmentedColormap

    colourings = ["target"] + (["module"] if code_map.single else [])
    canvas = _make_canvas(2.6 * len(code_map.sites) + 1, 2.7 * len(colourings))
    grid = canvas.subplots(len(colourings), len(code_map.sites), squeeze=False)
    ramp = LinearSegmentedColormap.from_list("ramp", LIGHT["ramp"])
    for axes_row, colouring in zip(grid, colourings, strict=True):
        for axes, (site, places) in zip(axes_row, code_map.sites.items(), strict=True):
            if colouring == "target":
                shown = axes.scatter(*places.T, c=code_map.target.astype(float), cmap=ramp, s=4, linewidths=0)
            else:
                classes = code_map.labels.argmax(axis=1)
                for number in sorted(set(classes.tolist())):
                    colour = LIGHT["class"][number % len(LIGHT["class"])]
                    chosen = places[classes == number]
                    axes.scatter(*chosen.T, color=colour, s=4, linewidths=0, label=print_text(code_map.modules[number]))
            axes.set(xticks=[], yticks=[], aspect="equal", title=print_text(f"{site}, by {colouring}"))
        if colouring == "target":
            canvas.colorbar(shown, ax=list(axes_row), shrink=0.7)
        else:
            axes_row[-1].legend(loc="center left", bbox_to_anchor=(1, 0.5), frameon=False, fontsize=6, markerscale=2)
    canvas.suptitle(label)
    return canvas


def _draw_similarity(sites: dict[str, Json], label: str) -> Canvas:
    from matplotlib.colors import LinearSegmentedColormap

    num_modules = max(len(each["modules"]) for each in sites.values())
    side = 0.9 + 0.16 * num_modules
    canvas = _make_canvas(1.6 + side * len(sites), side + 0.8)
    diverging = LinearSegmentedColormap.from_list("diverging", LIGHT["diverging"])
    panels = canvas.subplots(1, len(sites), squeeze=False)[0]
    for number, (axes, (site, each)) in enumerate(zip(panels, sites.items(), strict=True)):
        matrix = [[float("nan") if value is None else value for value in row] for row in each["centred"]]
        shown = axes.imshow(matrix, cmap=diverging, vmin=-1, vmax=1)
        places = range(len(each["modules"]))
        names = [print_text(name) for name in each["modules"]] if number == 0 else []
        axes.set(title=print_text(site), xticks=[], yticks=places if names else [])
        if names:
            axes.set_yticklabels(names, fontsize=6)
    canvas.colorbar(shown, ax=list(panels), shrink=0.7, label="cosine, minus the mean")
    canvas.suptitle(label)
    return canvas


def _draw_ablations(ablations: Json, colour: str, label: str) -> Canvas:
    heads = [each for each in ablations["heads"] if each.kind == "mean"] or ablations["heads"]
    canvas = _make_canvas(7.0, 4.6)
    upper, lower = canvas.subplots(2, 1)
    _draw_changes(upper, heads, [f"{each.layer}.{each.head}" for each in heads], colour)
    _draw_changes(
        lower, ablations["layers"], [print_text(f"{each.layer}\n{each.kind}") for each in ablations["layers"]], colour
    )
    upper.set(
        title=f"{label}: one head, by layer.head", ylabel=f"change of {print_text(metric_title(ablations['metric']))}"
    )
    lower.set(title="a whole layer   ● unseen   ○ seen combinations")
    return canvas


def _draw_changes(axes: Axes, changes: Sequence[Change], ticks: Sequence[str], colour: str) -> None:
    for split, shift, face in (("test", -0.14, "white"), ("ood", 0.14, colour)):
        for number, each in enumerate(changes):
            if split in each.splits:
                change, low, high = each.splits[split]
                axes.plot([number + shift] * 2, [low, high], color=colour, linewidth=1)
                axes.plot(number + shift, change, marker="o", markersize=4, color=colour, markerfacecolor=face)
    axes.axhline(0, color="#767f88", linewidth=0.8)
    axes.set_xticks(range(len(ticks)), ticks, fontsize=6)


def _draw_swap(swap: Json, label: str) -> Canvas:
    canvas = _make_canvas(1.5 + 2.8 * len(swap["splits"]), 3.0)
    panels = canvas.subplots(1, len(swap["splits"]), sharey=True, squeeze=False)[0]
    colours = {
        "own": LIGHT["follow"][0],
        "other": LIGHT["follow"][1],
        "neither": "#c9cecd",
        "follows": LIGHT["follow"][1],
    }
    for axes, (split, rows) in zip(panels, swap["splits"].items(), strict=True):
        left = [0.0] * len(rows)
        for part in (name for name in swap["columns"] if name in colours):
            widths = [row[part] or 0.0 for row in rows]
            names = [row["words"] for row in rows]
            axes.barh(names, widths, left=left, color=colours[part], height=0.65, label=part)
            left = [start + width for start, width in zip(left, widths, strict=True)]
        axes.set(title=split_title(split))
    panels[0].invert_yaxis()
    canvas.legend(*panels[0].get_legend_handles_labels(), loc="outside lower center", ncols=3, frameon=False)
    canvas.suptitle(label)
    return canvas
