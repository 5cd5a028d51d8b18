"""Base class of the causal sequence models: hidden states at every position, and one readout for all of them
(On Provable Length and Compositional Generalization, arXiv 2402.04875).

    h_1 .. h_T = represent(x_1 .. x_T),    y_t = ρ(h_t)

Limited capacity means that ρ is one layer (`linear`), higher capacity that it is an MLP (`mlp`); a sigmoid follows every
layer. Initial weights are N(0, 0.6²), biases 0. If a task supervises the intermediate values (chain of thought), a model
returns its hidden states after its outputs.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import OrderedDict
from dataclasses import dataclass
from typing import ClassVar, get_args

import torch
from jaxtyping import Float
from torch import Tensor, nn

from recombine.errors import InputError, check_choice, check_positive
from recombine.models.base import ModelConfig, Need, Site
from recombine.tasks.sequences.functions import WEIGHT_DEVIATION, Readout


@dataclass(frozen=True, kw_only=True)
class SequenceModelConfig(ModelConfig):
    """Sizes of a causal sequence model; the task gives those of its inputs and outputs."""

    hidden_dim: int = 20
    """Number of features of a hidden state."""
    readout: Readout = "linear"
    """Readout from hidden state to output: one layer (limited capacity) or an MLP (higher capacity)."""

    def __post_init__(self) -> None:
        check_positive(hidden_dim=self.hidden_dim)
        check_choice("readout", self.readout, get_args(Readout))

    @property
    def label(self) -> str:
        return self.kind if self.readout == "linear" else f"{self.kind}-{self.readout}"

    @property
    def needs(self) -> tuple[Need, ...]:
        hidden_states = Need(
            lambda task: task.thought_dim in (0, self.hidden_dim),
            "supervises {task.thought_dim} hidden states",
            f"that supervises {self.hidden_dim}, the hidden_dim of the model, or none",
        )
        return (hidden_states,)


class SequenceModel(nn.Module, ABC):
    """Outputs (b, t, output_dim) for tokens (b, t, input_dim), followed by the hidden states if `with_thoughts`."""

    probe_sites: ClassVar[tuple[Site, ...]] = (Site("hidden", "readout", "input"),)

    def __init__(
        self, config: SequenceModelConfig, *, input_dim: int, output_dim: int, with_thoughts: bool = False
    ) -> None:
        super().__init__()
        self.config = config
        self.input_dim = input_dim
        self.with_thoughts = with_thoughts
        size = config.hidden_dim
        sizes = (size, output_dim) if config.readout == "linear" else (size, size, output_dim)
        self.readout = sigmoid_layers(*sizes)

    @abstractmethod
    def represent(self, inputs: Float[Tensor, "b t features"]) -> Float[Tensor, "b t hidden"]:
        """Hidden states; none depends on a later token."""

    def forward(self, inputs: Float[Tensor, "b t features"]) -> Float[Tensor, "b t outputs"]:
        self.check_inputs(inputs)
        hidden = self.represent(inputs)
        outputs = self.readout(hidden)
        return torch.cat([outputs, hidden], dim=-1) if self.with_thoughts else outputs

    def check_inputs(self, inputs: Float[Tensor, "b t features"]) -> None:
        if inputs.ndim != 3 or inputs.shape[1] == 0 or inputs.shape[2] != self.input_dim:
            raise InputError(
                f"inputs have shape {tuple(inputs.shape)}: expected (batch, tokens, {self.input_dim}) "
                "with at least one token"
            )


def sigmoid_layers(*sizes: int) -> nn.Sequential:
    """Dense layers of these sizes with a sigmoid after each; layer i is called i."""
    layers: OrderedDict[str, nn.Module] = OrderedDict()
    for i in range(len(sizes) - 1):
        layer = nn.Linear(sizes[i], sizes[i + 1])
        nn.init.normal_(layer.weight, std=WEIGHT_DEVIATION)
        nn.init.zeros_(layer.bias)
        layers[str(i)] = layer
        layers[f"sigmoid{i}"] = nn.Sigmoid()
    return nn.Sequential(layers)


def normal_parameter(*shape: int) -> nn.Parameter:
    """A weight initialised to N(0, 0.6²)."""
    return nn.Parameter(nn.init.normal_(torch.empty(shape), std=WEIGHT_DEVIATION))
