"""How many SRAVEN puzzles the exact solver solves in a second, beside the rates it must reach.

    python benchmarks/sraven_solver.py [--json]

Puzzles are drawn from the full prior by a sampler of its own, outside the timing. `hardest` is the batch that most
hypotheses fit: all panels equal. Each rate is the best of a few repeats, since other work on the machine only slows it.
"""

from __future__ import annotations

import argparse
import json
import time

import numpy as np
import torch

from recombine.compositions import all_multisets
from recombine.tasks.sraven.generator import ADDITION, DISTRIBUTE, RULES, STEPS, SUBTRACTION
from recombine.tasks.sraven.solver import solve

GRID_SIZE = 3
CASES = (  # features, values, puzzles, puzzles a second that are required
    (2, 8, 16384, None),
    (3, 8, 16384, None),
    (4, 4, 16384, None),
    (4, 8, 16384, 5_000),
    (4, 16, 16384, None),
    (5, 8, 4096, 100),
    (6, 8, 2048, None),
)


def sample_puzzles(num_puzzles: int, num_features: int, num_values: int, *, seed: int = 0) -> torch.Tensor:
    """Puzzles (batch, row, column, feature) with permuted features."""
    rng = np.random.default_rng(seed)
    multisets = np.array(all_multisets(len(RULES), num_features))
    rules = rng.permuted(multisets[rng.integers(len(multisets), size=num_puzzles)], axis=1)
    shape = (num_puzzles, GRID_SIZE, num_features)
    first, second = rng.integers(num_values, size=(2, *shape))
    steps = np.array([*STEPS, 0, 0, 0])[rules][:, None]
    sets = rng.random((num_puzzles, 1, num_features, num_values)).argsort(axis=-1)[..., :GRID_SIZE]
    orders = rng.permuted(np.broadcast_to(sets, (*shape, GRID_SIZE)), axis=-1)
    arithmetic = {ADDITION: (first + second) % num_values, SUBTRACTION: (first - second) % num_values}
    grids = np.stack([(first + steps * column) % num_values for column in range(GRID_SIZE)], axis=-1)
    for rule, last in arithmetic.items():
        grids = np.where((rules == rule)[:, None, :, None], np.stack([first, second, last], axis=-1), grids)
    grids = np.where((rules == DISTRIBUTE)[:, None, :, None], orders, grids)
    permutations = rng.random((num_puzzles, 1, num_features, GRID_SIZE)).argsort(axis=2)
    permuted = np.take_along_axis(grids, np.broadcast_to(permutations, grids.shape), axis=2)
    return torch.from_numpy(permuted.transpose(0, 1, 3, 2).copy())


def measure_rate(grids: torch.Tensor, num_values: int, repeats: int) -> float:
    """Puzzles a second, after a warm-up."""
    solve(grids[:64], num_values)
    seconds = []
    for _ in range(repeats):
        start = time.perf_counter()
        solve(grids, num_values)
        seconds.append(time.perf_counter() - start)
    return len(grids) / min(seconds)


def main() -> None:
    parser = argparse.ArgumentParser(description="Rates of the exact SRAVEN solver, in puzzles a second.")
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of a table")
    parser.add_argument("--repeats", type=int, default=3, help="the best of this many is reported")
    parser.add_argument("--threads", type=int, help="on a busy machine one thread is steadier, and can be faster")
    arguments = parser.parse_args()
    if arguments.threads:
        torch.set_num_threads(arguments.threads)
    results = [
        {
            "case": f"{num_features} features, {num_values} values",
            "puzzles_per_second": measure_rate(
                sample_puzzles(num_puzzles, num_features, num_values), num_values, arguments.repeats
            ),
            "required": required,
        }
        for num_features, num_values, num_puzzles, required in CASES
    ]
    hardest = measure_rate(torch.zeros(64, GRID_SIZE, GRID_SIZE, 5, dtype=torch.long), 8, arguments.repeats)
    results.append({"case": "5 features, 8 values, hardest", "puzzles_per_second": hardest, "required": None})
    if arguments.json:
        print(json.dumps({"benchmark": "sraven_solver", "num_threads": torch.get_num_threads(), "results": results}))
        return
    print(f"{'case':<32}{'puzzles/s':>12}{'required':>12}   ({torch.get_num_threads()} threads)")
    for result in results:
        print(f"{result['case']:<32}{result['puzzles_per_second']:>12,.0f}{result['required'] or '':>12}")


if __name__ == "__main__":
    main()
