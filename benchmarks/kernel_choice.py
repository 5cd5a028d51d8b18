"""Where the dispatcher of `recombine.attention.dispatch` should leave the fused kernel: measures what its rules were taken from.

    python benchmarks/kernel_choice.py [--attentions softmax linear] [--lengths N ...] [--widths N ...] [--threads N]
        [--seconds S]

For each length and head width, forward and backward of one layer without bias: how many times as fast as the fused kernel
the alternative is (torch's `scaled_dot_product_attention`, or linear attention in linear time), beside what the rule says.
Contenders take turns. With one thread the time is that of the processor, so that other programs disturb
less. To measure the rule for narrower vectors on a machine with wide ones, set ATEN_CPU_CAPABILITY=avx2 and
MKL_ENABLE_INSTRUCTIONS=AVX2.
"""

from __future__ import annotations

import argparse
import time
from functools import partial
from itertools import product

import torch

from recombine.attention import dispatch, linear
from recombine.attention.cpu import kernels as cpu
from recombine.attention.definition import AttentionOptions
from recombine.cli import bench

LENGTHS = (32, 64, 128, 256, 512, 1024, 2048, 4096)
HEADS = ((16, 4), (8, 16), (8, 32), (8, 64), (4, 128))
TOKENS = 2048
ALTERNATIVES = {
    "softmax": (dispatch.attend_sdpa, dispatch.sdpa_is_faster),
    "linear": (linear.attend, dispatch.linear_is_faster),
}


def make_pass(attend, length: int, heads: int, width: int):
    torch.manual_seed(0)
    batch = max(1, TOKENS // length)
    qkv = torch.randn(batch, length, 3 * heads * width, requires_grad=True)
    grad_out = torch.randn(batch, length, heads, width)

    def run() -> None:
        q, k, v = (part.unflatten(-1, (heads, width)) for part in qkv.chunk(3, dim=-1))
        torch.autograd.grad(attend(q, k, v), qkv, grad_out)

    return run


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--attentions", nargs="+", choices=list(ALTERNATIVES), default=list(ALTERNATIVES))
    parser.add_argument("--lengths", nargs="+", type=int, default=LENGTHS)
    parser.add_argument("--widths", nargs="+", type=int, default=[width for _, width in HEADS], help="of heads")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--seconds", type=float, default=1.0)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    if options.threads == 1:
        time.perf_counter = time.thread_time
    for attention, causal, (heads, width) in product(options.attentions, (True, False), HEADS):
        if width not in options.widths:
            continue
        other, is_faster = ALTERNATIVES[attention]
        call = AttentionOptions("softmax" if attention == "softmax" else "none", "linear", causal=causal)
        for length in options.lengths:
            passes = {
                "fused": partial(cpu.attend, options=call),
                "other": partial(other, options=call),
            }
            passes = {name: make_pass(attend, length, heads, width) for name, attend in passes.items()}
            times = bench.take_medians(bench.time_interleaved(passes, options.seconds))
            q = torch.empty(max(1, TOKENS // length), length, heads, width)
            rule = "other" if is_faster(q, q, causal=causal) else "fused"
            ratio = times["fused"] / times["other"]
            print(
                f"{attention:8} causal={causal!s:5} {heads:2} heads of {width:3} {length:5} tokens: "
                f"{1e3 * times['fused']:8.2f} ms, {ratio:5.2f} times as fast; rule: {rule}"
                + ("" if (ratio > 1) == (rule == "other") else f"  (costs {max(ratio, 1 / ratio):.2f})"),
                flush=True,
            )


if __name__ == "__main__":
    main()
