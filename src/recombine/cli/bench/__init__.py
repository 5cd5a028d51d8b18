"""recombine bench [PART ...]: how fast this machine trains, compared with the plain definition under torch.compile.

Speed on this machine: whole training steps, attention alone and against
length, dropout, growth with size, memory, generators (`recombine bench`).

The variants take turns in one process, so that other load on the machine affects all of them. Times are medians over the
rounds. The meaningful numbers are ratios to the plain definition under `torch.compile`, measured in the same rounds.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, get_args

import torch
import tyro
from rich import box
from rich.table import Table

from recombine.attention.cpu import kernels as cpu
from recombine.cli.bench import steps
from recombine.cli.bench.attention import benchmark_attention
from recombine.cli.bench.chart import write_charts
from recombine.cli.bench.generators import benchmark_generators
from recombine.cli.bench.growth import benchmark_growth, benchmark_memory
from recombine.cli.bench.lengths import benchmark_dropout, benchmark_lengths
from recombine.cli.bench.machine import describe_machine
from recombine.cli.bench.steps import benchmark_steps
from recombine.cli.main import parse
from recombine.cli.output import Output
from recombine.foundation.errors import InputError, check_choice, check_positive
from recombine.foundation.files import read_file, write_whole
from recombine.tasks.base import SCALES
from recombine.training.config import Precision
from recombine.training.schema import Json

PARTS: dict[str, Callable[..., list[Json]]] = {
    "steps": benchmark_steps,
    "attention": benchmark_attention,
    "lengths": benchmark_lengths,
    "dropout": benchmark_dropout,
    "growth": benchmark_growth,
    "memory": benchmark_memory,
    "generators": benchmark_generators,
}

EXAMPLES = (
    "recombine bench steps --precisions float32",
    "recombine bench attention memory --seconds 1.5 --charts charts",
)


@dataclass(frozen=True, kw_only=True)
class BenchOptions(Output):
    """Measure how fast this machine trains, compared with the plain definition under torch.compile."""

    parts: Annotated[tyro.conf.Positional[tuple[str, ...]], tyro.conf.arg(metavar="[PART ...]")] = ()
    """Parts to measure: steps, attention, lengths, dropout, growth, memory, generators (default: all)."""
    precisions: Annotated[tuple[str, ...], tyro.conf.arg(metavar="PRECISION ...")] = ("float32", "bf16")
    """Precisions for steps and attention: float32, bf16. On CPUs without bf16 instructions, bf16 takes many minutes."""
    workloads: Annotated[tuple[str, ...], tyro.conf.arg(metavar="WORKLOAD ...")] = ()
    """Workloads for steps: fuzzy_logic, sraven, language (default: all)."""
    scales: Annotated[tuple[str, ...], tyro.conf.arg(metavar="SCALE ...")] = SCALES
    """Scales for generators: tiny, small, paper."""
    seconds: float = 3.0
    """Seconds per case. More seconds give more rounds."""
    threads: int | None = None
    """Number of threads for torch and the kernels (default: torch's own)."""
    out: Annotated[Path | None, tyro.conf.arg(metavar="FILE")] = None
    """Write the results to this JSON file. Parts that are not measured now keep their old results in the file."""
    charts: Annotated[Path | None, tyro.conf.arg(metavar="DIR")] = None
    """Write charts to this folder."""


def run(argv: list[str]) -> None:
    options = parse(BenchOptions, argv, prog="bench")
    for part in options.parts:
        check_choice("part", part, PARTS)
    for precision in options.precisions:
        check_choice("precision", precision, get_args(Precision))
    for workload in options.workloads:
        check_choice("workload", workload, steps.WORKLOADS)
    for scale in options.scales:
        check_choice("scale", scale, SCALES)
    earlier = {} if options.out is None else read_earlier(options.out)
    if options.seconds <= 0:
        raise InputError(f"seconds is {options.seconds}: expected a positive number")
    if options.threads is not None:
        check_positive(threads=options.threads)
        torch.set_num_threads(options.threads)
    if (reason := cpu.why_unavailable()) is not None:
        raise InputError(f"there is no fused kernel to measure: {reason}")
    say = (lambda _: None) if options.json else options.say
    result: Json = {"machine": describe_machine()}
    for part in options.parts or PARTS:
        choice = {"precisions": options.precisions} if part in ("steps", "attention") else {}
        choice |= {"workloads": options.workloads} if part == "steps" else {}
        choice |= {"scales": options.scales} if part == "generators" else {}
        result[part] = PARTS[part](options.seconds, say, **choice)
    if options.out is not None:
        write_whole(options.out, (json.dumps({**earlier, **result}, indent=1) + "\n").encode())
    charts = [] if options.charts is None else write_charts(result, options.charts)
    options.show(result, *tables(result), *(f"chart: {path}" for path in charts))


def read_earlier(path: Path) -> Json:
    """What the file holds already; read before anything is measured, so that no time is lost if it is something else."""
    try:
        value = json.loads(read_file(path)) if path.exists() else {}
    except (OSError, ValueError, RecursionError) as error:
        raise InputError(f"{path} cannot be read ({error}): expected results that `recombine bench` wrote") from None
    if not isinstance(value, dict):
        raise InputError(f"{path} holds {type(value).__name__}: expected results that `recombine bench` wrote")
    return value


def tables(result: Json) -> list[Table | str]:
    machine = result["machine"]
    shown: list[Table | str] = [
        f"{machine['cpu']}; {machine['threads']} threads; torch {machine['torch']}; "
        f"matrix product {machine['matmul_gflops']:.0f} GFLOP/s"
    ]
    for part, make in TABLES.items():
        if part in result:
            shown.append(make(result))
    return shown


def step_table(result: Json) -> Table:
    table = _table(
        "training steps per second, medians of interleaved rounds",
        "plain: the definition under torch.compile · ours: as in training · compiled: ours under torch.compile\n"
        "limit: the matrix products of the dense layers alone",
        ("workload", "attention", "type"),
        ("plain", "ours", "compiled", "× plain", "of limit"),
    )
    for row in result["steps"]:
        rates = (f"{1e3 / row['milliseconds'][name]:.1f}" for name in ("plain", "recombine", "compiled"))
        table.add_row(
            row["workload"],
            row["attention"],
            row["precision"],
            *rates,
            f"{row['times_plain']:.2f}",
            f"{row['share_of_limit']:.0%}",
        )
    return table


def attention_table(result: Json) -> Table:
    table = _table(
        "attention of one layer, forward and backward, milliseconds",
        "memory: peak of the compiled definition divided by that of the kernel, where it is large enough to measure",
        ("shape", "attention", "type"),
        ("eager", "compiled", "fused", "× comp.", "GFLOP/s", "memory"),
    )
    for row in result["attention"]:
        memory = row["peak_bytes"]
        is_large = (memory["fused"] or 0) > 1 << 23  # below that the allocator's granularity dominates
        table.add_row(
            row["shape"],
            row["attention"],
            row["precision"],
            *(f"{row['milliseconds'][name]:.2f}" for name in ("eager", "compiled", "fused")),
            f"{row['times_compiled']:.1f}",
            f"{row['gflops']:.0f}",
            f"{memory['compiled'] / memory['fused']:.0f}×" if is_large else "",
        )
    return table


def length_table(result: Json) -> Table:
    table = _table(
        "attention against length, forward and backward, causal, 8 heads of 64, milliseconds",
        "torch: its scaled_dot_product_attention · × torch: time divided by that of torch's softmax",
        ("tokens",),
        ("torch", "softmax", "linear", "hyla", "softmax × torch", "linear × torch", "hyla × torch"),
    )
    for row in result["lengths"]:
        times, ratios = row["milliseconds"], row.get("times_torch", {})
        table.add_row(
            str(row["length"]),
            *(f"{times[name]:.1f}" if name in times else "" for name in ("torch", "softmax", "linear", "hyla")),
            *(f"{ratios[name]:.2f}" if name in ratios else "" for name in ("softmax", "linear", "hyla")),
        )
    return table


def dropout_table(result: Json) -> Table:
    table = _table(
        "a training step on SRAVEN with dropout of codes, milliseconds",
        "×: time divided by that without dropout",
        ("attention",),
        ("none", "pairs", "elements", "× pairs", "× elements"),
    )
    for row in result["dropout"]:
        times = (f"{row['milliseconds'][form]:.1f}" for form in ("none", "pairs", "elements"))
        ratios = (f"{row['times_none'][form]:.2f}" for form in ("pairs", "elements"))
        table.add_row(row["attention"], *times, *ratios)
    return table


def growth_table(result: Json) -> Table:
    table = _table(
        "growth, milliseconds",
        "length: the batch shrinks so that the number of tokens stays about the same · depth: a whole step on SRAVEN",
        ("axis", "size"),
        ("softmax", "linear", "hyla"),
    )
    cells: dict[tuple[str, int], dict[str, float]] = {}
    for row in result["growth"]:
        cells.setdefault((row["axis"], row["size"]), {})[row["attention"]] = row["milliseconds"]
    for (axis, size), times in cells.items():
        table.add_row(axis, str(size), *(f"{times[name]:.2f}" for name in ("softmax", "linear", "hyla")))
    return table


def memory_table(result: Json) -> Table:
    table = _table(
        "HYLA against length, batch 1, 8 heads of 64: peak MiB in addition to the inputs, and milliseconds",
        None,
        ("tokens",),
        ("plain MiB", "fused MiB", "plain ms", "fused ms"),
    )
    for row in result["memory"]:
        memory, times = row["peak_bytes"], row["milliseconds"]
        table.add_row(
            str(row["length"]),
            *(f"{memory[name] / 2**20:.0f}" if memory.get(name) else "" for name in ("eager", "fused")),
            *(f"{times[name]:.1f}" if name in times else "" for name in ("eager", "fused")),
        )
    return table


def generator_table(result: Json) -> Table:
    table = _table(
        "batches and oracles",
        "batch: as in training, made together with the other batches of its group\n"
        "step: of the task's default model, batch included",
        ("task", "scale"),
        ("batch ms", "step ms", "of step", "instances/s", "solved/s"),
    )
    for row in result["generators"]:
        table.add_row(
            row["task"],
            row["scale"],
            f"{row['milliseconds']['batch']:.2f}",
            f"{row['milliseconds']['step']:.1f}",
            f"{row['share_of_step']:.1%}",
            f"{row['instances_per_second']:,.0f}",
            f"{row['solved_per_second']:,.0f}",
        )
    return table


TABLES = {
    "steps": step_table,
    "attention": attention_table,
    "lengths": length_table,
    "dropout": dropout_table,
    "growth": growth_table,
    "memory": memory_table,
    "generators": generator_table,
}


def _table(title: str, caption: str | None, words: tuple[str, ...], numbers: tuple[str, ...]) -> Table:
    table = Table(title=title, title_justify="left", caption=caption, caption_justify="left", box=box.SIMPLE_HEAD)
    for name in words:
        table.add_column(name, no_wrap=True)
    for name in numbers:
        table.add_column(name, justify="right", no_wrap=True)
    return table
