"""A linear hypernetwork: the encoding of a task generates the weights of a network for the input (SC, arXiv 2507.07207).

    W1, b1, W2, b2 = dense(layer_norm(code));   y = relu(x W1 + b1) W2 + b2

If the code is linear in a teacher's modules, this has the form of the teacher: modules that were learned separately add up.

A transformer with a bottleneck between inferring a task and executing it (When can transformers compositionally
generalize in-context?, arXiv 2407.12275).

    code = dense(mean over examples of norm(trunk((x, y) of the examples)))
    hypernetwork:      y = V relu(W x + b) + c   with (W, b) = code . H,  and H, V, c learned and the same for all tasks
    mlp_hypernetwork:  the same with (W, b) = mlp(code)
    mlp:               y = mlp(code, x)          two hidden layers

The trunk is the transformer's, on the examples alone. A query x is seen only by the network that the code generates, so the
code contains everything the model knows about the task. The other executions are ablations: with `mlp_hypernetwork` weights
are still generated, but modules no longer add up, and with `mlp` the bottleneck alone is left. The hypernetwork is linear and
the readout V is shared, as in the teacher; widths are our choice.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from jaxtyping import Float
from torch import Tensor, nn

from recombine.attention.layer import lecun_linear, lecun_normal_
from recombine.foundation.errors import check_positive
from recombine.models.base import ENCODING, ISOLATED_QUERIES, MODULES, ModelConfig, Need, Site
from recombine.models.transformer import TransformerConfig
from recombine.tasks.base import Task


@dataclass(frozen=True, kw_only=True)
class HypernetworkConfig(ModelConfig):
    """Size of the generated network."""

    kind: ClassVar[str] = "hypernetwork"

    hidden_dim: int = 256
    """Number of hidden units of the generated network."""

    def __post_init__(self) -> None:
        check_positive(hidden_dim=self.hidden_dim)

    @property
    def needs(self) -> tuple[Need, ...]:
        return (ENCODING,)

    def build(self, task: Task) -> Hypernetwork:
        x_dim = task.input_dim - task.encoding_dim
        return Hypernetwork(task.encoding_dim, x_dim, self.hidden_dim, task.output_dim)


class Hypernetwork(nn.Module):
    """Each token is the encoding of a task and an input. The encoding is read from the first token; all have the same."""

    probe_sites: ClassVar[tuple[Site, ...]] = (Site("code", "norm"), Site("hidden.0", "activation"))

    def __init__(self, encoding_dim: int, x_dim: int, hidden_dim: int, output_dim: int) -> None:
        super().__init__()
        self.encoding_dim = encoding_dim
        self.shapes = ((x_dim, hidden_dim), (1, hidden_dim), (hidden_dim, output_dim), (1, output_dim))
        self.norm = nn.LayerNorm(encoding_dim, eps=1e-6)
        self.generate = lecun_linear(encoding_dim, sum(rows * columns for rows, columns in self.shapes))
        self.activation = nn.ReLU()
        with torch.no_grad():
            # a normalised code generates weights of variance 1 here: scale matrices to variance 1 / fan_in, biases to 0
            parts = zip(self.generate.weight.split(self.sizes), self.shapes, (False, True) * 2, strict=True)
            for part, (fan_in, _), bias in parts:
                part.mul_(0.0 if bias else fan_in**-0.5)

    @property
    def sizes(self) -> list[int]:
        return [rows * columns for rows, columns in self.shapes]

    def forward(self, inputs: Float[Tensor, "b tokens features"]) -> Float[Tensor, "b tokens predictions"]:
        code, x = inputs[:, 0, : self.encoding_dim], inputs[..., self.encoding_dim :]
        made = self.generate(self.norm(code)).split(self.sizes, dim=-1)
        first, first_bias, second, second_bias = (
            part.unflatten(-1, shape) for part, shape in zip(made, self.shapes, strict=True)
        )
        hidden = self.activation(torch.baddbmm(first_bias, x, first))
        return torch.baddbmm(second_bias, hidden, second)


Execution = Literal["hypernetwork", "mlp_hypernetwork", "mlp"]
PREDICTOR_DIM = 64  # hidden units per layer of the MLP that predicts weights


@dataclass(frozen=True, kw_only=True)
class HypernetworkTransformerConfig(TransformerConfig):
    """Sizes and choices: those of the trunk, the width of the bottleneck, and what follows it."""

    kind: ClassVar[str] = "hypernetwork_transformer"

    position: Literal["relative", "rotary", "none"] = "none"
    """Position encoding of the trunk. Examples have no order."""
    code_dim: int | None = None
    """Number of features of the latent code (default: one per module of the task)."""
    execution: Execution = "hypernetwork"
    """How x is processed: by a network whose weights are linear in the code or an MLP of it, or by an MLP on code and x."""
    execution_dim: int = 32
    """Number of hidden units of that network."""

    def __post_init__(self) -> None:
        super().__post_init__()
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
        self.blocks = nn.ModuleList(config.build_block(num_examples) for _ in range(config.num_layers))
        self.output_norm = nn.LayerNorm(config.embedding_dim, eps=1e-6)
        self.code = lecun_linear(config.embedding_dim, code_dim)
        self.execution = EXECUTIONS[config.execution](code_dim, self.query_dim, config.execution_dim, output_dim)

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
            x, _ = block(x)
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


class PredictedNetwork(nn.Module):
    """A network like the generated one, whose weights an MLP with two hidden layers predicts from the code."""

    def __init__(self, code_dim: int, input_dim: int, hidden_dim: int, output_dim: int) -> None:
        super().__init__()
        self.hidden = nn.Sequential(
            lecun_linear(code_dim, PREDICTOR_DIM), nn.ReLU(), lecun_linear(PREDICTOR_DIM, PREDICTOR_DIM), nn.ReLU()
        )
        self.network = GeneratedNetwork(PREDICTOR_DIM, input_dim, hidden_dim, output_dim)

    def forward(
        self, code: Float[Tensor, "b code"], x: Float[Tensor, "b queries input"]
    ) -> Float[Tensor, "b queries output"]:
        return self.network(self.hidden(code), x)


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


EXECUTIONS: dict[Execution, type[nn.Module]] = {
    "hypernetwork": GeneratedNetwork,
    "mlp_hypernetwork": PredictedNetwork,
    "mlp": ConditionedMLP,
}
