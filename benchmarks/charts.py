"""Charts of measurements: steps compared with the plain definition, growth curves, memory against length.

    python benchmarks/charts.py benchmarks/results.json docs/images

The file holds what `recombine bench --json` and `benchmarks/growth.py` print.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator

from recombine.tasks.view import ATTENTION_COLOURS, STYLE
from recombine.training.schema import Json

NAMES = {"softmax": "softmax", "linear": "linear", "hyla": "HYLA"}
WORKLOAD_NAMES = {"fuzzy_logic": "fuzzy logic", "sraven": "SRAVEN", "language": "language"}


def draw_steps(result: Json) -> Figure:
    """Steps per second in float32: the plain definition (pale), Recombine (full), and the limit of the products (a line)."""
    rows = [row for row in result["steps"] if row["precision"] == "float32"]
    workloads = list(dict.fromkeys(row["workload"] for row in rows))
    measured = result.get("limit", [])
    limits = {(row["workload"], row["attention"]): row["milliseconds"]["limit"] for row in measured}
    figure = Figure(figsize=(2.7 * len(workloads), 3), layout="constrained")
    for number, workload in enumerate(workloads):
        axes = figure.add_subplot(1, len(workloads), number + 1)
        for at, row in enumerate(row for row in rows if row["workload"] == workload):
            rates = {name: 1e3 / value for name, value in row["milliseconds"].items()}
            colour = ATTENTION_COLOURS[row["attention"]]
            axes.bar(at - 0.2, rates["plain"], width=0.38, color=colour, alpha=0.35)
            axes.bar(at + 0.2, rates["recombine"], width=0.38, color=colour)
            limit = limits.get((workload, row["attention"]), row["milliseconds"].get("limit"))
            if limit is not None:
                axes.plot([at - 0.02, at + 0.42], [1e3 / limit] * 2, color="black", linewidth=1)
            axes.annotate(
                f"{row['times_plain']:.1f}×",
                (at + 0.2, 0),
                xytext=(0, 4),
                textcoords="offset points",
                ha="center",
                fontsize=8,
                color="white",
            )
        axes.set_xticks(range(len(ATTENTION_COLOURS)), [NAMES[name] for name in ATTENTION_COLOURS])
        axes.set_title(WORKLOAD_NAMES[workload])
        if number == 0:
            axes.set_ylabel("training steps per second")
    figure.suptitle("pale: plain definition, torch.compile · full: Recombine · line: matrix products alone", fontsize=9)
    figure.supxlabel(_machine(result), fontsize=7, color="gray")
    return figure


def draw_lengths(result: Json) -> Figure:
    """Time per token against length, softmax, linear and HYLA beside torch's own softmax attention."""
    figure = Figure(figsize=(5.6, 3.4), layout="constrained")
    axes = figure.add_subplot()
    lines = {"torch": ("o--", "gray", "softmax by torch")}
    lines |= {name: ("o-", colour, NAMES[name]) for name, colour in ATTENTION_COLOURS.items()}
    for name, (style, colour, label) in lines.items():
        rows = [row for row in result["lengths"] if name in row["milliseconds"]]
        times = [1e3 * row["milliseconds"][name] / row["tokens"] for row in rows]
        axes.plot([row["length"] for row in rows], times, style, ms=3, color=colour, label=label)
    _logarithmic(axes, [row["length"] for row in result["lengths"]])
    axes.set(xlabel="tokens", title="µs per token, forward and backward")
    axes.legend(frameon=False)
    figure.supxlabel(f"causal, 8 heads of 64. {_machine(result)}", fontsize=7, color="gray")
    return figure


def draw_growth(result: Json) -> Figure:
    axes_names = list(dict.fromkeys(row["axis"] for row in result["growth"]))
    figure = Figure(figsize=(2.3 * len(axes_names), 2.8), layout="constrained")
    for number, axis in enumerate(axes_names):
        axes = figure.add_subplot(1, len(axes_names), number + 1)
        for attention, colour in ATTENTION_COLOURS.items():
            rows = [row for row in result["growth"] if (row["axis"], row["attention"]) == (axis, attention)]
            # the number of tokens is about the same at every length, so show the time per token
            scale = [1e3 / row["tokens"] if axis == "length" else 1.0 for row in rows]
            times = [row["milliseconds"] * each for row, each in zip(rows, scale, strict=True)]
            axes.plot([row["size"] for row in rows], times, "o-", ms=3, color=colour, label=NAMES[attention])
        _logarithmic(axes, [row["size"] for row in result["growth"] if row["axis"] == axis])
        axes.set_xlabel(axis)
        axes.set_title({"length": "µs per token", "depth": "ms per training step"}.get(axis, "ms per pass"), fontsize=9)
    figure.axes[0].legend(frameon=False)
    figure.supxlabel(
        f"attention of one layer, forward and backward; depth: a whole step. {_machine(result)}", fontsize=7
    )
    return figure


def draw_memory(result: Json) -> Figure:
    figure = Figure(figsize=(7, 2.8), layout="constrained")
    memory, times = figure.subplots(1, 2)
    for name, style in (("eager", "o--"), ("fused", "o-")):
        rows = [row for row in result["memory"] if name in row["milliseconds"]]
        lengths = [row["length"] for row in rows]
        label = {"eager": "plain definition", "fused": "Recombine"}[name]
        memory.plot(
            lengths,
            [row["peak_bytes"][name] / 2**20 for row in rows],
            style,
            ms=3,
            label=label,
            color=ATTENTION_COLOURS["hyla"],
        )
        times.plot(lengths, [row["milliseconds"][name] for row in rows], style, ms=3, color=ATTENTION_COLOURS["hyla"])
    rows = result["memory"]
    lengths = [row["length"] for row in rows]
    memory.plot(lengths, [row["projection_bytes"] / 2**20 for row in rows], ":", color="gray", label="q, k, v alone")
    for axes, title in ((memory, "peak memory, MiB"), (times, "ms")):
        _logarithmic(axes, lengths)
        axes.set(xlabel="tokens", title=title)
    memory.legend(frameon=False)
    figure.supxlabel(
        f"HYLA, forward and backward, batch 1, 8 heads of 64. {_machine(result)}", fontsize=7, color="gray"
    )
    return figure


DRAWINGS = {"steps": draw_steps, "lengths": draw_lengths, "growth": draw_growth, "memory": draw_memory}


def _logarithmic(axes: Axes, sizes: list[int]) -> None:
    axes.set(xscale="log", yscale="log")
    ticks = sorted(set(sizes))
    axes.set_xticks(ticks, [str(tick) for tick in ticks], rotation=45 if len(ticks) > 5 else 0)
    axes.minorticks_off()
    axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axes.yaxis.set_major_formatter("{x:g}")


def _machine(result: Json) -> str:
    machine = result["machine"]
    return f"{machine['cpu']}, {machine['threads']} threads, torch {machine['torch']}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("results", type=Path)
    parser.add_argument("folder", type=Path)
    options = parser.parse_args()
    result = json.loads(options.results.read_text())
    options.folder.mkdir(parents=True, exist_ok=True)
    with rc_context(STYLE):
        for part, draw in DRAWINGS.items():
            if part in result:
                path = options.folder / f"speed_{part}.png"
                draw(result).savefig(path, dpi=160)
                print(path)


if __name__ == "__main__":
    main()
