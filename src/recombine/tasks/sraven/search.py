"""The search of `solver`: count the hypotheses that fit a puzzle, without listing them.

A *chain* is one position in each column and a rule. First the chains that fit the visible panels are listed, out of
8 M^G: distribute by set membership, every other rule by comparing the last column with the value deduced from the others.
Then hypotheses grow by one chain per position of the first column. Those that use a position twice, or rules that the
prior excludes, are dropped. Those that have become indistinguishable (same positions used, same multiset so far, same
answer so far) are counted together. This replaces (M!)^(G-1) 8^M hypotheses by a handful per puzzle, and bounds the work
on puzzles that almost any hypothesis fits, such as all panels equal.

All steps are tensor operations over all puzzles at once, on the device of the puzzles.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from recombine.tasks.sraven.rules import DISTRIBUTE, RULES, STEPS, deduce_last

MAX_FRONTIER = 1 << 20  # maximum number of partial hypotheses extended at once, unless a single puzzle needs more


@dataclass(frozen=True, eq=False)
class Hypotheses:
    """Hypotheses about the first few positions of the first column, identical ones counted together; ordered by puzzle."""

    instance: Int[Tensor, " row"]
    used: Int[Tensor, " row"]  # one bit for each (column after the first, position)
    multiset: Int[Tensor, " row"]  # number of the multiset among those of its size
    answer: Int[Tensor, " row"]  # one number, see `place_values`
    count: Float[Tensor, " row"]  # whole numbers, in float64 so that they cannot overflow

    def select(self, rows: Tensor | slice) -> Hypotheses:
        return Hypotheses(*(getattr(self, field.name)[rows] for field in fields(self)))


@dataclass(frozen=True, eq=False)
class Chains:
    """Chains that fit, ordered by puzzle and first position; `start` and `count` find the chains of such a pair."""

    rule: Int[Tensor, " chain"]
    used: Int[Tensor, " chain"]
    answer: Int[Tensor, " chain"]
    start: Int[Tensor, "batch feature"]
    count: Int[Tensor, "batch feature"]


def search(
    grids: Int[Tensor, "batch row column feature"],
    num_values: int,
    transitions: Sequence[Int[Tensor, "_ _"]],
    permuted: bool,
) -> Hypotheses:
    """Count the hypotheses that fit, for each puzzle, answer and multiset of rules.

    `transitions[m][i, r]` is the number of the multiset that results from adding rule r to multiset i of m rules, or -1 if
    excluded.
    """
    chains = find_chains(grids, num_values, permuted)
    instance = torch.arange(len(grids), device=grids.device)
    zeros = torch.zeros_like(instance)
    return _join(Hypotheses(instance, zeros, zeros, zeros, zeros.double() + 1), chains, transitions)


def place_values(num_features: int, num_values: int, device: torch.device) -> Int[Tensor, " feature"]:
    """The factors that turn an answer into one number, in the lexicographic order of the answers."""
    return torch.tensor([num_values ** (num_features - 1 - feature) for feature in range(num_features)], device=device)


def find_chains(grids: Int[Tensor, "batch row column feature"], num_values: int, permuted: bool) -> Chains:
    """List the chains that fit. A chain without its last column is called a prefix."""
    batch, grid_size, _, num_features = grids.shape
    prefixes = _list_prefixes(num_features, grid_size - 1, permuted).to(grids.device)
    columns = [grids[:, :, column, prefixes[:, column]] for column in range(grid_size - 1)]
    last = grids[:, :-1, -1]
    deduced = deduce_last(columns, num_values)
    fits = _tabulate_fits(columns, last, deduced, num_values)
    if not permuted:
        fits &= torch.eye(num_features, dtype=torch.bool, device=grids.device)[:, :, None]

    puzzle, prefix, position, rule = fits.nonzero(as_tuple=True)
    # Under distribute the hidden value is the one in the first row that is missing from the last row.
    total = torch.stack(columns).sum(dim=0)
    lacking = total[puzzle, 0, prefix] + last[puzzle, 0, position] - total[puzzle, -1, prefix]
    value = torch.where(rule == DISTRIBUTE, lacking, deduced[rule.clamp(max=DISTRIBUTE - 1), puzzle, -1, prefix])
    shifts = num_features * torch.arange(grid_size - 1, device=grids.device)
    used_before = (1 << (prefixes[:, 1:] + shifts[:-1])).sum(dim=1)
    count = (puzzle * num_features + prefixes[prefix, 0]).bincount(minlength=batch * num_features)
    return Chains(
        rule=rule,
        used=used_before[prefix] | (1 << (position + shifts[-1])),
        answer=value * place_values(num_features, num_values, grids.device)[position],
        start=(count.cumsum(0) - count).view(batch, num_features),
        count=count.view(batch, num_features),
    )


def _list_prefixes(num_features: int, num_columns: int, permuted: bool) -> Int[Tensor, "prefix column"]:
    if not permuted:
        return torch.arange(num_features)[:, None].repeat(1, num_columns)
    return torch.tensor(list(itertools.product(range(num_features), repeat=num_columns)))


def _tabulate_fits(
    columns: Sequence[Int[Tensor, "batch row prefix"]],
    last: Int[Tensor, "batch upper feature"],
    deduced: Int[Tensor, "deducing batch row prefix"],
    num_values: int,
) -> Bool[Tensor, "batch prefix feature rule"]:
    """Which rules fit each prefix continued by each position of the last column, whose last row is hidden."""
    batch, num_prefixes, num_features = len(last), columns[0].shape[-1], last.shape[-1]
    fits = torch.zeros(batch, num_prefixes, num_features, len(RULES), dtype=torch.bool, device=last.device)
    codes = _encode(deduced[:, :, :-1], num_values)
    codes[: len(STEPS)].masked_fill_(~_find_progressions(columns, num_values), -1)
    torch.eq(
        codes.permute(1, 2, 0)[:, :, None], _encode(last, num_values)[:, None, :, None], out=fits[..., :DISTRIBUTE]
    )
    puzzle, prefix = _preselect_distribute(columns).nonzero(as_tuple=True)
    candidates = torch.stack([column[puzzle, :, prefix] for column in columns], dim=-1)
    fits[puzzle, prefix, :, DISTRIBUTE] = _fit_distribute(candidates, last[puzzle])
    return fits


def _encode(rows: Int[Tensor, "*lead row item"], num_values: int) -> Int[Tensor, "*lead item"]:
    """The values of all rows as one number."""
    code = torch.zeros_like(rows[..., 0, :])
    for row in rows.unbind(dim=-2):
        code = code * num_values + row
    return code


def _find_progressions(
    columns: Sequence[Int[Tensor, "batch row prefix"]], num_values: int
) -> Bool[Tensor, "step batch prefix"]:
    """Which prefixes advance by each of STEPS in every row."""
    batch, _, num_prefixes = columns[0].shape
    fits = torch.ones(len(STEPS), batch, num_prefixes, dtype=torch.bool, device=columns[0].device)
    steps = torch.tensor(STEPS, device=columns[0].device)[:, None, None, None]
    for index, column in enumerate(columns[1:], start=1):
        advance = (column - columns[0]) % num_values
        fits &= (advance == steps * index % num_values).all(dim=2)
    return fits


def _preselect_distribute(columns: Sequence[Int[Tensor, "batch row prefix"]]) -> Bool[Tensor, "batch prefix"]:
    """Which prefixes may follow distribute: distinct values in each row, and no more values overall than columns.

    Values are compared modulo 64 only, one bit each. This can accept a wrong prefix, but never reject a right one.
    """
    distinct = torch.ones_like(columns[0][:, 0], dtype=torch.bool)
    for one, other in itertools.combinations(columns, 2):
        distinct &= (one != other).all(dim=1)
    present = torch.zeros_like(columns[0][:, 0])
    for row in itertools.chain.from_iterable(column.unbind(dim=1) for column in columns):
        present |= 1 << (row % 64)
    for _ in range(len(columns) + 1):
        present &= present - 1  # clears the lowest bit
    return distinct & (present == 0)


def _fit_distribute(
    prefix: Int[Tensor, "candidate row column"], last: Int[Tensor, "candidate upper feature"]
) -> Bool[Tensor, "candidate feature"]:
    """Which positions of the last column complete a prefix so that all rows have the same set of distinct values."""
    upper = prefix[:, :-1, None].expand(-1, -1, last.shape[-1], -1)
    rows = torch.cat([upper, last[..., None]], dim=-1)  # (candidate, upper, feature, column)
    values = rows[:, 0]
    distinct = (upper != last[..., None]).all(dim=-1).all(dim=1)
    upper_fits = (rows[..., None] == values[:, None, :, None]).any(dim=-1).all(dim=-1).all(dim=1)
    lowest_fits = (prefix[:, -1, None, :, None] == values[:, :, None]).any(dim=-1).all(dim=-1)
    return distinct & upper_fits & lowest_fits


def _join(hypotheses: Hypotheses, chains: Chains, transitions: Sequence[Tensor], first: int = 0) -> Hypotheses:
    """Extend hypotheses by one chain per position of the first column, starting at `first`."""
    for position in range(first, len(transitions)):
        num_chains = chains.count[hypotheses.instance, position]
        size = int(num_chains.sum())
        middle = _find_middle(hypotheses.instance) if size > MAX_FRONTIER else 0
        if middle:  # process the puzzles in two halves to save memory
            halves = (hypotheses.select(slice(middle)), hypotheses.select(slice(middle, None)))
            parts = [_join(half, chains, transitions, position) for half in halves]
            return Hypotheses(*(torch.cat([getattr(p, field.name) for p in parts]) for field in fields(Hypotheses)))
        start = chains.start[hypotheses.instance, position] - (num_chains.cumsum(0) - num_chains)
        row = torch.repeat_interleave(num_chains, output_size=size)
        chain = start[row] + torch.arange(size, device=row.device)
        hypotheses = _merge(_extend(hypotheses, row, chains, chain, transitions[position]))
    return hypotheses


def _find_middle(instance: Int[Tensor, " row"]) -> int:
    """The row nearest to the middle at which a puzzle begins, or 0 if there is only one puzzle."""
    begins = (instance[1:] != instance[:-1]).nonzero()[:, 0] + 1
    return int(begins[(begins - len(instance) // 2).abs().argmin()]) if len(begins) else 0


def _extend(
    hypotheses: Hypotheses, row: Int[Tensor, " pair"], chains: Chains, chain: Int[Tensor, " pair"], transition: Tensor
) -> Hypotheses:
    """Add to hypothesis `row[n]` the chain `chain[n]`, for each n for which that is possible."""
    multiset = transition[hypotheses.multiset[row], chains.rule[chain]]
    possible = ((hypotheses.used[row] & chains.used[chain]) == 0) & (multiset >= 0)
    row, chain = row[possible], chain[possible]
    return Hypotheses(
        instance=hypotheses.instance[row],
        used=hypotheses.used[row] | chains.used[chain],
        multiset=multiset[possible],
        answer=hypotheses.answer[row] + chains.answer[chain],
        count=hypotheses.count[row],
    )


def _merge(hypotheses: Hypotheses) -> Hypotheses:
    """Merge hypotheses that no later step can distinguish, and add their counts."""
    group, rows = group_rows(hypotheses.instance, hypotheses.used, hypotheses.multiset, hypotheses.answer)
    count = torch.zeros(len(rows), dtype=torch.float64, device=rows.device).index_add_(0, group, hypotheses.count)
    return replace(hypotheses.select(rows), count=count)


def group_rows(*columns: Int[Tensor, " row"]) -> tuple[Int[Tensor, " row"], Int[Tensor, " group"]]:
    """Group equal rows of a table, in lexicographic order: the group of each row, and one row per group."""
    key = columns[0]
    for column in columns[1:]:
        key = _pair(key, column)
    ordered, order = key.sort()
    begins = torch.ones_like(ordered, dtype=torch.bool)
    begins[1:] = ordered[1:] != ordered[:-1]
    group = torch.empty_like(order)
    group[order] = begins.cumsum(0) - 1
    return group, order[begins]


def _pair(major: Int[Tensor, " row"], minor: Int[Tensor, " row"]) -> Int[Tensor, " row"]:
    """Combine two numbers into one, in the order of the pairs; numbers that are too large are replaced by their ranks."""
    if len(major) == 0:
        return major
    if (int(major.max()) + 1) * (int(minor.max()) + 1) >= 1 << 63:
        major, minor = (column.unique(return_inverse=True)[1] for column in (major, minor))
    return major * (minor.max() + 1) + minor
