"""A task of your own, in one file: copy it, change it, and use it with every verb.

    recombine show  examples/own_task.py:Waves
    recombine check examples/own_task.py:Waves
    recombine train examples/own_task.py:Waves --scale tiny
    recombine diagnose runs/waves-hyla-... --code examples/own_task.py:Waves

Waves: a function is the sum of two out of eight sine waves. A sequence shows its value at a few points and asks for the
value at another one. Can a network that has seen every wave, but only some pairs, recombine them into new pairs?
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

import torch
from jaxtyping import Float
from torch import Tensor

import recombine
from recombine import Batch, CompositionSplit, InputError, Metric, Preset, Ratio, Stream


@dataclass(frozen=True, kw_only=True)
class Waves(recombine.Task):
    """Predict the sum of two waves from examples. The fields below are the settings, and become flags."""

    name: ClassVar[str] = "waves"
    summary: ClassVar[str] = "Infer which two waves were added from examples of their sum."
    metric_info: ClassVar[dict[str, Metric]] = {"r2": Metric(title="R²")}
    # Raise it when the same settings give other numbers than before; an edit of this file is noticed anyway.
    version: ClassVar[int] = 1
    evaluation_instances: ClassVar[int] = 4_000

    num_waves: int = 8
    """Number of waves (the modules)."""
    num_added: int = 2
    """Waves in a sum (a composition)."""
    num_examples: int = 16
    """Tokens in a sequence, including the query."""
    held_out: float = 0.25
    """Fraction of the compositions that is held out."""

    def __post_init__(self) -> None:
        if self.num_examples < 2:
            raise InputError(f"num_examples is {self.num_examples}: expected at least 2, one example and the query")
        _ = self.split  # an impossible split is an error right away

    @classmethod
    def preset(cls, scale: str, model: str | None = None) -> Preset:
        """What `--scale` means. Without this method, every scale means the defaults."""
        steps = {"tiny": 2_000, "small": 10_000, "paper": 50_000}[scale]
        return Preset(task=cls(), model=model or "transformer", training={"steps": steps})

    # What is composed, and what is held out

    @cached_property
    def split(self) -> CompositionSplit:
        """Which compositions are trained and which are held out."""
        compositions = recombine.all_sets(self.num_waves, self.num_added)
        return recombine.split_compositions(compositions, held_out=self.held_out, seed=self.seed)

    # Shapes: a sequence of tokens (x, y), of which the last is read

    @property
    def input_dim(self) -> int:
        return 2

    @property
    def output_dim(self) -> int:
        return 1

    @property
    def sequence_length(self) -> int:
        return self.num_examples

    @property
    def num_read(self) -> int:
        return 1

    # Instances, loss and score

    def make_batch(self, split: str, stream: Stream) -> Batch:
        """One instance per row of the stream, from which all random numbers are drawn."""
        number, waves = self.draw_compositions(split, stream)
        x = stream.uniform(self.num_examples)
        y = self.waves_at(x).gather(-1, waves[:, None, :].expand(-1, self.num_examples, -1)).sum(dim=-1)
        inputs = torch.stack([x, y], dim=-1)
        inputs[:, -1, -1] = 0  # the answer
        return Batch(inputs, y[:, -1], latents=waves, info={"composition": number})

    def loss(self, predictions: Tensor, batch: Batch) -> Float[Tensor, ""]:
        """Squared error at the query."""
        return (predictions.flatten(1)[:, -1] - batch.targets).square().mean()

    def metrics(self, predictions: Tensor, batch: Batch) -> dict[str, Ratio]:
        """R² over all instances of a split: a ratio of sums. The variance of a sum of sine waves is half their number."""
        error = (predictions.flatten(1)[:, -1] - batch.targets).square()
        variance = torch.full_like(error, self.num_added / 2)
        return {"r2": Ratio(variance - error, variance)}

    # What scores are compared with

    def chance(self, batch: Batch) -> Tensor:
        """The best predictions that ignore the input."""
        return torch.zeros_like(batch.targets)[:, None]

    def best_predictions(self, batch: Batch, *, split: str | None, metric: str) -> Tensor:
        """The mean of all compositions that agree with the examples: those of the split, or any if it is not known."""
        known = recombine.all_sets(self.num_waves, self.num_added) if split is None else self.split.compositions(split)
        x, y = batch.inputs.unbind(-1)
        values = self.waves_at(x)[..., torch.tensor(known, device=x.device)].sum(dim=-1)  # row, token, composition
        agrees = ((values - y[..., None])[:, :-1].abs() < 1e-4).all(dim=1).float()
        return (agrees * values[:, -1]).sum(dim=1, keepdim=True) / agrees.sum(dim=1, keepdim=True)

    def waves_at(self, x: Float[Tensor, "rows tokens"]) -> Float[Tensor, "rows tokens waves"]:
        """The value of every wave at every point."""
        frequency = torch.arange(1, self.num_waves + 1, device=x.device)
        return torch.sin(2 * math.pi * frequency * x[..., None])

    # For people

    def describe(self, composition: tuple[int, ...]) -> str:
        return " + ".join(f"sin({2 * (wave + 1)}πx)" for wave in composition)

    def render(self, batch: Batch, row: int) -> str:
        *examples, (x, _) = batch.inputs[row].tolist()
        lines = [f"f(x) = {self.describe(tuple(batch.latents[row].tolist()))}"]
        lines += [f"f({point:.3f}) = {value:6.3f}" for point, value in examples]
        return "\n".join([*lines, f"f({x:.3f}) = ?       (answer {batch.targets[row]:.3f})"])
