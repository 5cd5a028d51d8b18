"""The figures of docs/theory.md: constructed networks and students, no training.

python examples/theory_figures.py docs/images
"""

import sys
from pathlib import Path

import torch

from recombine.tasks.view import LIGHT_PALETTE, canvas
from recombine_papers.length.theory import change_basis, copy_teacher, draw_bases, forget_beyond
from recombine_papers.scale.theory import measure_network

MODULES = (4, 8, 16, 24, 32, 48, 64)
KNOTS = (1, 2, 4, 8, 16, 32, 64)
BLUE, ORANGE = LIGHT_PALETTE[:2]
LENGTHS = range(1, 101)


def draw_neurons(path: Path) -> None:
    """Neurons grow with the number of modules, the error falls with the square of the number of knots."""
    over_modules = {num_modules: measure_network(num_modules, 8) for num_modules in MODULES}
    over_knots = {num_knots: measure_network(16, num_knots) for num_knots in KNOTS}
    print("modules, neurons, error:", [(m, *each) for m, each in over_modules.items()])
    print("knots, neurons, error:", [(n, *each) for n, each in over_knots.items()])
    with canvas(path, 11, 3.4) as figure:
        left, middle, right = figure.subplots(1, 3)
        left.plot(MODULES, [neurons for neurons, _ in over_modules.values()], "o-", color=BLUE)
        left.set(xlabel="modules M", ylabel="hidden neurons", title="neurons, 8 knots per unit", xlim=0, ylim=0)
        middle.plot(MODULES, [error for _, error in over_modules.values()], "o-", color=BLUE)
        middle.set(xlabel="modules M", ylabel="error / standard deviation", title="error, 8 knots per unit")
        middle.set(xlim=0, ylim=(0, 0.01))
        errors = [error for _, error in over_knots.values()]
        right.loglog(KNOTS, errors, "o-", color=BLUE, label="constructed network")
        guide = [errors[2] * (KNOTS[2] / n) ** 2 for n in KNOTS]
        right.loglog(KNOTS, guide, "--", color=ORANGE, label="slope −2")
        right.set(xlabel="knots per unit", ylabel="error / standard deviation", title="error, M = 16")
        right.legend()


@torch.no_grad()
def draw_sequences(path: Path) -> None:
    """Left: what a change of basis does to outputs. Right: a deep set that forgets beyond ten tokens."""
    rotation, permutation = draw_bases(seed=0)
    bases = [(name, "rotation", rotation) for name in ("deep_set", "ssm", "rnn")]
    bases.append(("rnn", "permutation", permutation))
    with canvas(path, 8.5, 3.2) as figure:
        left, right = figure.subplots(1, 2)
        for colour, (name, kind, basis) in zip(LIGHT_PALETTE, bases, strict=False):
            task, model = copy_teacher(name)
            x = task.sample_length("ood", 0, 100, batch_size=200).inputs.double()
            change = (change_basis(model, basis)(x) - model(x)).abs().mean(dim=(0, 2)).clamp_min(1e-18)
            left.plot(LENGTHS, change, color=colour, label=f"{name.replace('_', ' ')}, {kind}")
        left.set(title="hidden states in another basis", ylabel="mean change of the outputs", yscale="log")
        task, model = copy_teacher("deep_set")
        inputs = task.sample_length("ood", 0, 100, batch_size=500).inputs.double()
        targets = model(inputs)
        error = (forget_beyond(model, 10)(inputs) - targets).square().mean(dim=(0, 2))  # type: ignore[arg-type]
        constant = (targets.mean(dim=0) - targets).square().mean(dim=(0, 2))
        right.plot(LENGTHS, error, color=BLUE, label="deep set that clips sums at 10")
        right.plot(LENGTHS, constant, color="0.5", label="best constant")
        right.set(title="no error where trained, large beyond", ylabel="squared error")
        right.set_yscale("symlog", linthresh=1e-6)
        for axes in (left, right):
            axes.axvline(10, color="0.6", linewidth=0.8, linestyle=":")
            axes.set(xlabel="tokens T", xscale="log")
            axes.set_xticks((1, 2, 5, 10, 20, 50, 100), ("1", "2", "5", "10", "20", "50", "100"))
            axes.minorticks_off()
        left.legend(loc="center right")
        right.legend(loc="center left")


if __name__ == "__main__":
    folder = Path(sys.argv[1])
    draw_neurons(folder / "theory_neurons.png")
    draw_sequences(folder / "theory_sequences.png")
