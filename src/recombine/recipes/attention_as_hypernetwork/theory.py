"""What the paper derives or counts, computed: attention as a hypernetwork (section 2), and puzzles (appendix B, table A2)."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import nn

from recombine.layers import hypernetwork_view
from recombine.models.constructed_network import build_modular_attention
from recombine.recipes.calculation import Calculation, Computes, log10_of
from recombine.tasks.sraven.ambiguity import TABLE_A2, estimate_ambiguity
from recombine.tasks.sraven.counts import count_tasks, count_tasks_as_printed, count_tasks_up_to_renaming

NUM_FEATURES, NUM_TOKENS, NUM_HEADS, NUM_ROWS = 32, 12, 8, 4
EXACT = -10.0  # log10 of a difference that is rounding
FEW = 0.005  # of the puzzles: less than half a percent in the paper
FEATURES, VALUES = 4, 8  # of SRAVEN in the paper
NEAR = 2  # standard errors


class HypernetworkTheory(Calculation):
    """Random attention layers next to the matrices that their codes generate."""

    name = "hypernetwork-theory"
    question = "Is multi-head attention a hypernetwork whose code has one entry per head?"
    claims = (
        Computes(
            text="multi-head attention is a linear hypernetwork (log10 of the largest difference of outputs)",
            source="section 2, equations 2 to 5",
            quantity="log10_difference",
            high=EXACT,
        ),
        *(
            Computes(
                text="generated matrices span as many dimensions as there are heads (dimensions per head)",
                where=f"{heads} head{'s' * (heads > 1)}",
                source="section 2",
                quantity=f"dimensions_{heads}",
                low=1.0,
                high=1.0,
            )
            for heads in (1, NUM_HEADS)
        ),
        Computes(
            text="one head per module computes any mixture of linear modules (log10 of the largest difference)",
            source="our construction",
            quantity="log10_mixture",
            high=EXACT,
            ours=True,
        ),
    )

    @torch.no_grad()
    def compute(self, seed: int) -> Mapping[str, float]:
        torch.manual_seed(seed)
        x = torch.randn(NUM_ROWS, NUM_TOKENS, NUM_FEATURES, dtype=torch.float64)
        differences, dimensions = {}, {}
        for heads in (1, NUM_HEADS):
            layer = nn.MultiheadAttention(NUM_FEATURES, heads, batch_first=True).double()
            view = hypernetwork_view(layer, x)
            generated = torch.einsum("bqkij,bkj->bqi", view.value_matrices, x) + view.value_biases.sum(dim=2)
            differences[heads] = (generated + layer.out_proj.bias - layer(x, x, x)[0]).abs().max().item()
            values = torch.linalg.svdvals(view.value_matrices.flatten(0, 2).flatten(1))
            dimensions[heads] = int((values > 1e-9 * values[0]).sum())
        return {
            "log10_difference": log10_of(max(differences.values())),
            **{f"dimensions_{heads}": count / heads for heads, count in dimensions.items()},
            "log10_mixture": log10_of(compare_mixture()),
        }


def compare_mixture(num_modules: int = 6, size: int = 8) -> float:
    """The largest difference between a mixture of linear modules and the attention layer that is built for it."""
    theta = torch.randn(num_modules, size, size, dtype=torch.float64)
    z, x = torch.rand(NUM_ROWS, num_modules, dtype=torch.float64), torch.randn(NUM_ROWS, size, dtype=torch.float64)
    tokens = torch.zeros(NUM_ROWS, 2, num_modules + size + 1, dtype=torch.float64)
    tokens[:, 0, :num_modules], tokens[:, 1, num_modules:-1], tokens[:, 1, -1] = z, x, 1
    output = build_modular_attention(theta)(tokens)[0][:, 0, :size]
    return float((output - torch.einsum("bm,bi,mij->bj", z, x, theta)).abs().max())


class PuzzleCounts(Calculation):
    """SRAVEN puzzles solved exactly, and counted."""

    name = "sraven-counts"
    question = "How many Raven matrices are ambiguous, and how many tasks are there?"
    claims = (
        Computes(
            text="few puzzles have another answer that fits (share of puzzles)",
            where="it differs in every feature, as counted in table A2",
            source="appendix B, table A2",
            quantity="ambiguous_everywhere",
            high=FEW,
            published=TABLE_A2[FEATURES, VALUES].value,
        ),
        Computes(
            text="few puzzles have another answer that fits (share of puzzles)",
            where="it differs in any feature, as worded in the text",
            source="appendix B",
            quantity="ambiguous",
            high=FEW,
            published=TABLE_A2[FEATURES, VALUES].value,
        ),
        *(
            Computes(
                text="the share of puzzles with an answer that differs in every feature is that of table A2",
                where=f"{values} values",
                source="table A2",
                quantity=f"ambiguous_everywhere_{values}",
                low=round(printed.value - NEAR * printed.standard_error, 4),
                high=round(printed.value + NEAR * printed.standard_error, 4),
                published=printed.value,
            )
            for (_, values), printed in TABLE_A2.items()
        ),
        *(
            Computes(
                text="the printed formula counts the tasks (our count divided by it)",
                where=where,
                source="appendix B, figure A9",
                quantity=quantity,
                low=1.0,
                high=1.0,
            )
            for where, quantity in (
                ("a rule per position and a continuation per column", "tasks"),
                ("the same, positions renamed in all columns alike count once", "tasks_up_to_renaming"),
            )
        ),
    )

    def compute(self, seed: int) -> Mapping[str, float]:
        found = {
            values: estimate_ambiguity(num_values=values, num_features=features, seed=seed)
            for features, values in TABLE_A2
        }
        printed = count_tasks_as_printed(FEATURES)
        return {
            "ambiguous": found[VALUES].ambiguous.value,
            "ambiguous_everywhere": found[VALUES].ambiguous_everywhere.value,
            **{f"ambiguous_everywhere_{values}": each.ambiguous_everywhere.value for values, each in found.items()},
            "tasks": count_tasks(FEATURES) / printed,
            "tasks_up_to_renaming": count_tasks_up_to_renaming(FEATURES) / printed,
        }
