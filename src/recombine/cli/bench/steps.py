"""Whole training steps: batch, forward, backward, AdamW.

Three variants with the same parameters and batches:

    plain       the definition under `torch.compile`: reference attention, every token of the last block computed
    recombine   what training uses: fused kernels, eager
    compiled    the same under `torch.compile`

The limit is the time of the matrix products of the plain model's dense layers alone, forward and backward.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from recombine.attention.dispatch import use_kernel
from recombine.cli.bench.machine import Pass, take_medians, time_interleaved
from recombine.models.base import build_model
from recombine.models.transformer import Transformer, TransformerConfig
from recombine.training.config import Precision, TrainingConfig, build_optimizer, default_run
from recombine.training.loop import Trainer
from recombine.training.precision import use_precision
from recombine.training.schema import Json

ATTENTIONS = ("softmax", "linear", "hyla")
PRECISIONS = ("float32", "bf16")
WORKLOADS = ("fuzzy_logic", "sraven", "language")
LANGUAGE = TransformerConfig(  # the paper's, but for two of its six layers
    num_layers=2, embedding_dim=512, kqv_dim=512, mlp_dim=2048, num_heads=8, position="rotary", causal=True
)
LANGUAGE_BATCH, LANGUAGE_TOKENS = 1, 256


class ReadLate(nn.Module):
    """A transformer that computes every token and then selects the last ones."""

    def __init__(self, model: Transformer) -> None:
        super().__init__()
        self.model, self.num_read = model, model.num_read

    def forward(self, inputs: Tensor) -> Tensor:
        self.model.num_read = inputs.shape[1]
        return self.model(inputs)[:, -self.num_read :]


@dataclass(frozen=True, kw_only=True)
class Workload:
    """How to build the step of a variant: compiled or eager, with the plain or our own model."""

    make_model: Callable[[], Transformer]
    make_step: Callable[[nn.Module, Callable[..., Any]], Pass]


def make_workload(name: str, attention: Any, precision: Any, **changes: Any) -> Workload:
    """A task at the paper's sizes, or the language model of the paper on random tokens; `changes` are of the model."""
    if name == "language":
        return _make_language(replace(LANGUAGE, attention=attention, **changes), precision)
    run = default_run(name)
    assert isinstance(run.model, TransformerConfig)
    config = replace(run.model, attention=attention, **changes)
    training = replace(run.training, precision=precision)

    def make_model() -> Transformer:
        model = build_model(config, run.task, seed=0)
        assert isinstance(model, Transformer)
        return model

    def make_step(model: nn.Module, forward: Callable[..., Any]) -> Pass:
        trainer = Trainer(model, run.task, training, "cpu")
        trainer.forward = forward
        return trainer.advance

    return Workload(make_model=make_model, make_step=make_step)


def _make_language(config: TransformerConfig, precision: Precision) -> Workload:
    size = config.embedding_dim
    torch.manual_seed(0)
    inputs = torch.randn(LANGUAGE_BATCH, LANGUAGE_TOKENS, size)

    def make_model() -> Transformer:
        torch.manual_seed(0)
        return Transformer(
            config, input_dim=size, output_dim=size, sequence_length=LANGUAGE_TOKENS, num_read=LANGUAGE_TOKENS
        )

    def make_step(model: nn.Module, forward: Callable[..., Any]) -> Pass:
        optimizer = build_optimizer(model, weight_decay=TrainingConfig().weight_decay)

        def step() -> None:
            with use_precision(precision, inputs.device, compiled=forward is not model):
                predictions = forward(inputs)
            predictions.float().square().mean().backward()
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)

        return step

    return Workload(make_model=make_model, make_step=make_step)


def make_contenders(workload: Workload) -> dict[str, Pass]:
    plain, ours, compiled = ReadLate(workload.make_model()), workload.make_model(), workload.make_model()
    steps = {
        "plain": workload.make_step(plain, torch.compile(plain, dynamic=False, fullgraph=True)),
        "recombine": workload.make_step(ours, ours),
        "compiled": workload.make_step(compiled, torch.compile(compiled, dynamic=False, fullgraph=True)),
    }
    return {name: _under("reference" if name == "plain" else "auto", step) for name, step in steps.items()}


def _under(kernel: Any, step: Pass) -> Pass:
    def run() -> None:
        with use_kernel(kernel):
            step()

    return run


class _Products(TorchDispatchMode):
    """Collects the operands of the products of dense layers; those of attention have a batch dimension."""

    def __init__(self) -> None:
        super().__init__()
        self.operands: list[tuple[Tensor, Tensor]] = []

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if function in (torch.ops.aten.mm.default, torch.ops.aten.addmm.default):
            a, b = args[-2:]
            self.operands.append(tuple(_imitate(x) for x in (a, b)))  # type: ignore[arg-type]
        return function(*args, **(kwargs or {}))


def _imitate(x: Tensor) -> Tensor:
    return torch.empty_strided(x.shape, x.stride(), dtype=x.dtype).normal_()


def collect_products(workload: Workload) -> Pass:
    """Every matrix product of a plain step's dense layers, one after the other."""
    plain = ReadLate(workload.make_model())
    step = _under("reference", workload.make_step(plain, plain))
    with _Products() as seen:
        step()

    def run() -> None:
        for a, b in seen.operands:
            torch.mm(a, b)

    return run


def benchmark_steps(
    seconds: float,
    say: Callable[[str], None] = lambda _: None,
    precisions: Sequence[str] = PRECISIONS,
    workloads: Sequence[str] | None = None,
) -> list[Json]:
    """Every workload, attention and precision."""
    rows = []
    for name, attention, precision in product(workloads or WORKLOADS, ATTENTIONS, precisions):
        say(f"step: {name} {attention} {precision}")
        torch._dynamo.reset()
        workload = make_workload(name, attention, precision)
        contenders = make_contenders(workload)
        warm_up = {each: _time_once(step) for each, step in contenders.items()}
        times = time_interleaved({**contenders, "limit": collect_products(workload)}, seconds, warm_up=1)
        medians = take_medians(times)
        rows.append(
            {
                "workload": name,
                "attention": attention,
                "precision": precision,
                "rounds": len(times["plain"]),
                "warm_up_seconds": warm_up,
                "milliseconds": {each: 1e3 * value for each, value in medians.items()},
                "best_milliseconds": {each: 1e3 * min(values) for each, values in times.items()},
                "times_plain": medians["plain"] / medians["recombine"],
                "share_of_limit": medians["limit"] / medians["recombine"],
            }
        )
    return rows


def _time_once(step: Pass) -> float:
    start = time.perf_counter()
    step()
    return time.perf_counter() - start
