"""A transformer with a bottleneck between inferring a task and executing it (When can transformers compositionally
generalize in-context?, arXiv 2407.12275).

    code = dense(mean over examples of norm(trunk((x, y) of the examples)))
    hypernetwork:  y = V relu(W x + b) + c   with (W, b) = code . H,  and H, V, c learned and the same for all tasks
    mlp:           y = mlp(code, x)          two hidden layers

The trunk is the transformer's, on the examples alone. A query x is seen only by the network that the code generates, so the
code contains everything the model knows about the task. With `execution="mlp"` the bottleneck stays but the hypernetwork is
removed: an ablation that shows which of the two matters. The hypernetwork is linear and the readout V is shared, as in the
teacher; widths are our choice.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal, get_args

import torch
from jaxtyping import Float
from torch import Tensor, nn

from recombine.errors import check_choice, check_positive
from recombine.layers.initialise import lecun_linear, lecun_normal_
from recombine.models.base import ISOLATED_QUERIES, MODULES, Need, Site
from recombine.models.transformer import Block, TransformerConfig
from recombine.tasks.base import Task

Execution = Literal["hypernetwork", "mlp"]


@dataclass(frozen=True, kw_only=True)
class HypernetworkTransformerConfig(TransformerConfig):
    """Sizes and choices: those of the trunk, the width of the bottleneck, and what follows it."""

    kind: ClassVar[str] = "hypernetwork_transformer"

    position: Literal["relative", "rotary", "none"] = "none"
    """Position encoding of the trunk. Examples have no order."""
    code_dim: int | None = None
    """Number of features of the latent code (default: one per module of the task)."""
    execution: Execution = "hypernetwork"
    """How x is processed: by a network generated from the code, or by an MLP on the code and x."""
    execution_dim: int = 32
    """Number of hidden units of that network."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_choice("execution", self.execution, get_args(Execution))
        check_positive(execution_dim=self.execution_dim)
        if self.code_dim is not None:
            check_positive(code_dim=self.code_dim)

    @property
    def label(self) -> str:
        return f"{self.attention}_bottleneck_{self.execution}"

    @property
    def needs(self) -> tuple[Need, ...]:
        return (ISOLATED_QUERIES,) if self.code_dim is not None else (ISOLATED_QUERIES, MODULES)

    def build(self, task: Task) -> nn.Module:
        code_dim = task.num_modules if self.code_dim is None else self.code_dim
        assert code_dim is not None  # guaranteed by `needs`
        return HypernetworkTransformer(
            self,
            code_dim=code_dim,
            input_dim=task.input_dim,
            output_dim=task.output_dim,
            num_examples=task.sequence_length - task.num_read,
        )


class HypernetworkTransformer(nn.Module):
    """Examples and queries in, predictions for the queries out; the code is the output of the submodule `code`."""

    def __init__(
        self,
        config: HypernetworkTransformerConfig,
        *,
        code_dim: int,
        input_dim: int,
        output_dim: int,
        num_examples: int,
    ) -> None:
        super().__init__()
        self.config = config
        self.num_examples, self.query_dim = num_examples, input_dim - output_dim
        self.embed = lecun_linear(input_dim, config.embedding_dim)
        self.blocks = nn.ModuleList(Block(config, num_examples) for _ in range(config.num_layers))
        self.output_norm = nn.LayerNorm(config.embedding_dim, eps=1e-6)
        self.code = lecun_linear(config.embedding_dim, code_dim)
        execution = GeneratedNetwork if config.execution == "hypernetwork" else ConditionedMLP
        self.execution = execution(code_dim, self.query_dim, config.execution_dim, output_dim)

    @property
    def probe_sites(self) -> tuple[Site, ...]:
        """The residual stream after each block, averaged as for the code, and the code."""
        residual = [Site(f"residual.{i}", f"blocks.{i}", token="mean") for i in range(len(self.blocks))]
        return (*residual, Site("code", "code"))

    def forward(self, inputs: Float[Tensor, "b tokens features"]) -> Float[Tensor, "b queries output"]:
        return self.execution(self.infer(inputs), self.queries(inputs))

    def infer(self, inputs: Float[Tensor, "b tokens features"]) -> Float[Tensor, "b code"]:
        """The latent code of the task, inferred from the examples."""
        x = self.embed(inputs[:, : self.num_examples])
        for block in self.blocks:
            x, _ = block(x, x.shape[1], None, False)
        return self.code(self.output_norm(x).mean(dim=1))

    def queries(self, inputs: Float[Tensor, "b tokens features"]) -> Float[Tensor, "b queries query"]:
        """x of the queries."""
        return inputs[:, self.num_examples :, : self.query_dim]


class GeneratedNetwork(nn.Module):
    """A linear hypernetwork: one hidden layer whose weights are linear in the code, and one readout for all codes."""

    def __init__(self, code_dim: int, input_dim: int, hidden_dim: int, output_dim: int) -> None:
        super().__init__()
        # for codes of variance 1, the generated matrix has the variance of an ordinary layer
        self.weight = nn.Parameter(lecun_normal_(torch.empty(code_dim, hidden_dim, input_dim), code_dim * input_dim))
        self.bias = nn.Parameter(torch.zeros(code_dim, hidden_dim))
        self.readout = lecun_linear(hidden_dim, output_dim)

    def generate(
        self, code: Float[Tensor, "b code"]
    ) -> tuple[Float[Tensor, "b hidden input"], Float[Tensor, "b hidden"]]:
        """The hidden layer of the network of each row."""
        return (code @ self.weight.flatten(1)).view(-1, *self.weight.shape[1:]), code @ self.bias

    def forward(
        self, code: Float[Tensor, "b code"], x: Float[Tensor, "b queries input"]
    ) -> Float[Tensor, "b queries output"]:
        weight, bias = self.generate(code)
        return self.readout(torch.baddbmm(bias[:, None], x, weight.mT).relu())


class ConditionedMLP(nn.Module):
    """An MLP on the concatenation of code and x; the same for all tasks."""

    def __init__(self, code_dim: int, input_dim: int, hidden_dim: int, output_dim: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            lecun_linear(code_dim + input_dim, hidden_dim),
            nn.ReLU(),
            lecun_linear(hidden_dim, hidden_dim),
            nn.ReLU(),
            lecun_linear(hidden_dim, output_dim),
        )

    def forward(
        self, code: Float[Tensor, "b code"], x: Float[Tensor, "b queries input"]
    ) -> Float[Tensor, "b queries output"]:
        repeated = code[:, None].expand(-1, x.shape[1], -1)
        return self.layers(torch.cat([repeated, x], dim=-1))
