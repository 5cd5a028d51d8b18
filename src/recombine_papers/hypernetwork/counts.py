"""The paper's counts of SRAVEN tasks and puzzles (section 4.3, appendix B, table A2), counted again.

With R rules, M features, G columns and K values the paper prints

    tasks = C(R+M-1, M) ((M!)^(G-1) - M),    multisets of rules times "unique permutations".

We can derive neither factor: with one feature there are R tasks, but the formula gives 0, and a multiset does not say which
feature follows which rule, which is part of a task if permutations are. A puzzle is determined by the rule of each position
of the first column and, for each later column, by which position continues which: R^M (M!)^(G-1) tasks. If renaming
positions in all columns alike does not count as another task, the tasks are the orbits of this renaming.

The paper does not say how figure A9B counts puzzles. Here a puzzle is a task with values for all its panels, so a grid of
values counts once for each task that explains it.

A puzzle is ambiguous by the text of appendix B.2 if some answer that fits differs from the true one, by the count of table
A2 if such an answer differs in *every* feature. Both shares are estimated on puzzles that are solved exactly.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping

import torch

from recombine import SRaven, Stream
from recombine.sweeps import Published
from recombine.tasks import RULES
from recombine_papers.claims import Computes
from recombine_papers.experiment import Calculation, share_with_interval
from recombine_papers.hypernetwork.fuzzy_logic import near

FEW_PUZZLES = 0.005  # of the puzzles: less than half a percent in the paper
FEATURES, VALUES, GRID_SIZE = 4, 8, 3  # of SRAVEN in the paper
MOST_INSTANCES = 40_000_000  # that the paper trains on
NUM_SOLVED = 12_288  # puzzles per number of values, three times those of table A2
SAMPLE = f"{NUM_SOLVED:,} puzzles"
ORDERS = 2.0  # of magnitude, at least: the paper uses the plural


TABLE_A2 = {  # by the number of values: share of 4,096 puzzles of four features that is ambiguous, with its standard error
    4: Published(value=0.0642, error=0.0038, source="table A2"),
    8: Published(value=0.0032, error=0.0009, source="table A2"),
    16: Published(value=0.0005, error=0.0003, source="table A2"),
}


def count_multisets(num_features: int, num_rules: int = len(RULES)) -> int:
    """The number of compositions, which are split into trained and held-out ones."""
    return math.comb(num_rules + num_features - 1, num_features)


def count_pairings(num_features: int) -> int:
    """Number of ways in which the positions of the later columns continue those of the first."""
    return math.factorial(num_features) ** (GRID_SIZE - 1)


def count_tasks_as_printed(num_features: int) -> int:
    """The paper's formula."""
    return count_multisets(num_features) * (count_pairings(num_features) - num_features)


def count_tasks(num_features: int, num_rules: int = len(RULES)) -> int:
    """Number of choices of a rule for each position of the first column and of its continuation in each other column."""
    return num_rules**num_features * count_pairings(num_features)


def count_tasks_up_to_renaming(num_features: int, num_rules: int = len(RULES)) -> int:
    """Number of tasks if exchanging positions in all columns alike does not count as another task (Burnside's lemma).

    A renaming leaves a choice unchanged if the rules are constant on its cycles and the pairings commute with it.
    """
    total = 0
    for cycles in partition(num_features, num_features):
        num_commuting = math.prod(
            length**repeats * math.factorial(repeats) for length, repeats in Counter(cycles).items()
        )
        num_renamings = math.factorial(num_features) // num_commuting
        total += num_renamings * num_rules ** len(cycles) * num_commuting ** (GRID_SIZE - 1)
    return total // math.factorial(num_features)


def partition(total: int, largest: int) -> list[tuple[int, ...]]:
    """Every way to write a number as a sum of non-increasing numbers up to the largest."""
    if total == 0:
        return [()]
    return [(part, *rest) for part in range(min(total, largest), 0, -1) for rest in partition(total - part, part)]


def count_puzzles(num_features: int, num_values: int) -> int:
    """Number of tasks with values for all panels: the ways to fill a feature, summed over the eight rules, factorise."""
    one_free, two_free = num_values**GRID_SIZE, num_values ** (GRID_SIZE * (GRID_SIZE - 1))
    distribute = math.comb(num_values, GRID_SIZE) * math.factorial(GRID_SIZE) ** GRID_SIZE
    return (5 * one_free + 2 * two_free + distribute) ** num_features * count_pairings(num_features)


def estimate_ambiguity(num_values: int, *, num_instances: int, seed: int = 0) -> dict[str, float]:
    """Shares of puzzles with another answer that fits, one that differs in every feature, and the agnostic optimum."""
    task = SRaven(num_features=FEATURES, num_values=num_values)
    stream = Stream("sraven ambiguity", seed, rows=range(num_instances))
    multisets = torch.tensor(sorted(task.split.train + task.split.ood))
    grids = task.draw_puzzles(multisets[stream.integers(len(multisets), 1)[:, 0]], stream)["grids"]
    solution = task.solve(grids)
    shares = {
        "ambiguous": solution.ambiguous,
        "ambiguous_everywhere": solution.ambiguous_everywhere(grids[:, -1, -1]),
        "agnostic": solution.probability,
    }
    return {name: share.double().mean().item() for name, share in shares.items()}


class PuzzleCounts(Calculation):
    """SRAVEN puzzles solved exactly, and counted."""

    name = "sraven-counts"
    version = 2  # 2: one sample of 12,288 puzzles with its own interval; 1: three of 4,096
    num_seeds = 1
    question = "How many Raven matrices are ambiguous, and how many tasks are there?"
    claims = (
        *(
            Computes(
                text="few puzzles have another answer that fits (share of puzzles)",
                where=where,
                source=source,
                quantity=quantity,
                sample=SAMPLE,
                high=FEW_PUZZLES,
                published=TABLE_A2[VALUES].value,
            )
            for where, source, quantity in (
                (
                    "it differs in every feature, as counted in table A2",
                    "appendix B, table A2",
                    "ambiguous_everywhere",
                ),
                ("it differs in any feature, as worded in the text", "appendix B", "ambiguous"),
            )
        ),
        *(
            Computes(
                text="the share of puzzles with an answer that differs in every feature is that of table A2",
                where=f"{values} values",
                source="table A2",
                quantity=f"ambiguous_everywhere_{values}",
                sample=SAMPLE,
                **near(printed),
            )
            for values, printed in TABLE_A2.items()
        ),
        *(
            Computes(
                text="the printed formula counts the tasks (a count, divided by it)",
                where=where,
                source="appendix B, figure A9",
                quantity=quantity,
                low=1.0,
                high=1.0,
                exact=True,
            )
            for where, quantity in (
                (
                    "the paper's two factors, combinations of rules and permutations, without its − M",
                    "tasks_of_factors",
                ),
                ("our count: a rule per position and a continuation per column", "tasks"),
                ("our count, positions renamed in all columns alike count once", "tasks_up_to_renaming"),
            )
        ),
        Computes(
            text="there are orders of magnitude more puzzles than training instances (log10 of their ratio)",
            where="4 features, 8 values, 40 million instances; a puzzle is a task with values for all its panels",
            source="appendix B.1, figure A9B",
            quantity="log10_puzzles",
            low=ORDERS,
            exact=True,
        ),
    )

    def compute(self, seed: int) -> Mapping[str, float]:
        found = {values: estimate_ambiguity(values, num_instances=NUM_SOLVED, seed=seed) for values in TABLE_A2}
        shares = {f"ambiguous_everywhere_{values}": each["ambiguous_everywhere"] for values, each in found.items()}
        shares |= {name: found[VALUES][name] for name in ("ambiguous", "ambiguous_everywhere")}
        printed = count_tasks_as_printed(FEATURES)
        return {
            **{
                end: value
                for name, share in shares.items()
                for end, value in share_with_interval(name, share, NUM_SOLVED).items()
            },
            "tasks_of_factors": count_multisets(FEATURES) * count_pairings(FEATURES) / printed,
            "tasks": count_tasks(FEATURES) / printed,
            "tasks_up_to_renaming": count_tasks_up_to_renaming(FEATURES) / printed,
            "log10_puzzles": math.log10(count_puzzles(FEATURES, VALUES) / MOST_INSTANCES),
        }
