"""Products of dense layers in float32 by torch's default library, by oneDNN, and by the kernel for weight gradients.

    python benchmarks/dense_products.py [--threads N] [--seconds S]

For the layers of the benchmark's three workloads: GFLOP/s of the forward product with its bias, of the gradient of the input,
and of the gradients of weight and bias. The rule of `attention/cpu/kernels.py` was decided from these numbers.
"""

from __future__ import annotations

import argparse

import torch

from recombine.attention.cpu import kernels as cpu
from recombine.cli import bench

LAYERS = {
    "language": [(256, 512, 1536), (256, 512, 512), (256, 512, 2048), (256, 2048, 512)],
    "sraven": [(4608, 256, 192), (4608, 64, 256), (4608, 256, 512), (4608, 512, 256)],
    "fuzzy_logic": [(4096, 128, 48), (4096, 128, 256), (4096, 256, 128)],
}


def make_products(rows: int, inputs: int, outputs: int) -> dict[str, bench.Pass]:
    x, weight, bias = torch.randn(rows, inputs), torch.randn(outputs, inputs), torch.randn(outputs)
    grad_out = torch.randn(rows, outputs)
    multiply = cpu.find_onednn()
    return {
        "forward, torch": lambda: torch.addmm(bias, x, weight.t()),
        "forward, oneDNN": lambda: multiply(x, weight, bias, "none", [], ""),
        "input, torch": lambda: grad_out @ weight,
        "input, oneDNN": lambda: multiply(grad_out, weight.t(), None, "none", [], ""),
        "weight, torch": lambda: (grad_out.t() @ x, grad_out.sum(dim=0)),
        "weight, oneDNN": lambda: (multiply(grad_out.t(), x.t(), None, "none", [], ""), grad_out.sum(dim=0)),
        "weight, kernel": lambda: cpu.dense_gradients(x, grad_out, needs_bias=True),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--seconds", type=float, default=1.0)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    print(bench.name_cpu())
    for workload, layers in LAYERS.items():
        for rows, inputs, outputs in layers:
            times = bench.time_interleaved(make_products(rows, inputs, outputs), options.seconds)
            rates = {name: 2e-9 * rows * inputs * outputs / t for name, t in bench.take_medians(times).items()}
            listed = "  ".join(f"{name} {rate:.0f}" for name, rate in rates.items())
            print(f"{workload:12} {rows:5} rows {inputs:4} -> {outputs:4}:  {listed}", flush=True)


if __name__ == "__main__":
    main()
