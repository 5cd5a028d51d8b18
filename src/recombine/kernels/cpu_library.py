"""The compiled C kernel of `cpu.c`: found or built on first use, and called with tensors."""

from __future__ import annotations

import ctypes
from functools import cache
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from recombine.kernels.compiler import open_kernel
from recombine.kernels.dropout import find_scale, find_threshold

DROPOUT_FORMS = ("", "pairs", "elements")
"""In the order of the constants of cpu_plan.h."""

MANY_KEYS = 128
"""From so many on, vectors of 16 floats are used where the machine has them."""


class Choices(NamedTuple):
    """What is computed, beside the tensors."""

    normalisation: str
    value_network: str
    causal: bool
    dropout_form: str = ""
    dropout_rate: float = 0.0


class _Tensor(ctypes.Structure):
    _fields_ = (("data", ctypes.c_void_p), *((name, ctypes.c_int64) for name in ("batch", "token", "head")))


class _PairTensor(ctypes.Structure):
    _fields_ = (("data", ctypes.c_void_p), *((name, ctypes.c_int64) for name in ("batch", "head", "query", "key")))


class _Problem(ctypes.Structure):
    """`problem` of cpu_plan.h."""

    _fields_ = (
        *((name, _Tensor) for name in ("q", "k", "v", "out", "grad_out", "grad_q", "grad_k", "grad_v")),
        *((name, _PairTensor) for name in ("bias", "grad_bias")),
        ("mask", _PairTensor),
        *((name, ctypes.c_void_p) for name in ("row_shift", "row_scale")),
        *((name, ctypes.c_int64) for name in ("batch", "queries", "keys", "heads", "dim", "value_dim")),
        *((name, ctypes.c_int64) for name in ("softmax", "rms", "hyper", "relu", "causal", "bf16", "threads")),
        *((name, ctypes.c_int64) for name in ("dropout", "dropout_threshold", "dropout_key")),
        ("dropout_scale", ctypes.c_double),
    )


@cache
def open_library(source: str = "cpu.c") -> ctypes.CDLL | str:
    """The compiled kernel, or why there is none, in one line."""
    headers = ["cpu.c", *sorted(path.name for path in Path(__file__).parent.glob("cpu_*.h"))]
    functions = ("recombine_attend_forward", "recombine_attend_backward")
    return open_kernel(source, headers, {name: [ctypes.POINTER(_Problem)] for name in functions})


def allocate_outputs(q: Tensor, v: Tensor, choices: Choices) -> tuple[Tensor, Tensor]:
    """The output, and what the backward pass needs of the softmax: shift and scale of each row."""
    b, num_queries, h, _ = q.shape
    rows = (2, b, num_queries, h) if choices.normalisation.startswith("softmax") else (0,)
    return q.new_empty(b, num_queries, h, v.shape[3]), q.new_empty(rows, dtype=torch.float32)


def allocate_gradients(q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Gradients of q, k, v and, if it is given, of the bias."""
    grad_bias = q.new_empty(0, dtype=torch.float32) if bias is None else torch.empty_like(bias)
    return q.new_empty(q.shape), k.new_empty(k.shape), v.new_empty(v.shape), grad_bias


def run_forward(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    bias: Tensor | None,
    mask: Tensor | None,
    dropout_key: Tensor | None,
    choices: Choices,
) -> tuple[Tensor, Tensor]:
    """The output and the statistics of the softmax."""
    out, statistics = allocate_outputs(q, v, choices)
    q, k, v = (_with_unit_stride(tensor) for tensor in (q, k, v))
    problem = _pose(q, k, v, bias, mask, dropout_key, statistics, choices)
    problem.out = _describe(out)
    _run("recombine_attend_forward", problem)
    return out, statistics


def run_backward(
    grad_out: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    bias: Tensor | None,
    mask: Tensor | None,
    dropout_key: Tensor | None,
    out: Tensor | None,
    statistics: Tensor,
    choices: Choices,
    needs_bias_gradient: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Gradients of q, k, v and bias; `out` is needed for softmax with the linear value network."""
    grads = allocate_gradients(q, k, v, bias if needs_bias_gradient else None)
    grad_out, q, k, v = (_with_unit_stride(tensor) for tensor in (grad_out, q, k, v))
    problem = _pose(q, k, v, bias, mask, dropout_key, statistics, choices)
    problem.grad_out = _describe(grad_out)
    problem.grad_q, problem.grad_k, problem.grad_v = (_describe(grad) for grad in grads[:3])
    if out is not None:
        problem.out = _describe(out)
    if needs_bias_gradient:
        problem.grad_bias = _describe_pairs(grads[3])
    _run("recombine_attend_backward", problem)
    return grads


def _pose(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    bias: Tensor | None,
    mask: Tensor | None,
    dropout_key: Tensor | None,
    statistics: Tensor,
    choices: Choices,
) -> _Problem:
    normalisation, value_network, causal, form, rate = choices
    problem = _Problem(q=_describe(q), k=_describe(k), v=_describe(v))
    problem.batch, problem.queries, problem.heads, problem.dim = q.shape
    problem.keys, problem.value_dim = k.shape[1], v.shape[3]
    if bias is not None:
        problem.bias = _describe_pairs(bias)
    if mask is not None:
        problem.mask = _describe_pairs(mask)
    problem.softmax, problem.rms = normalisation.startswith("softmax"), normalisation.endswith("rms_head")
    if problem.softmax:
        problem.row_shift, problem.row_scale = statistics[0].data_ptr(), statistics[1].data_ptr()
    problem.hyper, problem.relu = value_network != "linear", value_network == "hyper_relu"
    problem.causal, problem.bf16, problem.threads = causal, q.dtype == torch.bfloat16, torch.get_num_threads()
    if dropout_key is not None:
        problem.dropout, problem.dropout_key = DROPOUT_FORMS.index(form), int(dropout_key)
        problem.dropout_threshold, problem.dropout_scale = find_threshold(rate), find_scale(rate)
    return problem


def _describe(tensor: Tensor) -> _Tensor:
    return _Tensor(tensor.data_ptr(), *tensor.stride()[:3])


def _describe_pairs(tensor: Tensor) -> _PairTensor:
    """A stride of 0 where there is one of something: the batch may share a bias, the heads a mask."""
    strides = (stride if size > 1 else 0 for size, stride in zip(tensor.shape[:2], tensor.stride()[:2], strict=True))
    return _PairTensor(tensor.data_ptr(), *strides, *tensor.stride()[2:])


def _with_unit_stride(tensor: Tensor) -> Tensor:
    return tensor if tensor.stride(-1) == 1 else tensor.contiguous()


def _run(function: str, problem: _Problem) -> None:
    library = open_library()
    assert not isinstance(library, str)
    if problem.keys >= MANY_KEYS and library.recombine_has_wide_vectors():
        wide = open_library("cpu_wide.c")
        library = library if isinstance(wide, str) else wide
    if getattr(library, function)(ctypes.byref(problem)) != 0:
        raise MemoryError("not enough memory for the scratch space of attention")
