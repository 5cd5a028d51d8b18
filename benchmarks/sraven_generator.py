"""How fast SRAVEN puzzles are generated, beside a naive implementation that makes the very same ones.

    python benchmarks/sraven_generator.py [--json] [--threads N]

The naive one computes every rule for every feature of the whole batch and keeps, with masks, what each feature needs;
it orders by sorting and encodes with one_hot. Both read the same random words; the benchmark first checks that their
batches are equal. `plain python` is the definition for one puzzle at a time. Rates are the best of a few repeats in a
row, since other work on the machine only slows; the rounds of one implementation alternate with those of the others.
"""

from __future__ import annotations

import argparse
import itertools
import json
import time
from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn.functional import one_hot

from recombine.random import Stream
from recombine.tasks.sraven.generator import ADDITION, DISTRIBUTE, STEPS, SUBTRACTION
from recombine.tasks.sraven.task import SRaven

LARGE, SMALL, PLAIN = 10_000, 128, 200
REQUIRED_RATE, REQUIRED_RATIO = 500_000, 5
G = 3


def draw(task: SRaven, split: str, index: int, batch_size: int) -> tuple[Tensor, Tensor, tuple[Tensor, ...]]:
    """The random numbers of a batch, as the generator draws them: multisets, permutations, the digits of each feature."""
    stream = Stream(task.name, task.seed, split, index, rows=range(batch_size))
    _, modules = task.draw_compositions(split, stream)
    orders = torch.tensor(list(itertools.permutations(range(task.num_features))))
    permutations = torch.stack([orders[number] for number in stream.digits([len(orders)] * (G + 1))], dim=1)
    num_sets = task.num_values * (task.num_values - 1) * (task.num_values - 2) // 6
    radices = [*[task.num_values**2] * G, num_sets, *[6] * G]
    return modules, permutations, stream.digits(radices, task.num_features)


def sample_naively(task: SRaven, split: str, index: int, batch_size: int) -> tuple[Tensor, Tensor]:
    """Inputs and targets, rule by rule."""
    modules, permutations, (*free, chosen, order_1, order_2, order_3) = draw(task, split, index, batch_size)
    num_values = task.num_values
    rules = torch.gather(modules, 1, permutations[:, 0])
    sets = torch.tensor(list(itertools.combinations(range(num_values), G)))[chosen]
    orders = torch.tensor(list(itertools.permutations(range(G))))
    rows = []
    for words, order in zip(free, (order_1, order_2, order_3), strict=True):
        first, second = words // num_values, words % num_values
        row = torch.zeros(batch_size, task.num_features, G, dtype=torch.long)
        for rule, step in enumerate(STEPS):
            made = torch.stack([(first + step * column) % num_values for column in range(G)], dim=-1)
            row = torch.where((rules == rule)[..., None], made, row)
        for rule, last in ((ADDITION, first + second), (SUBTRACTION, first - second)):
            made = torch.stack([first, second, last % num_values], dim=-1)
            row = torch.where((rules == rule)[..., None], made, row)
        made = torch.gather(sets, 2, orders[order])
        rows.append(torch.where((rules == DISTRIBUTE)[..., None], made, row))
    grids = torch.stack(rows, dim=1)  # (batch, row, latent feature, column)
    panels = []
    for row, column in itertools.product(range(G), range(G)):
        panels.append(torch.gather(grids[:, row, :, column], 1, permutations[:, 1 + column]))
    inputs = one_hot(torch.cat(panels[:-1], dim=1), num_values).float()
    empty = torch.zeros(batch_size, task.num_features, num_values)
    return torch.cat([inputs, empty], dim=1), panels[-1]


def sample_plainly(task: SRaven, split: str, index: int, batch_size: int) -> tuple[Tensor, Tensor]:
    """Inputs and targets, one value after another."""
    modules, permutations, digits = draw(task, split, index, batch_size)
    num_values, num_features = task.num_values, task.num_features
    sets, orders = list(itertools.combinations(range(num_values), G)), list(itertools.permutations(range(G)))
    inputs, targets = [], []
    for multiset, order, numbers in zip(
        modules.tolist(), permutations.tolist(), torch.stack(digits, dim=-1).tolist(), strict=True
    ):
        panels = [[[0] * num_features for _ in range(G)] for _ in range(G)]
        for feature, row in itertools.product(range(num_features), range(G)):
            rule = multiset[order[0][feature]]
            first, second = divmod(numbers[feature][row], num_values)
            if rule < len(STEPS):
                values = [(first + STEPS[rule] * column) % num_values for column in range(G)]
            elif rule == DISTRIBUTE:
                values = [sets[numbers[feature][G]][place] for place in orders[numbers[feature][G + 1 + row]]]
            else:
                values = [first, second, (first + second if rule == ADDITION else first - second) % num_values]
            for column in range(G):
                panels[row][column][order[1 + column].index(feature)] = values[column]
        *visible, answer = itertools.chain.from_iterable(panels)
        tokens = [[float(value == level) for level in range(num_values)] for panel in visible for value in panel]
        inputs.append(tokens + [[0.0] * num_values] * num_features)
        targets.append(answer)
    return torch.tensor(inputs), torch.tensor(targets)


def measure(functions: dict[str, Callable[[], object]], repeats: int) -> dict[str, float]:
    """The least seconds of each."""
    seconds = dict.fromkeys(functions, float("inf"))
    for name, _ in itertools.product([*functions, *functions], range(repeats)):
        start = time.perf_counter()
        functions[name]()
        seconds[name] = min(seconds[name], time.perf_counter() - start)
    return seconds


def main() -> None:
    parser = argparse.ArgumentParser(description="Rates of the SRAVEN generator, in instances a second.")
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of a table")
    parser.add_argument("--repeats", type=int, default=20, help="the best of this many is reported")
    parser.add_argument("--threads", type=int, default=1, help="more than one is slower on a machine with other work")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    task = SRaven()
    for sample in (sample_naively, sample_plainly):
        ours, (inputs, targets) = task.sample("ood", 7, batch_size=PLAIN), sample(task, "ood", 7, PLAIN)
        assert torch.equal(ours.inputs, inputs)
        assert torch.equal(ours.targets, targets)
    functions = {
        "recombine": lambda: task.sample("train", 0, batch_size=LARGE),
        "naive, rule by rule": lambda: sample_naively(task, "train", 0, LARGE),
        "plain python": lambda: sample_plainly(task, "train", 0, PLAIN),
        "recombine, batch of 128": lambda: task.sample("train", 0, batch_size=SMALL),
    }
    seconds = measure(functions, arguments.repeats)
    sizes = dict(zip(functions, (LARGE, LARGE, PLAIN, SMALL), strict=True))
    rates = {name: sizes[name] / seconds[name] for name in functions}
    result = {
        "benchmark": "sraven_generator",
        "num_threads": torch.get_num_threads(),
        "instances_per_second": rates,
        "required": REQUIRED_RATE,
        "times_naive": rates["recombine"] / rates["naive, rule by rule"],
        "times_plain_python": rates["recombine"] / rates["plain python"],
        "required_times_naive": REQUIRED_RATIO,
        "milliseconds_for_128": 1e3 * seconds["recombine, batch of 128"],
    }
    if arguments.json:
        print(json.dumps(result))
        return
    print(f"{task.num_features} features, {task.num_values} values, {result['num_threads']} threads; equal batches")
    for name, rate in rates.items():
        print(f"{name:<28}{rate:>12,.0f} instances/s   {1e3 * seconds[name]:8.2f} ms for {sizes[name]:,}")
    print(f"times the naive one         {result['times_naive']:>12.1f}   (required {REQUIRED_RATIO})")
    print(f"times plain python          {result['times_plain_python']:>12.1f}")


if __name__ == "__main__":
    main()
