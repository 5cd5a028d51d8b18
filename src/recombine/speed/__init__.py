"""Speed on this machine: whole training steps, attention alone and against
length, dropout, growth with size, memory, generators (`recombine bench`).

The variants take turns in one process, so that other load on the machine affects all of them. Times are medians over the
rounds. The meaningful numbers are ratios to the plain definition under `torch.compile`, measured in the same rounds.
"""

from collections.abc import Callable

from recombine.speed.attention import benchmark_attention
from recombine.speed.generators import benchmark_generators
from recombine.speed.growth import benchmark_growth, benchmark_memory
from recombine.speed.lengths import benchmark_dropout, benchmark_lengths
from recombine.speed.machine import describe_machine
from recombine.speed.steps import benchmark_steps
from recombine.store import Json

PARTS: dict[str, Callable[..., list[Json]]] = {
    "steps": benchmark_steps,
    "attention": benchmark_attention,
    "lengths": benchmark_lengths,
    "dropout": benchmark_dropout,
    "growth": benchmark_growth,
    "memory": benchmark_memory,
    "generators": benchmark_generators,
}

__all__ = [
    "PARTS",
    "benchmark_attention",
    "benchmark_dropout",
    "benchmark_generators",
    "benchmark_growth",
    "benchmark_lengths",
    "benchmark_memory",
    "benchmark_steps",
    "describe_machine",
]
