"""Pictures of what happens inside networks, as Plotly dictionaries (see `figures` for their colours)."""

from __future__ import annotations

from collections.abc import Sequence

from recombine.report.figures import Figure, choose_dash, colour_of, make_annotation, make_figure, metric_title, plain
from recombine.report.findings import Decoded, Found
from recombine.report.interventions import Change
from recombine.report.runs import ReportRun
from recombine.store import Json

DECODER_TITLES = {
    "f1": "F1",
    "accuracy": "balanced accuracy",
    "auc": "area under the ROC curve",
    "exact": "all modules right",
    "r2": "R²",
}
KIND_TITLES = {"codes": "Latent codes", "residual": "Residual stream", "hidden": "Hidden activations", "site": "Sites"}
SPLIT_WORDS = {"test": "seen", "ood": "held-out"}
CHANGE_WORDS = {"zero": "zero", "mean": "mean", "swap": "another’s"}
MAX_NUMBERED = 32  # heads
DIVERGING = [[place, f"var(--diverging-{number})"] for number, place in enumerate((0.0, 0.25, 0.5, 0.75, 1.0))]


def decodability_figure(found: Found[list[Decoded]], metric: str, kind: str) -> Figure:
    """A score over layers: held-out compositions filled, seen ones open; uninformed decoders are dotted."""
    traces: list[Figure] = []
    lowest = 0.0
    for run, sites in found:
        here = [site for site in sites if site.kind == kind and metric in site.scores]
        layers = [site.layer for site in here]
        values = {name: [site.scores[metric][name] for site in here] for name in DECODER_STYLES}
        lowest = min([lowest, *(value for value in values["ood"] + values["id"] if value is not None)])
        for name, style in DECODER_STYLES.items():
            traces.append(_decoder_trace(run, layers, values[name], style))
    y = {"range": [max(lowest, -1.0) - 0.04, 1.04], "title": {"text": DECODER_TITLES[metric]}}
    axis = {"type": "category"} if kind == "site" else {"dtick": 1, "range": _layer_range(found, kind)}
    return make_figure(traces, height=300, x_title="" if kind == "site" else "layer", y=y, x=axis, hovermode="closest")


DECODER_STYLES: dict[str, Figure] = {
    "majority": {"words": "majority", "dash": "solid", "width": 1, "mode": "lines", "color": "var(--ink-faint)"},
    "untrained": {"words": "untrained", "dash": "dot", "width": 1, "mode": "markers", "symbol": "x-thin-open"},
    "control": {"words": "shuffled labels", "dash": "dot", "width": 1.5, "mode": "lines", "opacity": 0.75},
    "id": {"words": "seen", "dash": "4px,3px", "width": 1.5, "mode": "lines+markers", "symbol": "circle-open"},
    "ood": {"words": "held-out", "dash": None, "width": 2.5, "mode": "lines+markers", "symbol": "circle"},
}


def _decoder_trace(run: ReportRun, layers: Sequence[int | str], values: list[float | None], style: Figure) -> Figure:
    colour = style.get("color", colour_of(run))
    return {
        "x": list(layers),
        "y": values,
        "meta": {"series": run.series},
        "mode": style["mode"],
        "opacity": style.get("opacity", 1.0),
        "line": {"color": colour, "width": style["width"], "dash": style["dash"] or choose_dash(run)},
        "marker": {
            "color": colour,
            "symbol": style.get("symbol", "circle"),
            "size": 9,
            "line": {"width": 2, "color": colour},
        },
        "hovertemplate": f"{plain(run.label)}, {style['words']}<br><b>%{{y:.3f}}</b><extra></extra>",
    }


def _layer_range(found: Found[list[Decoded]], kind: str) -> list[float]:
    layers = [site.layer for _, sites in found for site in sites if site.kind == kind and isinstance(site.layer, int)]
    return [min(layers) - 0.3, max(layers) + 0.3]


def similarity_figure(modules: Sequence[str], matrix: list[list[float | None]]) -> Figure:
    """A square of cosines, the first module in the upper left corner."""
    names = [plain(name) for name in modules]
    numbers = [str(number + 1) for number in range(len(names))]
    trace = {
        "type": "heatmap",
        "z": matrix,
        "zmin": -1,
        "zmax": 1,
        "colorscale": DIVERGING,
        "xgap": 2,
        "ygap": 2,
        "texttemplate": "%{z:.2f}" if len(names) <= 12 else "",
        "textfont": {"size": 11},
        "customdata": [[f"{a}<br>{b}" for b in names] for a in names],
        "hovertemplate": "%{customdata}<br>cosine <b>%{z:.3f}</b><extra></extra>",
        "colorbar": {"thickness": 10, "outlinewidth": 0, "len": 0.6, "tickvals": [-1, 0, 1], "xpad": 4},
    }
    places = list(range(len(names)))
    rows = [f"{name}  {number}" for number, name in zip(numbers, names, strict=True)]
    y = {"autorange": "reversed", "tickvals": places, "ticktext": rows, "showgrid": False, "fixedrange": True}
    x = {"tickvals": places, "ticktext": numbers, "showgrid": False, "side": "top", "tickangle": 0, "fixedrange": True}
    height = 90 + 36 * len(names)
    return make_figure([trace], height=height, y=y | {"tickfont": {"size": 12}}, x=x, hovermode="closest")


def layers_figure(run: ReportRun, ablations: Json) -> Figure:
    changes: list[Change] = ablations["layers"]
    return _changes_figure(
        run, ablations["metric"], changes, [CHANGE_WORDS.get(change.kind, change.kind) for change in changes]
    )


def heads_figure(run: ReportRun, ablations: Json, kind: str) -> Figure:
    changes = [change for change in ablations["heads"] if change.kind == kind]
    return _changes_figure(run, ablations["metric"], changes, number_heads(changes))


def number_heads(changes: Sequence[Change]) -> list[str]:
    """The number of each head; with many heads only every fourth, so that labels do not overlap."""
    step = 1 if len(changes) <= MAX_NUMBERED else 4
    return ["" if change.head is None or change.head % step else str(change.head) for change in changes]


def _changes_figure(run: ReportRun, metric: str, changes: Sequence[Change], ticks: Sequence[str]) -> Figure:
    """The change of the score with its interval, side by side, a gap between layers."""
    layers = sorted({change.layer for change in changes})
    places = [number + 0.8 * layers.index(change.layer) for number, change in enumerate(changes)]
    traces = [_changes_trace(run, changes, places, split) for split in SPLIT_WORDS]
    middles = {
        layer: [x for x, change in zip(places, changes, strict=True) if change.layer == layer] for layer in layers
    }
    labels = [
        make_annotation(
            f"layer {layer}", sum(xs) / len(xs), 1.0, color="var(--ink-soft)", yref="paper", yshift=12, xanchor="center"
        )
        for layer, xs in middles.items()
    ]
    x = {"tickvals": places, "ticktext": [plain(tick) for tick in ticks], "showgrid": False, "zeroline": False}
    y: Figure = {"title": {"text": f"change of {metric_title(metric)}"}, "rangemode": "tozero"}
    y |= {"zeroline": True, "zerolinecolor": "var(--ink-faint)"}
    margin = {"l": 8, "r": 8, "t": 28, "b": 8}
    return make_figure(traces, height=320, y=y, x=x, annotations=labels, margin=margin)


def _changes_trace(run: ReportRun, changes: Sequence[Change], places: Sequence[float], split: str) -> Figure:
    shift, symbol = {"test": (-0.14, "circle-open"), "ood": (0.14, "circle")}[split]
    values = [change.splits.get(split, (float("nan"),) * 3) for change in changes]
    error = {
        "array": [high - change for change, _, high in values],
        "arrayminus": [change - low for change, low, _ in values],
        "color": colour_of(run),
        "thickness": 1.5,
        "width": 0,
    }
    where = [f"layer {change.layer}" + ("" if change.head is None else f", head {change.head}") for change in changes]
    return {
        "x": [place + shift for place in places],
        "y": [change for change, _, _ in values],
        "error_y": error,
        "mode": "markers",
        "marker": {"symbol": symbol, "size": 8, "color": colour_of(run), "line": {"width": 2, "color": colour_of(run)}},
        "text": [f"{at}, {SPLIT_WORDS[split]}" for at in where],
        "customdata": [[low, high] for _, low, high in values],
        "hovertemplate": "%{text}<br><b>%{y:.3f}</b> (%{customdata[0]:.3f} to %{customdata[1]:.3f})<extra></extra>",
    }
