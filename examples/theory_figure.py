"""The figure of docs/theory.md: how many neurons the constructed network has, and how fast its error falls.

python examples/theory_figure.py docs/images/theory_neurons.png
"""

import sys

import matplotlib.pyplot as plt
import torch

from recombine.models.constructed_network import build_modular_mlp, count_neurons
from recombine.tasks import Hyperteacher

MODULES = (4, 8, 16, 24, 32, 48, 64)
KNOTS = (1, 2, 4, 8, 16, 32, 64)
BLUE, ORANGE = "#2f6db3", "#d9722e"


def build(num_modules: int, num_knots: int) -> tuple[int, float]:
    """Neurons of the construction, and its error on held-out compositions as a share of the outputs' deviation."""
    task = Hyperteacher(num_modules=num_modules, num_active=3, num_extra=0)
    network = build_modular_mlp(task.teacher, num_knots=num_knots)
    batch = task.sample("ood", 0, batch_size=64)
    z, x = batch.info["strengths"], batch.inputs[..., task.encoding_dim :]
    with torch.no_grad():
        error = network(torch.cat([(z / task.num_active**0.5)[:, None].expand(-1, x.shape[1], -1), x], dim=-1).double())
        error -= batch.targets
    return count_neurons(network), (error.square().mean().sqrt() / batch.targets.std()).item()


def main(path: str) -> None:
    over_modules = {num_modules: build(num_modules, 8) for num_modules in MODULES}
    over_knots = {num_knots: build(16, num_knots) for num_knots in KNOTS}
    print("modules, neurons, error:", [(m, *each) for m, each in over_modules.items()])
    print("knots, neurons, error:", [(n, *each) for n, each in over_knots.items()])
    figure, (left, middle, right) = plt.subplots(1, 3, figsize=(11, 3.4), layout="constrained")
    left.plot(MODULES, [neurons for neurons, _ in over_modules.values()], "o-", color=BLUE)
    left.set(xlabel="modules M", ylabel="hidden neurons", title="neurons, 8 knots a unit", xlim=0, ylim=0)
    middle.plot(MODULES, [error for _, error in over_modules.values()], "o-", color=BLUE)
    middle.set(xlabel="modules M", ylabel="error / standard deviation", title="error, 8 knots a unit")
    middle.set(xlim=0, ylim=(0, 0.01))
    errors = [error for _, error in over_knots.values()]
    right.loglog(KNOTS, errors, "o-", color=BLUE, label="constructed network")
    guide = [errors[2] * (KNOTS[2] / n) ** 2 for n in KNOTS]
    right.loglog(KNOTS, guide, "--", color=ORANGE, label="slope −2")
    right.set(xlabel="knots a unit", ylabel="error / standard deviation", title="error, M = 16")
    right.legend(frameon=False)
    for axes in (left, middle, right):
        axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, dpi=150)


if __name__ == "__main__":
    main(*sys.argv[1:])
