"""Figures of the rules in latent codes, made of stored numbers (see `rule_codes`): layers, cosines and swaps."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any

import numpy as np

from recombine.tasks import COLOUR_SCALES, DARK, LIGHT_PALETTE, QUIET, RULES, TRACK, canvas
from recombine_papers.base import Finished, Group
from recombine_papers.learning_curves import NAMES

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.image import AxesImage

READING_WORDS = {"self": "with itself", "row": "with its row", "all": "with all keys"}
LINES: dict[str, dict[str, Any]] = {
    "self": {"linestyle": "-", "marker": "o"},
    "row": {"linestyle": "--", "marker": "o", "markerfacecolor": "white"},
}
UNTRAINED = {"self": "x", "row": "+"}
PURITIES = {"purity_rule": ("rule", LIGHT_PALETTE[0]), "purity_target": ("target", LIGHT_PALETTE[1])}
SHARES = {
    "other": ("the other rule", COLOUR_SCALES["light"]["follow"][1]),
    "own": ("its own rule", COLOUR_SCALES["light"]["follow"][0]),
}
WIDTH = 3.4  # of a panel


def draw_rules(finished: Finished, folder: Path) -> list[Path]:
    """All three figures, one column per network."""
    groups = finished.groups
    layers, similarity, swap = (folder / f"inside_sraven_{name}.png" for name in ("layers", "similarity", "swap"))
    with canvas(layers, WIDTH * len(groups), 5.2) as figure:
        grid = figure.subplots(2, len(groups), sharex=True, sharey="row", squeeze=False)
        for column, group in enumerate(groups):
            draw_decoders(grid[0][column], group)
            draw_neighbours(grid[1][column], group)
        grid[0][0].set(ylabel="F1 of rules, held-out", ylim=(0, 1.02))
        grid[1][0].set(ylabel="share of neighbours", ylim=(0, 1.02))
        for axes in grid[:, -1]:
            axes.legend(loc="upper left", bbox_to_anchor=(1, 1))
    with canvas(similarity, 2.2 + 2.0 * len(groups), 6.0) as figure:
        panels = figure.subplots(3, len(groups), squeeze=False)
        for column, group in enumerate(groups):
            for row, reading in enumerate(LINES):
                cosines = draw_similarity(panels[row][column], group, reading, named=column == 0)
            codes = draw_codes(panels[2][column], group, named=column == 0)
        figure.colorbar(cosines, ax=list(panels[:2].flat), shrink=0.6, label="cosine, minus the mean")
        figure.colorbar(codes, ax=list(panels[2]), label="standard deviations")
    with canvas(swap, 1.6 + WIDTH * len(groups), 4.2) as figure:
        bars = figure.subplots(1, len(groups), sharey=True, squeeze=False)[0]
        for axes, group in zip(bars, groups, strict=True):
            draw_swap(axes, group)
        bars[0].invert_yaxis()
        figure.legend(*bars[0].get_legend_handles_labels(), loc="outside lower center", ncols=4)
    return [layers, similarity, swap]


def name_network(group: Group) -> str:
    """The attention of a network, and its dropout if it has any."""
    rate = float(group.settings["dropout"])
    return NAMES[str(group.settings["attention"])] + (f", dropout {rate:g}" if rate else "")


def mean_of(group: Group, name: str) -> float:
    """The mean of a number over seeds; NaN where no run has it, which is not drawn."""
    values = group.measured(name)
    return fmean(values) if values else float("nan")


def count_layers(group: Group) -> int:
    """How many layers have numbers."""
    return sum(name.startswith("self_f1_layer_") for name in group.runs[0].measured)


def draw_decoders(axes: Axes, group: Group) -> None:
    """Figure 5F: F1 of each layer, with that of the untrained network and of the majority."""
    layers = range(count_layers(group))
    for reading, line in LINES.items():
        trained, untrained = (
            [mean_of(group, f"{reading}_f1{state}_layer_{layer}") for layer in layers] for state in ("", "_untrained")
        )
        axes.plot(layers, trained, color=DARK, label=READING_WORDS[reading], **line)
        axes.plot(layers, untrained, UNTRAINED[reading], color=QUIET, label=f"{READING_WORDS[reading]}, untrained")
    axes.axhline(mean_of(group, "f1_majority"), color=QUIET, linewidth=0.8, label="majority")
    axes.set(title=name_network(group), xticks=list(layers))


def draw_neighbours(axes: Axes, group: Group) -> None:
    """Figures 5A and 5B in numbers: the share of the nearest codes with the same rule and with the same target."""
    layers = range(count_layers(group))
    for purity, (words, colour) in PURITIES.items():
        for reading, line in LINES.items():
            values = [mean_of(group, f"{reading}_{purity}_layer_{layer}") for layer in layers]
            axes.plot(layers, values, color=colour, label=f"{words}, {READING_WORDS[reading]}", **line)
            untrained = [mean_of(group, f"{reading}_{purity}_untrained_layer_{layer}") for layer in layers]
            axes.plot(layers, untrained, UNTRAINED[reading], color=colour, alpha=0.6)
    axes.axhline(mean_of(group, "chance_rule"), color=QUIET, linewidth=0.8, label="chance")
    axes.set(xlabel="layer", xticks=list(layers))


def draw_similarity(axes: Axes, group: Group, reading: str, *, named: bool) -> AxesImage:
    """Figure 5E: cosines of the rules' mean codes in the last layer."""
    from matplotlib.colors import LinearSegmentedColormap

    matrix = [[1.0] * len(RULES) for _ in RULES]
    for i, j in combinations(range(len(RULES)), 2):
        matrix[i][j] = matrix[j][i] = mean_of(group, f"{reading}_cosine_{RULES[i]}_{RULES[j]}")
    diverging = LinearSegmentedColormap.from_list("diverging", COLOUR_SCALES["light"]["diverging"])
    image = axes.imshow(matrix, cmap=diverging, vmin=-1, vmax=1)
    axes.set(title=f"{name_network(group)}, {reading}", xticks=[], yticks=range(len(RULES)) if named else [])
    if named:
        axes.set_yticklabels(RULES, fontsize=6)
    return image


def draw_codes(axes: Axes, group: Group, *, named: bool) -> AxesImage:
    """Figure A8B: the mean code of each rule in the last layer; of each head, deviations from the mean over rules."""
    from matplotlib.colors import LinearSegmentedColormap

    num_heads = sum(name.startswith(f"self_code_{RULES[0]}_head_") for name in group.runs[0].measured)
    codes = np.array([[mean_of(group, f"self_code_{rule}_head_{head}") for head in range(num_heads)] for rule in RULES])
    spread = codes.std(axis=0)
    scaled = (codes - codes.mean(axis=0)) / np.where(spread > 0, spread, 1)
    diverging = LinearSegmentedColormap.from_list("diverging", COLOUR_SCALES["light"]["diverging"])
    image = axes.imshow(scaled, cmap=diverging, vmin=-2, vmax=2, aspect="auto")
    axes.set(
        title=f"{name_network(group)}, mean codes", xticks=[], xlabel="head", yticks=range(len(RULES)) if named else []
    )
    if named:
        axes.set_yticklabels(RULES, fontsize=6)
    return image


def draw_swap(axes: Axes, group: Group) -> None:
    """What answers follow without a swap and with one, and right answers with codes of the same rule."""
    rows = list_swaps(count_layers(group))
    words = [row[0] for row in rows]
    left = [0.0] * len(rows)
    for share, (meaning, colour) in SHARES.items():
        widths = [mean_of(group, name.format(share)) for _, name in rows]
        axes.barh(words, widths, left=left, color=colour, height=0.65, label=f"follows {meaning}")
        left = [start + width for start, width in zip(left, widths, strict=True)]
    axes.barh(words, [1 - start for start in left], left=left, color=TRACK, height=0.65, label="neither")
    for meaning, name in rows if len(group.runs) == 1 else ():
        interval = [mean_of(group, name.format(f"other_{end}")) for end in ("low", "high")]
        axes.plot(interval, [meaning] * 2, color=DARK, linewidth=1)
    controls = [mean_of(group, name.format("same_rule")) for _, name in rows]
    axes.plot(controls, words, "D", color=DARK, markersize=4, label="right with codes of the same rule")
    axes.set(title=name_network(group), xlim=(0, 1), xlabel="share of answers, held-out")


def list_swaps(num_layers: int) -> Sequence[tuple[str, str]]:
    """The rows of the figure, with the names of their numbers; {} is the share."""
    rows = [("no swap", "swap_none_{}")]
    for reading, words in READING_WORDS.items():
        rows += [(f"layer {layer}, {words}", f"{reading}_swap_{{}}_layer_{layer}") for layer in range(num_layers)]
        rows.append((f"all layers, {words}", f"{reading}_swap_{{}}_all_layers"))
    return rows
