"""A model of your own, in one file, in two ways.

On the command line, a configuration gives it flags, a run directory, and every verb:

    recombine train    fuzzy-logic --model examples/own_model.py:AveragingConfig --scale tiny --hidden-dim 128
    recombine probe    runs/fuzzy-logic-averaging-... --code examples/own_model.py:AveragingConfig
    recombine diagnose runs/fuzzy-logic-averaging-... --code examples/own_model.py:AveragingConfig

In Python, any module from a task's inputs to predictions can be benchmarked as it is:

    python examples/own_model.py
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from jaxtyping import Float
from torch import Tensor, nn

import recombine
from recombine import InputError, Site


@dataclass(frozen=True, kw_only=True)
class AveragingConfig(recombine.ModelConfig):
    """Sizes of the network below. The fields become flags."""

    kind: ClassVar[str] = "averaging"
    version: ClassVar[int] = 1  # raise it when the same sizes and seed give another network

    hidden_dim: int = 64
    """Number of units per hidden layer."""

    def __post_init__(self) -> None:
        if self.hidden_dim < 1:
            raise InputError(f"hidden_dim is {self.hidden_dim}: expected at least 1")

    def build(self, task: recombine.Task) -> nn.Module:
        """The network for a task, which says how large its inputs and predictions are."""
        return Averaging(task.input_dim, self.hidden_dim, task.output_dim)


class Averaging(nn.Module):
    """Embed each token, average those before the last one, and predict from the average and the last token."""

    def __init__(self, input_dim: int, hidden_dim: int, output_dim: int) -> None:
        super().__init__()
        self.embed = nn.Sequential(nn.Linear(input_dim, hidden_dim), nn.GELU(), nn.Linear(hidden_dim, hidden_dim))
        self.combine = nn.Sequential(nn.Linear(2 * hidden_dim, hidden_dim), nn.GELU())
        self.output = nn.Linear(hidden_dim, output_dim)

    @property
    def probe_sites(self) -> tuple[Site, ...]:
        """Where probes look; without this, they look at the children."""
        return (Site("tokens", "embed", token="mean"), Site("combined", "combine"))

    def forward(self, inputs: Float[Tensor, "batch tokens features"]) -> Float[Tensor, "batch 1 predictions"]:
        tokens = self.embed(inputs)
        average = tokens[:, :-1].mean(dim=1)
        return self.output(self.combine(torch.cat([average, tokens[:, -1]], dim=-1)))[:, None]


def make_model(task: recombine.Task) -> nn.Module:
    """A function of the task that builds a module: what `--code` and `code=` take for the run that `benchmark` leaves."""
    return Averaging(task.input_dim, 64, task.output_dim)


if __name__ == "__main__":
    task = recombine.FuzzyLogic(num_examples=16)
    training = recombine.TrainingConfig(steps=1_000, learning_rate=3e-3)
    scores = recombine.benchmark(make_model(task), task, training=training, evaluation_instances=4_000, out="runs")
    for split in ("test", "ood"):
        score = scores[split]["r2_pooled"]
        print(f"{split:5} R² {score.value:.3f}  95 % interval {score.low:.3f} to {score.high:.3f}", end="  ")
        print(f"chance {score.chance:.3f}  ceiling {score.ceiling:.3f}")
    recombine.probe_run(scores.run.path, code=[make_model], tsne=False, num_instances=1_000)
    print(recombine.diagnose_run(scores.run.path).sentence)
