"""Figures of docs/length_generalization.md and docs/theory.md, from finished runs and from constructed students.

python examples/sequence_figures.py length-generalization --scale paper --runs runs -o docs/images/length.svg
python examples/sequence_figures.py theory -o docs/images/theory_sequences.svg
"""

from __future__ import annotations

import argparse
from pathlib import Path

import matplotlib

matplotlib.use("svg")
import matplotlib.pyplot as plt
import numpy as np
import torch
from matplotlib.axes import Axes

from recombine.models import SequenceModel, build_model
from recombine.models.constructed_students import change_basis, forget_beyond
from recombine.probe.identification import identify_run
from recombine.recipes import EXPERIMENTS
from recombine.recipes.experiment import find_runs, group_seeds
from recombine.recipes.length_generalization import POOLS, STUDENTS, SUPPORTS
from recombine.report.figures import LIGHT_PALETTE
from recombine.store import Json
from recombine.tasks import SequenceTeacher

plt.rcParams |= {
    "axes.spines.top": False,
    "axes.spines.right": False,
    "font.size": 9,
    "legend.frameon": False,
    "svg.hashsalt": "recombine",  # the same bytes every time
}


def find_groups(name: str, scale: str, runs: Path) -> dict[str, list[Json]]:
    """What identification found in each finished run of an experiment, by label without the seed."""
    found = find_runs(EXPERIMENTS[name], scale, runs)  # type: ignore[arg-type]
    return group_seeds({label: identify_run(run.path) for label, run in found.items()})


def curves(found: list[Json], *, ratio: bool) -> np.ndarray:
    """Seeds × lengths."""
    loss, constant = (np.array([each["trained"][key] for each in found]) for key in ("loss", "constant_loss"))
    return loss / constant if ratio else loss


def draw_lengths(axis: Axes, values: np.ndarray, color: str, label: str, style: str = "-") -> None:
    """A line for each seed: their mean would hide that some succeed and some fail."""
    lengths = np.arange(1, values.shape[1] + 1)
    for number, each in enumerate(values):
        axis.plot(lengths, each, style, color=color, label=None if number else label, linewidth=1.1, alpha=0.85)


def finish(axis: Axes, title: str, y: str) -> None:
    axis.axvline(10, color="0.6", linewidth=0.8, linestyle=":")
    axis.set(title=title, xlabel="tokens T", ylabel=y, yscale="log", xscale="log")
    axis.set_xticks([1, 2, 5, 10, 20, 50, 100], ["1", "2", "5", "10", "20", "50", "100"])
    axis.minorticks_off()


def lengths_figure(groups: dict[str, list[Json]]) -> None:
    _, axes = plt.subplots(1, 3, figsize=(10.5, 3.2), layout="constrained")
    for number, (label, found) in enumerate(groups.items()):
        color = LIGHT_PALETTE[number % len(LIGHT_PALETTE)]
        for axis, ratio in zip(axes[:2], (False, True), strict=True):
            draw_lengths(axis, curves(found, ratio=ratio), color, label.replace("_", " "))
        for state, style in (("trained", "-"), ("untrained", ":")):
            missing = 1 - np.array([each[state]["r2"]["transfer"] for each in found])
            draw_lengths(axes[2], np.maximum(missing, 1e-8), color, f"{label} {state}", style)
    finish(axes[0], "squared error at the last token", "")
    finish(axes[1], "as a ratio to the best constant", "")
    finish(axes[2], "1 − R² of the teacher's hidden states\n(dotted: before training)", "")
    axes[1].axhline(1, color="0.6", linewidth=0.8)
    axes[0].legend(fontsize=8)


def capacity_figure(groups: dict[str, list[Json]]) -> None:
    _, axes = plt.subplots(1, 4, figsize=(11, 2.9), layout="constrained", sharey=True)
    for axis, student in zip(axes, STUDENTS, strict=True):
        for number, kind in enumerate(("outputs only", "chain of thought")):
            if found := groups.get(f"{student}, {kind}"):
                draw_lengths(axis, curves(found, ratio=True), LIGHT_PALETTE[number], kind)
        finish(axis, student.replace("_", " "), "")
        axis.axhline(1, color="0.6", linewidth=0.8)
    axes[0].set_ylabel("squared error / best constant")
    axes[0].legend(fontsize=8)


def diversity_figure(groups: dict[str, list[Json]]) -> None:
    _, axes = plt.subplots(2, 2, figsize=(8, 5), layout="constrained", sharey="row")
    sweeps = (
        ("tokens from an interval of {:g}", SUPPORTS, "width of the interval of training tokens"),
        ("{} sequences", POOLS, "distinct training sequences"),
    )
    for column, (words, values, title) in enumerate(sweeps):
        for number, student in enumerate(("deep_set", "attention")):
            found = {value: groups.get(f"{student}, {words.format(value)}") for value in values}
            known = [(value, each) for value, each in found.items() if each]
            at = {"color": LIGHT_PALETTE[number], "marker": "o", "markersize": 4, "label": student.replace("_", " ")}
            x = [value for value, _ in known]
            axes[0, column].plot(x, [curves(each, ratio=True)[:, 99].mean() for _, each in known], **at)
            r2 = [np.mean([1 - run["trained"]["r2"]["transfer"][99] for run in each]) for _, each in known]
            axes[1, column].plot(x, r2, **at)
        axes[0, column].axhline(1, color="0.6", linewidth=0.8)
        for row in range(2):
            axes[row, column].set(xscale="log", yscale="log")
        axes[1, column].set_xlabel(title)
    axes[0, 0].set_ylabel("squared error at T = 100\n/ best constant")
    axes[1, 0].set_ylabel("1 − R² of hidden states\nat T = 100")
    axes[0, 0].legend(fontsize=8)


def copy_teacher(name: str) -> tuple[SequenceTeacher, SequenceModel]:
    task = SequenceTeacher(teacher=name)  # type: ignore[arg-type]
    model = build_model(STUDENTS[name], task, seed=0)
    assert isinstance(model, SequenceModel)
    model.load_state_dict(task.weights)
    return task, model.double()


@torch.no_grad()
def theory_figure() -> None:
    """Left: what a change of basis does to outputs. Right: a deep set that forgets beyond ten tokens."""
    _, axes = plt.subplots(1, 2, figsize=(8.5, 3.2), layout="constrained")
    generator = torch.Generator().manual_seed(0)
    rotation = torch.linalg.qr(torch.randn(20, 20, generator=generator, dtype=torch.float64))[0]
    permutation = torch.eye(20, dtype=torch.float64)[torch.randperm(20, generator=generator)]
    cases = [(name, "rotation", rotation) for name in ("deep_set", "ssm", "rnn")] + [
        ("rnn", "permutation", permutation)
    ]
    for number, (name, kind, basis) in enumerate(cases):
        task, model = copy_teacher(name)
        x = task.sample("ood", 0, batch_size=200, length=100).inputs.double()
        change = (change_basis(model, basis)(x) - model(x)).abs().mean(dim=(0, 2)).clamp_min(1e-18)
        axes[0].plot(range(1, 101), change, color=LIGHT_PALETTE[number], label=f"{name.replace('_', ' ')}, {kind}")
    finish(axes[0], "hidden states in another basis", "mean change of the outputs")
    axes[0].legend(fontsize=8, loc="center right")
    task, model = copy_teacher("deep_set")
    batch = task.sample("ood", 0, batch_size=500, length=100)
    inputs, targets = batch.inputs.double(), model(batch.inputs.double())
    student = forget_beyond(model, 10)  # type: ignore[arg-type]
    error = (student(inputs) - targets).square().mean(dim=(0, 2))
    constant = (targets.mean(dim=0) - targets).square().mean(dim=(0, 2))
    axes[1].plot(range(1, 101), error, color=LIGHT_PALETTE[0], label="deep set that cuts sums off at 10")
    axes[1].plot(range(1, 101), constant, color="0.5", label="best constant")
    finish(axes[1], "no error where trained, large beyond", "squared error")
    axes[1].set_yscale("symlog", linthresh=1e-6)
    axes[1].legend(fontsize=8)


FIGURES = {
    "length-generalization": lengths_figure,
    "length-realisability": lengths_figure,
    "length-capacity": capacity_figure,
    "length-diversity": diversity_figure,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("figure", choices=["theory", *FIGURES])
    parser.add_argument("--scale", default="paper", choices=["tiny", "small", "paper"])
    parser.add_argument("--runs", type=Path, default=Path("runs"))
    parser.add_argument("-o", "--out", type=Path, required=True)
    arguments = parser.parse_args()
    if arguments.figure == "theory":
        theory_figure()
    else:
        FIGURES[arguments.figure](find_groups(arguments.figure, arguments.scale, arguments.runs))
    plt.savefig(arguments.out, metadata={"Date": None} if arguments.out.suffix == ".svg" else None, dpi=150)


if __name__ == "__main__":
    main()
