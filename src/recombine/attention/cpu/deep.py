"""HYLA with a two-layer value network, fused in C (`deep.c`): `hyper_deep` with rms_head of `definition.py`.

Of the options of attention it has a bias that the batch shares; `dispatch.py` takes the definition for the others.
"""

from __future__ import annotations

import ctypes

import torch
from jaxtyping import Float
from torch import Tensor

from recombine.attention import definition
from recombine.attention.cpu import kernels
from recombine.attention.definition import AttentionOptions, differentiate_definition

MAX_VALUE_DIM = 64
POINTERS = (
    *("q", "k", "v", "bias", "weight", "out", "grad_out"),
    *("grad_q", "grad_k", "grad_v", "grad_bias", "grad_weight"),
)
SIZES = ("batch", "queries", "keys", "heads", "dim", "value_dim")
STRIDES = tuple(f"{name}_{axis}" for name in "qkv" for axis in ("batch", "token"))


class _DeepProblem(ctypes.Structure):
    """`problem` of deep.c."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in POINTERS),
        *((name, ctypes.c_int64) for name in (*SIZES, *STRIDES, "threads")),
    )


kernels.FUNCTIONS["deep.c"] = (_DeepProblem, ("recombine_deep_forward", "recombine_deep_backward"))


def supports(q: Tensor, k: Tensor, v: Tensor, options: AttentionOptions) -> bool:
    """Whether `attend` computes this, and is compiled."""
    bias, weight = options.bias, options.deep_weight
    return (
        (options.normalisation, options.value_network) == ("rms_head", "hyper_deep")
        and options.mask is None
        and options.dropout is None
        and not options.causal
        and (bias is None or bias.dim() < 4 or bias.shape[0] == 1)
        and v.shape[3] <= MAX_VALUE_DIM
        and all(
            tensor.device.type == "cpu" and tensor.dtype == torch.float32 and tensor.numel() > 0
            for tensor in (q, k, v, bias, weight)
            if tensor is not None
        )
        and not torch.compiler.is_compiling()
        and not isinstance(kernels.open_library("deep.c"), str)
    )


def attend(
    q: Float[Tensor, "b q h d"], k: Float[Tensor, "b k h d"], v: Float[Tensor, "b k h e"], options: AttentionOptions
) -> Float[Tensor, "b q h e"]:
    """What each head of each query receives."""
    bias, weight = options.bias, options.deep_weight
    assert weight is not None
    if bias is not None:
        bias = (bias[0] if bias.dim() == 4 else bias).expand(q.shape[2], q.shape[1], k.shape[1]).contiguous()
    return _Attend.apply(*(_with_heads_together(x) for x in (q, k, v)), bias, weight.contiguous())


def _with_heads_together(x: Tensor) -> Tensor:
    return x if x.stride()[2:] == (x.shape[3], 1) else x.contiguous()


def _run(function: str, q: Tensor, k: Tensor, v: Tensor, **tensors: Tensor | None) -> None:
    pointers = {name: tensor.data_ptr() for name, tensor in tensors.items() if tensor is not None}
    sizes = (q.shape[0], q.shape[1], k.shape[1], *q.shape[2:], v.shape[3])
    strides = [stride for x in (q, k, v) for stride in x.stride()[:2]]
    numbers = dict(zip((*SIZES, *STRIDES), (*sizes, *strides), strict=True))
    problem = _DeepProblem(q=q.data_ptr(), k=k.data_ptr(), v=v.data_ptr(), **pointers, **numbers)
    kernels._run("deep.c", function, problem)


class _Attend(torch.autograd.Function):
    @staticmethod
    def forward(ctx, q, k, v, bias, weight):
        ctx.save_for_backward(q, k, v, bias, weight)
        out = q.new_empty(*q.shape[:3], v.shape[3])
        _run("recombine_deep_forward", q, k, v, bias=bias, weight=weight, out=out)
        return out

    @staticmethod
    def backward(ctx, grad_out):
        inputs = q, k, v, bias, weight = ctx.saved_tensors
        if torch.is_grad_enabled():

            def define(q, k, v, bias, weight):
                options = AttentionOptions("rms_head", "hyper_deep", bias, deep_weight=weight)
                return definition.attend(q, k, v, options)[0]

            return differentiate_definition(define, inputs, grad_out)
        grads = [None if x is None else torch.empty_like(x, memory_format=torch.contiguous_format) for x in inputs]
        names = ("grad_q", "grad_k", "grad_v", "grad_bias", "grad_weight")
        tensors = dict(zip(names, grads, strict=True)) | {
            "bias": bias,
            "weight": weight,
            "grad_out": grad_out.contiguous(),
        }
        _run("recombine_deep_backward", q, k, v, **tensors)
        return tuple(grads)
