"""How much faster is attention than in another checkout? Forward and backward of one causal layer, by the code of both.

    git worktree add /tmp/before 6b11abb
    python benchmarks/attention_before.py /tmp/before [--lengths 1024 4096] [--rounds 5]

8 heads of 64, no bias, 4,096 tokens in all. Each checkout has a process of its own; the two take turns, and the time of a
length is the median over the rounds.
"""

import argparse
import os
import statistics
import subprocess
import sys
from pathlib import Path

ATTENTIONS = {"softmax": ("softmax", "linear"), "linear": ("none", "linear"), "HYLA": ("rms_head", "hyper_relu")}
TOKENS, HEADS, WIDTH = 4096, 8, 64
MEASURE = """
import sys, time, torch
try:
    from recombine.attention.dispatch import attend
except ImportError:  # before the rooms were folded
    from recombine.kernels import attend
for line in sys.stdin:
    normalisation, value_network, batch, length, heads, width = line.split()
    torch.manual_seed(0)
    shape = int(batch), int(length), int(heads), int(width)
    q, k, v = (torch.randn(shape, requires_grad=True) for _ in range(3))
    grad_out = torch.randn(shape)
    for _ in range(2):  # the first pass warms up
        start = time.perf_counter()
        out, _ = attend(q, k, v, normalisation=normalisation, value_network=value_network, causal=True, return_codes=False)
        torch.autograd.grad(out, (q, k, v), grad_out)
        seconds = time.perf_counter() - start
    print(seconds, flush=True)
"""


def start(checkout: Path) -> subprocess.Popen[str]:
    environment = {**os.environ, "PYTHONPATH": str(checkout.resolve() / "src")}
    command = [sys.executable, "-c", MEASURE]
    return subprocess.Popen(command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def ask(process: subprocess.Popen[str], question: str) -> float:
    """Milliseconds of one pass."""
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(question + "\n")
    process.stdin.flush()
    return 1e3 * float(process.stdout.readline())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("before", type=Path)
    parser.add_argument("--lengths", nargs="+", type=int, default=[1024, 4096])
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    checkouts = {"before": start(options.before), "now": start(Path(__file__).parents[1])}
    print(f"{'attention':10} {'tokens':>6} {'before, ms':>11} {'now, ms':>9} {'ratio':>6}")
    for attention, choices in ATTENTIONS.items():
        for length in options.lengths:
            question = " ".join(map(str, (*choices, max(1, TOKENS // length), length, HEADS, WIDTH)))
            times: dict[str, list[float]] = {name: [] for name in checkouts}
            for _ in range(options.rounds):
                for name, process in checkouts.items():
                    times[name].append(ask(process, question))
            before, now = (statistics.median(times[name]) for name in checkouts)
            print(f"{attention:10} {length:6,} {before:11.1f} {now:9.1f} {before / now:6.1f}", flush=True)


if __name__ == "__main__":
    main()
