"""The machine and how it is measured: interleaved rounds, peak resident memory, peak speed of matrix products."""

from __future__ import annotations

import ctypes
import os
import statistics
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import torch

from recombine.foundation.native import name_processor, read_cpu
from recombine.training.schema import Json

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


def measure_peak_memory(run: Pass) -> int | None:
    """Bytes by which the resident peak rises during a pass; None if the system does not report it."""
    if not os.access("/proc/self/clear_refs", os.W_OK):
        return None
    ctypes.CDLL(None).malloc_trim(0)
    Path("/proc/self/clear_refs").write_text("5")
    before = _read_status("VmRSS")
    run()
    return _read_status("VmHWM") - before


def _read_status(field: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(field)) * 1024


def measure_matmul_peak() -> float:
    """GFLOP/s of the best of a few large float32 matrix products."""
    a = torch.randn(1024, 1024)
    times = time_interleaved({"product": lambda: a @ a}, 0.5)["product"]
    return 2 * 1024**3 / min(times) / 1e9


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
        "matmul_gflops": measure_matmul_peak(),
    }
