"""What the paper counts about SRAVEN puzzles (section 4.3, appendix B, table A2), counted."""

from __future__ import annotations

import math
from collections.abc import Mapping

from recombine.tasks import (
    TABLE_A2,
    count_multisets,
    count_puzzles,
    count_tasks,
    count_tasks_as_printed,
    count_tasks_up_to_renaming,
    estimate_ambiguity,
)
from recombine_papers.calculation import Calculation, Computes, share_with_interval
from recombine_papers.hypernetwork.fuzzy_logic import NEAR

FEW = 0.005  # of the puzzles: less than half a percent in the paper
FEATURES, VALUES, GRID_SIZE = 4, 8, 3  # of SRAVEN in the paper
MOST_INSTANCES = 40_000_000  # that the paper trains on
NUM_SOLVED = 12_288  # puzzles per number of values, three times those of table A2
SAMPLE = f"{NUM_SOLVED:,} puzzles"
ORDERS = 2.0  # of magnitude, at least: the paper uses the plural


class PuzzleCounts(Calculation):
    """SRAVEN puzzles solved exactly, and counted."""

    name = "sraven-counts"
    version = 2  # 2: one sample of 12,288 puzzles with its own interval; 1: three of 4,096
    num_seeds = 1
    question = "How many Raven matrices are ambiguous, and how many tasks are there?"
    claims = (
        Computes(
            text="few puzzles have another answer that fits (share of puzzles)",
            where="it differs in every feature, as counted in table A2",
            source="appendix B, table A2",
            quantity="ambiguous_everywhere",
            sample=SAMPLE,
            high=FEW,
            published=TABLE_A2[FEATURES, VALUES].value,
        ),
        Computes(
            text="few puzzles have another answer that fits (share of puzzles)",
            where="it differs in any feature, as worded in the text",
            source="appendix B",
            quantity="ambiguous",
            sample=SAMPLE,
            high=FEW,
            published=TABLE_A2[FEATURES, VALUES].value,
        ),
        *(
            Computes(
                text="the share of puzzles with an answer that differs in every feature is that of table A2",
                where=f"{values} values",
                source="table A2",
                quantity=f"ambiguous_everywhere_{values}",
                sample=SAMPLE,
                low=max(0.0, round(printed.value - NEAR * printed.standard_error, 4)),
                high=round(printed.value + NEAR * printed.standard_error, 4),
                published=printed.value,
            )
            for (_, values), printed in TABLE_A2.items()
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
        found = {
            values: estimate_ambiguity(num_values=values, num_features=features, num_instances=NUM_SOLVED, seed=seed)
            for features, values in TABLE_A2
        }
        shares = {f"ambiguous_everywhere_{values}": each.ambiguous_everywhere for values, each in found.items()}
        shares |= {"ambiguous": found[VALUES].ambiguous, "ambiguous_everywhere": found[VALUES].ambiguous_everywhere}
        printed = count_tasks_as_printed(FEATURES)
        return {
            **{
                end: value
                for name, share in shares.items()
                for end, value in share_with_interval(name, share.value, NUM_SOLVED).items()
            },
            "tasks_of_factors": count_multisets(FEATURES) * math.factorial(FEATURES) ** (GRID_SIZE - 1) / printed,
            "tasks": count_tasks(FEATURES) / printed,
            "tasks_up_to_renaming": count_tasks_up_to_renaming(FEATURES) / printed,
            "log10_puzzles": math.log10(count_puzzles(FEATURES, VALUES) / MOST_INSTANCES),
        }
