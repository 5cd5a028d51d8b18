"""Which processor this is, as far as the rules that choose a kernel depend on it.

The rules are taken from measurements (`benchmarks/kernel_choice.py`, `benchmarks/dense_products.py`). They depend on shapes
and on the kind of processor only, never on a timing at run time, so that a resumed run takes the same path.
"""

from __future__ import annotations

import platform
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

import torch

Function = TypeVar("Function", bound=Callable[..., Any])


def constant_in_graphs(function: Function) -> Function:
    """What `torch.compiler.assume_constant_result` does, without the import of torch's compiler, which takes a second."""
    function._dynamo_marked_constant = True  # type: ignore[attr-defined]
    return function


@constant_in_graphs
def is_amd_with_avx512() -> bool:
    """AMD's Zen 4 and later: torch's default library of products, MKL, is not at its best there."""
    return look_up()


@cache
def look_up() -> bool:
    """The same, outside of what a compiler traces."""
    if torch.backends.cpu.get_cpu_capability() != "AVX512":
        return False
    try:
        return "AuthenticAMD" in Path("/proc/cpuinfo").read_text()
    except OSError:
        return "AuthenticAMD" in platform.processor()
