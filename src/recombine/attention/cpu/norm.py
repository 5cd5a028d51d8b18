"""The residual sum and the LayerNorm behind it on CPUs, in one pass of C (`norm.c`), forward and backward.

torch's own way takes one pass for the sum and one for the norm, and three to go back: the norm, its parameters, and the sum
of the two gradients of a residual stream that is both normalised and carried on. The numbers are the same up to rounding.
"""

from __future__ import annotations

import ctypes
from functools import cache
from pathlib import Path

import torch
from jaxtyping import Float
from torch import Tensor

from recombine.foundation.native import open_kernel

DTYPES = (torch.float32, torch.bfloat16)


class _Problem(ctypes.Structure):
    """`problem` of norm.c."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("residual", "update", "total", "normed")),
        *((name, ctypes.c_void_p) for name in ("grad_total", "grad_normed", "grad")),
        *((name, ctypes.c_void_p) for name in ("gain", "shift", "statistics", "grad_gain", "grad_shift")),
        ("epsilon", ctypes.c_double),
        *((name, ctypes.c_int64) for name in ("rows", "width", "bf16", "threads")),
    )


@cache
def open_library() -> ctypes.CDLL | str:
    """The compiled kernel, or why there is none, in one line."""
    functions = ("recombine_norm_forward", "recombine_norm_backward")
    return open_kernel(Path(__file__).with_suffix(".c"), {name: [ctypes.POINTER(_Problem)] for name in functions})


def supports(residual: Tensor, update: Tensor | None, gain: Tensor, shift: Tensor) -> bool:
    """Whether the kernel takes these, and there is one."""
    return (
        residual.device.type == "cpu"
        and residual.numel() > 0
        and residual.dtype in DTYPES
        and (update is None or (update.dtype, update.device) == (residual.dtype, residual.device))
        and all(each.dtype == torch.float32 and each.device.type == "cpu" for each in (gain, shift))
        and not isinstance(open_library(), str)
    )


def add_norm(
    residual: Float[Tensor, "*batch width"],
    update: Float[Tensor, "*batch width"] | None,
    gain: Float[Tensor, " width"],
    shift: Float[Tensor, " width"],
    epsilon: float,
) -> tuple[Float[Tensor, "*batch width"], Float[Tensor, "*batch width"]]:
    """`residual + update`, and its LayerNorm, where `supports` says so."""
    return _AddNorm.apply(residual, update, gain, shift, epsilon)


class _AddNorm(torch.autograd.Function):
    @staticmethod
    def forward(ctx, residual, update, gain, shift, epsilon):
        ctx.set_materialize_grads(False)
        ctx.epsilon, ctx.has_update = epsilon, update is not None
        residual, gain, shift = residual.contiguous(), gain.contiguous(), shift.contiguous()
        total = residual if update is None else torch.empty_like(residual)
        normed = torch.empty_like(residual)
        statistics = gain.new_empty(residual.numel() // gain.numel(), 2)
        tensors = {"residual": residual, "normed": normed, "shift": shift}
        if update is not None:
            tensors["update"] = update.contiguous()
        _run("recombine_norm_forward", total, gain, statistics, epsilon=epsilon, **tensors)
        ctx.save_for_backward(total, gain, shift, statistics)
        return total, normed

    @staticmethod
    def backward(ctx, grad_total, grad_normed):
        total, gain, shift, statistics = ctx.saved_tensors
        if torch.is_grad_enabled():  # a second derivative is wanted
            grad, *grads = _differentiate(total, gain, ctx.epsilon, grad_total, grad_normed)
        else:
            grad, *grads = torch.empty_like(total), torch.empty_like(gain), torch.empty_like(shift)
            tensors = dict(zip(("grad", "grad_gain", "grad_shift"), (grad, *grads), strict=True))
            for name, given in (("grad_total", grad_total), ("grad_normed", grad_normed)):
                if given is not None:
                    tensors[name] = given.contiguous()
            _run("recombine_norm_backward", total, gain, statistics, **tensors)
        return grad, grad if ctx.has_update else None, *grads, None


def _differentiate(total, gain, epsilon, grad_total, grad_normed):
    """The equations of norm.c in operations that torch can differentiate again."""
    g = torch.zeros_like(total) if grad_normed is None else grad_normed.to(gain.dtype)
    centred = total.to(gain.dtype) - total.to(gain.dtype).mean(dim=-1, keepdim=True)
    scale = (centred.square().mean(dim=-1, keepdim=True) + epsilon).rsqrt()
    x, a = centred * scale, g * gain
    grad = (a - a.mean(dim=-1, keepdim=True) - x * (a * x).mean(dim=-1, keepdim=True)) * scale
    grad = (grad if grad_total is None else grad + grad_total).to(total.dtype)
    return grad, (g * x).flatten(0, -2).sum(dim=0), g.flatten(0, -2).sum(dim=0)


def _run(
    function: str, total: Tensor, gain: Tensor, statistics: Tensor, *, epsilon: float = 0.0, **more: Tensor
) -> None:
    tensors = {"total": total, "gain": gain, "statistics": statistics, **more}
    problem = _Problem(epsilon=epsilon, **{name: tensor.data_ptr() for name, tensor in tensors.items()})
    problem.width = gain.numel()
    problem.rows = total.numel() // problem.width
    problem.bf16, problem.threads = total.dtype == torch.bfloat16, torch.get_num_threads()
    library = open_library()
    assert not isinstance(library, str)
    if getattr(library, function)(ctypes.byref(problem)) != 0:
        raise MemoryError("not enough memory for the gradients of a norm")
