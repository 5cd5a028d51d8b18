"""recombine bench [PART ...]: how fast this machine trains, compared with the plain definition under torch.compile.

The variants take turns in one process, so that other load on the machine affects all of them. Times are medians over the
rounds. The meaningful numbers are ratios to the plain definition under `torch.compile`, measured in the same rounds.

`steps` measures whole training steps: batch, forward, backward, AdamW. Its variants have the same parameters and batches:

    plain       the definition under `torch.compile`: reference attention, every token of the last block computed
    recombine   as in training: fused kernels, eager
    compiled    the same under `torch.compile`

`share_of_peak` is the rate of the products that such a step needs, those of attention included, as a share of the peak: what
multiply-adds in registers reach on the same number of threads (`peak.c`), timed in the same rounds.

`attention` measures the forward and backward pass of one layer by the fused CPU kernel and by the definition, eager and
compiled. The scripts in `benchmarks/` measure what the development of this package needs beyond that.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from functools import partial
from itertools import product
from typing import Annotated, Any, Literal

import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from recombine.attention import definition
from recombine.attention.cpu import kernels as cpu
from recombine.attention.definition import AttentionOptions
from recombine.attention.dispatch import use_kernel
from recombine.attention.layer import ATTENTIONS
from recombine.cli.main import Argument, Output, parse
from recombine.foundation.display import Column, Table
from recombine.foundation.errors import InputError, require
from recombine.foundation.native import name_processor, read_cpu
from recombine.models.base import build_model
from recombine.models.transformer import Transformer, TransformerConfig
from recombine.training.config import Precision, TrainingConfig, build_optimizer, default_run
from recombine.training.schema import Json
from recombine.training.trainer import Trainer, use_precision

ATTENTION_NAMES = ("softmax", "linear", "hyla")
TYPES = {"float32": torch.float32, "bf16": torch.bfloat16}


@dataclass(frozen=True, kw_only=True)
class BenchOptions(Output):
    """Measure how fast this machine trains, compared with the plain definition under torch.compile."""

    examples = ("recombine bench steps --precisions float32", "recombine bench attention --seconds 1.5 --json")

    parts: Annotated[tuple[Literal["steps", "attention"], ...], Argument(metavar="PART", positional=True)] = (
        "steps",
        "attention",
    )
    """Parts to measure: whole training steps, and attention alone."""
    precisions: tuple[Precision, ...] = ("float32", "bf16")
    """Precisions to measure. On CPUs without bf16 instructions, bf16 takes many minutes."""
    workloads: tuple[Literal["fuzzy_logic", "sraven", "language"], ...] = ("fuzzy_logic", "sraven", "language")
    """Workloads for steps."""
    seconds: float = 3.0
    """Seconds per case. More seconds give more rounds."""


def run(argv: list[str]) -> None:
    options = parse(BenchOptions, argv, prog="bench")
    require(options.seconds > 0, "seconds", options.seconds, "a positive number")
    if (reason := cpu.why_unavailable()) is not None:
        raise InputError(f"there is no fused kernel to measure: {reason}")
    machine = describe_machine()
    heading = (
        f"{machine['cpu']}; {machine['threads']} threads; torch {machine['torch']}; "
        f"peak {machine['peak_gflops']['float32']:.0f} GFLOP/s"
    )
    result: Json = {"machine": machine}
    tables = []
    if "steps" in options.parts:
        result["steps"] = benchmark_steps(options)
        note = (
            "plain: the definition under torch.compile\nrecombine: as in training\ncompiled: the same under torch.compile\n"
            "share of peak: of recombine, of what multiply-adds in registers reach"
        )
        title, ratios = "training steps per second", ("times_plain", "share_of_peak")
        tables.append(tabulate(title, result["steps"], "workload", "steps_per_second", ratios, note))
    if "attention" in options.parts:
        result["attention"] = benchmark_attention(options)
        title = "milliseconds per forward and backward pass of one layer's attention"
        note = "eager, compiled: the definition\nfused: the kernel"
        tables.append(tabulate(title, result["attention"], "shape", "milliseconds", ("times_compiled",), note))
    options.show(result, heading, *tables)


def tabulate(title: str, rows: list[Json], name: str, values: str, ratios: tuple[str, ...], note: str) -> Table:
    """The values of the variants, and ratios."""
    keys = (name, "attention", "precision")
    variants = tuple(rows[0][values])
    numbers = (*variants, *(ratio.replace("times_", "× ").replace("_", " ") for ratio in ratios))
    return Table(
        title=title,
        columns=(*keys, *(Column(name=number, format="fixed", digits=2) for number in numbers)),
        rows=tuple(
            (*(row[key] for key in keys), *row[values].values(), *(row[ratio] for ratio in ratios)) for row in rows
        ),
        note=note,
    )


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
    run = default_run(name, scale="paper")
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


def benchmark_steps(options: BenchOptions) -> list[Json]:
    """A row for every workload, attention and precision."""
    rows = []
    for name, attention, precision in product(options.workloads, ATTENTION_NAMES, options.precisions):
        options.say(f"step: {name} {attention} {precision}")
        torch._dynamo.reset()
        workload = make_workload(name, attention, precision)
        peak = partial(cpu.run_multiply_adds, PEAK_REPEATS, bf16=precision == "bf16")
        times = time_interleaved(make_contenders(workload) | {"peak": peak}, options.seconds)
        peak_rate = 2 * peak() / statistics.median(times.pop("peak"))
        row = {"workload": name, "attention": attention, "precision": precision, **summarise_times(times)}
        milliseconds: Json = row["milliseconds"]
        row["steps_per_second"] = {variant: 1e3 / value for variant, value in milliseconds.items()}
        rate = count_operations(workload) / milliseconds["recombine"] * 1e3
        share = rate / peak_rate if peak_rate else None
        rows.append(row | {"times_plain": milliseconds["plain"] / milliseconds["recombine"], "share_of_peak": share})
    return rows


def count_operations(workload: Workload) -> int:
    """Multiplications and additions of the matrix products of a step, by the definition, forward and backward."""
    model = workload.make_model()
    step = workload.make_step(model, model)
    with use_kernel("reference"), FlopCounterMode(display=False) as counter:
        step()
    return counter.get_total_flops()


def summarise_times(times: Mapping[str, list[float]]) -> Json:
    """The number of rounds, the median and the least of each variant."""
    return {
        "rounds": min(map(len, times.values())),
        "milliseconds": {name: 1e3 * value for name, value in take_medians(times).items()},
        "best_milliseconds": {name: 1e3 * min(values) for name, values in times.items()},
    }


@dataclass(frozen=True, kw_only=True)
class Shape:
    """Sizes of one layer's attention."""

    b: int
    q: int
    k: int
    h: int
    d: int
    bias: bool = True
    causal: bool = False


SHAPES = {
    "fuzzy_logic": Shape(b=128, q=32, k=32, h=8, d=2),
    "sraven": Shape(b=128, q=36, k=36, h=16, d=4),
    "language": Shape(b=8, q=256, k=256, h=8, d=64, bias=False, causal=True),
    "long": Shape(b=4, q=1024, k=1024, h=8, d=64, bias=False),
}


def make_passes(shape: Shape, attention: str, precision: Precision, *contenders: str) -> dict[str, Pass]:
    """A forward and backward pass of each variant (eager, compiled, fused), on separate leaves with the same values."""
    normalisation, value_network = ATTENTIONS[attention]
    options = AttentionOptions(normalisation, value_network, causal=shape.causal)
    compiled = torch.compile(definition.attend, dynamic=False)
    functions: dict[str, Callable[..., Any]] = {
        "eager": lambda q, k, v, bias: definition.attend(q, k, v, options._replace(bias=bias))[0],
        "compiled": lambda q, k, v, bias: compiled(q, k, v, options._replace(bias=bias))[0],
        "fused": lambda q, k, v, bias: cpu.attend(q, k, v, options._replace(bias=bias)),
    }
    torch.manual_seed(0)
    qkv = torch.randn(shape.b, shape.k, 3 * shape.h * shape.d).to(TYPES[precision])
    bias = torch.randn(shape.h, shape.q, shape.k) if shape.bias else None
    grad_out = torch.randn(shape.b, shape.q, shape.h, shape.d).to(qkv.dtype)
    return {name: make_pass(functions[name], shape, qkv, bias, grad_out) for name in contenders}


def make_pass(attend: Callable[..., Any], shape: Shape, qkv: Tensor, bias: Tensor | None, grad_out: Tensor) -> Pass:
    leaves = [qkv.clone().requires_grad_()] + ([] if bias is None else [bias.clone().requires_grad_()])

    def run() -> None:
        q, k, v = (part.unflatten(-1, (shape.h, -1)) for part in leaves[0].chunk(3, dim=-1))
        out = attend(q[:, -shape.q :], k, v, bias=leaves[1] if shape.bias else None)
        torch.autograd.grad(out, leaves, grad_out)

    return run


def benchmark_attention(options: BenchOptions) -> list[Json]:
    """A row for every shape, attention and precision (the long shape in float32 only)."""
    rows = []
    for name, attention, precision in product(SHAPES, ATTENTION_NAMES, options.precisions):
        if precision == "bf16" and name == "long":
            continue  # the definition takes minutes on CPUs without bf16 instructions
        options.say(f"attention: {name} {attention} {precision}")
        torch._dynamo.reset()
        passes = make_passes(SHAPES[name], attention, precision, "eager", "compiled", "fused")
        row = {"shape": name, **asdict(SHAPES[name]), "attention": attention, "precision": precision}
        row |= summarise_times(time_interleaved(passes, options.seconds, warm_up=1))
        milliseconds: Json = row["milliseconds"]
        rows.append(
            row | {f"times_{other}": milliseconds[other] / milliseconds["fused"] for other in ("compiled", "eager")}
        )
    return rows


Pass = Callable[[], object]
MIN_ROUNDS = 3


def time_interleaved(passes: Mapping[str, Pass], seconds: float, *, warm_up: int = 2) -> dict[str, list[float]]:
    """Seconds of each round of each variant; they take turns until the time is up."""
    times: dict[str, list[float]] = {name: [] for name in passes}
    for run in passes.values():
        for _ in range(warm_up):
            run()
    end = time.perf_counter() + seconds
    rounds = 0
    while time.perf_counter() < end or rounds < MIN_ROUNDS:
        for name, run in passes.items():
            start = time.perf_counter()
            run()
            times[name].append(time.perf_counter() - start)
        rounds += 1
    return times


def take_medians(times: Mapping[str, list[float]]) -> dict[str, float]:
    return {name: statistics.median(values) for name, values in times.items()}


PEAK_REPEATS = 1 << 18
"""Of the multiply-adds of the peak: a millisecond or two."""


def measure_peak(precision: str = "float32") -> float:
    """GFLOP/s of multiply-adds in registers on all threads; 0 without instructions for them."""
    run = partial(cpu.run_multiply_adds, PEAK_REPEATS, bf16=precision == "bf16")
    return 2 * run() / min(time_interleaved({"peak": run}, 0.2)["peak"]) / 1e9


def name_cpu() -> str:
    """Model of the CPU, and the widest vector instructions that torch uses on it."""
    fields = read_cpu()
    family = f" (family {fields['cpu family']}, model {fields.get('model', '?')})" if "cpu family" in fields else ""
    return f"{name_processor()}{family}, {torch.backends.cpu.get_cpu_capability()}"


def describe_machine() -> Json:
    return {
        "cpu": name_cpu(),
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
        "peak_gflops": {precision: measure_peak(precision) for precision in TYPES},
    }
