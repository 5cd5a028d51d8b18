"""Exact solver for SRAVEN: every answer that fits the visible panels, and the posterior over them.

A *chain* is one position in each column and a rule. A *hypothesis* says which chain each position of the first column
begins. It fits if every chain obeys its rule in all visible panels, and then determines the hidden panel. Column
permutations are uniform and cancel, so a fitting hypothesis with the rules rho has the weight

    w = P(multiset of rho) / (distinct arrangements of that multiset) * product over chains of likelihood(rule),

with the likelihoods of `generator`. The posterior of an answer is its share of the weight of all fitting hypotheses. The
largest posterior is the accuracy of the best possible solver on the puzzle; under a prior that is uniform over the
multisets of a split, its mean over puzzles of the split is the ceiling of the split.

Hypotheses are counted without listing them. First the chains that fit are listed, out of 8 M^G. Then hypotheses grow by
one chain per position of the first column; those that use a position twice, or rules that the prior excludes, are
dropped, and those that no later step can distinguish (same positions used, same multiset and answer so far) are counted
together. This replaces (M!)^(G-1) 8^M hypotheses by a handful per puzzle, and bounds the work on puzzles that almost any
hypothesis fits, such as all panels equal. Since w depends on the multiset alone, one search serves all priors: its counts
are exact, and the weights are applied afterwards, in float64, relative to the largest.

Reference: Schug et al., Attention as a Hypernetwork, arXiv 2406.05816, appendix B.2.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, fields
from functools import lru_cache
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from recombine.compositions import Composition, all_multisets
from recombine.foundation.errors import InputError, require
from recombine.tasks.sraven.generator import (
    DISTRIBUTE,
    RULES,
    STEPS,
    deduce_last,
    log_likelihoods,
    log_num_arrangements,
)

MAX_FRONTIER = 1 << 20  # maximum number of partial hypotheses extended at once, unless a single puzzle needs more
MAX_TABLE = 1 << 23  # maximum number of entries of the table of fits processed at once
TIE = 1e-12  # posteriors closer than this differ by rounding only and are treated as equal in the order of answers


class Hypotheses(NamedTuple):
    """Hypotheses about the first few positions of the first column, identical ones counted together; ordered by puzzle."""

    instance: Int[Tensor, " row"]
    used: Int[Tensor, " row"]  # one bit for each (column after the first, position)
    multiset: Int[Tensor, " row"]  # number of the multiset among those of its size
    answer: Int[Tensor, " row"]  # one number, see `place_values`
    num_ways: Float[Tensor, " row"]  # whole numbers, in float64 so that they cannot overflow

    def select(self, rows: Tensor | slice) -> Hypotheses:
        return Hypotheses(*(column[rows] for column in self))


class Chains(NamedTuple):
    """Chains that fit, ordered by puzzle and first position; `start` and `length` find the chains of such a pair."""

    rule: Int[Tensor, " chain"]
    used: Int[Tensor, " chain"]
    answer: Int[Tensor, " chain"]
    start: Int[Tensor, "batch feature"]
    length: Int[Tensor, "batch feature"]


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
        length=count.view(batch, num_features),
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
    wanted = _encode(last, num_values)[:, None, :, None]
    torch.eq(codes.permute(1, 2, 0)[:, :, None], wanted, out=fits[..., :DISTRIBUTE])
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


def search(chains: Chains, transitions: Sequence[Int[Tensor, "_ _"]]) -> Hypotheses:
    """Count the hypotheses that fit, for each puzzle, answer and multiset of rules.

    `transitions[m][i, r]` is the number of the multiset that results from adding rule r to multiset i of m rules, or -1 if
    excluded.
    """
    instance = torch.arange(len(chains.start), device=chains.start.device)
    zeros = torch.zeros_like(instance)
    return _join(Hypotheses(instance, zeros, zeros, zeros, zeros.double() + 1), chains, transitions)


def _join(hypotheses: Hypotheses, chains: Chains, transitions: Sequence[Tensor], first: int = 0) -> Hypotheses:
    """Extend hypotheses by one chain per position of the first column, starting at `first`."""
    for position in range(first, len(transitions)):
        num_chains = chains.length[hypotheses.instance, position]
        size = int(num_chains.sum())
        middle = _find_middle(hypotheses.instance) if size > MAX_FRONTIER else 0
        if middle:  # process the puzzles in two halves to save memory
            halves = (hypotheses.select(slice(middle)), hypotheses.select(slice(middle, None)))
            parts = [_join(half, chains, transitions, position) for half in halves]
            return Hypotheses(*map(torch.cat, zip(*parts, strict=True)))
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
        num_ways=hypotheses.num_ways[row],
    )


def _merge(hypotheses: Hypotheses) -> Hypotheses:
    """Merge hypotheses that no later step can distinguish, and add their counts."""
    group, rows = group_rows(hypotheses.instance, hypotheses.used, hypotheses.multiset, hypotheses.answer)
    count = torch.zeros(len(rows), dtype=torch.float64, device=rows.device).index_add_(0, group, hypotheses.num_ways)
    return hypotheses.select(rows)._replace(num_ways=count)


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


@dataclass(frozen=True, eq=False)
class Solution:
    """The consistent answers for the hidden panel of each puzzle, with their posteriors.

    Answers are ordered by puzzle, then by decreasing posterior, then lexicographically. A puzzle that no hypothesis fits
    has no answers, probability 0, and -1 in every feature of its best answer.
    """

    num_answers: Int[Tensor, " batch"]
    best: Int[Tensor, "batch feature"]
    probability: Float[Tensor, " batch"]  # of the best answer
    instance: Int[Tensor, " total"]  # the puzzle that each row of `answers` belongs to
    answers: Int[Tensor, "total feature"]
    answer_probabilities: Float[Tensor, " total"]

    @property
    def ambiguous(self) -> Bool[Tensor, " batch"]:
        """Whether hypotheses that fit disagree about the hidden panel: ambiguity by the paper's wording."""
        return self.num_answers > 1

    def ambiguous_everywhere(self, truth: Int[Tensor, "batch feature"]) -> Bool[Tensor, " batch"]:
        """Whether some consistent answer differs from the true one in *every* feature: the count of table A2.

        `truth` is (batch, feature). The published check also lets distribute three repeat values, which its generator
        never does: with 4 features this adds about 30 % to the count at 4 values, and almost nothing from 8 values on.
        """
        differs = (self.answers != truth[self.instance]).all(dim=1)
        return torch.zeros_like(self.num_answers).index_add(0, self.instance, differs.long()) > 0

    def probability_of(self, answers: Int[Tensor, "batch feature"]) -> Float[Tensor, " batch"]:
        """The posterior of one given answer per puzzle, (batch, feature); 0 where no hypothesis yields it."""
        same = (self.answers == answers[self.instance]).all(dim=1)
        return torch.zeros_like(self.probability).index_add(0, self.instance, self.answer_probabilities * same)

    def best_features(self, num_values: int) -> Int[Tensor, "batch feature"]:
        """The most probable value of each feature separately. They can differ from the features of the best answer."""
        batch, num_features = self.best.shape
        feature = torch.arange(num_features, device=self.best.device)
        cell = (self.instance[:, None] * num_features + feature) * num_values + self.answers
        weights = self.answer_probabilities[:, None].expand_as(cell)
        marginals = cell.flatten().bincount(weights.flatten(), minlength=batch * num_features * num_values)
        return (marginals.view(batch, num_features, num_values) / TIE).round().argmax(dim=-1)


def solve(
    grids: Int[Tensor, "batch row column feature"],
    num_values: int = 8,
    *,
    priors: Sequence[Sequence[Composition] | None] = (None,),
    permuted: bool = True,
) -> list[Solution]:
    """Solve puzzles under each prior; the last panel is ignored and may hold anything.

    A prior is uniform over some multisets of rules (sorted tuples), or over all of them for None. With `permuted=False` each
    feature has the same position in all columns; which feature follows which rule is still unknown.
    """
    shape = tuple(grids.shape)
    require(
        len(shape) == 4 and shape[1] == shape[2], "the shape of grids", shape, "(batch, row, column, feature), a square"
    )
    _, grid_size, _, num_features = shape
    if (grid_size - 1) * num_features > 62 or num_values ** max(num_features, grid_size) >= 1 << 62:
        raise InputError(
            f"grids have {num_features} features of {num_values} values in {grid_size} columns: expected at most "
            f"{62 // (grid_size - 1)} features, and values to the power of features or columns below 2^62"
        )
    visible = grids.flatten(1, 2)[:, :-1]
    if not bool(((visible >= 0) & (visible < num_values)).all()):
        raise InputError(f"grids hold other values: expected 0 to {num_values - 1} in all panels but the last")
    chosen = [all_multisets(len(RULES), num_features) if prior is None else tuple(prior) for prior in priors]
    multisets = tuple(dict.fromkeys(itertools.chain.from_iterable(chosen)))
    likelihoods = log_likelihoods(num_values=num_values, grid_size=grid_size)
    log_weights = [_weigh(multisets, frozenset(prior), likelihoods).to(grids.device) for prior in chosen]
    transitions = [table.to(grids.device) for table in _tabulate_transitions(multisets)]
    chunk_size = max(1, MAX_TABLE // (len(RULES) * num_features**grid_size))
    solutions: list[list[Solution]] = [[] for _ in priors]
    for chunk in grids.split(chunk_size):
        hypotheses = search(find_chains(chunk, num_values, permuted), transitions)
        for parts, weights in zip(solutions, log_weights, strict=True):
            possible = hypotheses.select(weights[hypotheses.multiset] > -math.inf) if len(priors) > 1 else hypotheses
            parts.append(_summarise(possible, weights, len(chunk), num_features, num_values))
    return [_concatenate(parts) for parts in solutions]


def _summarise(
    hypotheses: Hypotheses, log_weights: Float[Tensor, " multiset"], batch: int, num_features: int, num_values: int
) -> Solution:
    instance, posterior, answer = _compute_posterior(hypotheses, log_weights, batch)
    answers = answer[:, None] // place_values(num_features, num_values, answer.device) % num_values
    num_answers = instance.bincount(minlength=batch)
    solved = num_answers > 0
    first = (num_answers.cumsum(0) - num_answers)[solved]
    best = torch.full((batch, num_features), -1, device=answer.device)
    best[solved] = answers[first]
    probability = torch.zeros(batch, dtype=torch.float64, device=answer.device)
    probability[solved] = posterior[first]
    return Solution(num_answers, best, probability, instance, answers, posterior)


def _compute_posterior(
    hypotheses: Hypotheses, log_weights: Float[Tensor, " multiset"], batch: int
) -> tuple[Int[Tensor, " total"], Float[Tensor, " total"], Int[Tensor, " total"]]:
    """Puzzle, posterior and number of each consistent answer, in the order that `Solution` promises."""
    log_weight = log_weights[hypotheses.multiset] + hypotheses.num_ways.log()
    largest = torch.full((batch,), -math.inf, dtype=torch.float64, device=log_weight.device)
    largest.scatter_reduce_(0, hypotheses.instance, log_weight, "amax")
    weight = (log_weight - largest[hypotheses.instance]).exp()
    group, rows = group_rows(hypotheses.instance, hypotheses.answer)
    instance, answer = hypotheses.instance[rows], hypotheses.answer[rows]
    posterior = torch.zeros(len(rows), dtype=torch.float64, device=rows.device).index_add_(0, group, weight)
    posterior /= torch.zeros_like(largest).index_add_(0, instance, posterior)[instance]
    order = (posterior / TIE).round().sort(descending=True, stable=True).indices
    order = order[instance[order].sort(stable=True).indices]
    return instance[order], posterior[order], answer[order]


def _concatenate(solutions: Sequence[Solution]) -> Solution:
    columns = {field.name: [getattr(part, field.name) for part in solutions] for field in fields(Solution)}
    offsets = itertools.accumulate(map(len, columns["num_answers"]), initial=0)
    columns["instance"] = [part + offset for part, offset in zip(columns["instance"], offsets, strict=False)]
    return Solution(**{name: torch.cat(parts) for name, parts in columns.items()})


def _weigh(
    multisets: Sequence[Composition], prior: frozenset[Composition], likelihoods: Sequence[float]
) -> Float[Tensor, " multiset"]:
    """The log-weight of one hypothesis per multiset; minus infinity outside the prior."""
    log_weights = [
        sum(likelihoods[rule] for rule in multiset) - log_num_arrangements(multiset) if multiset in prior else -math.inf
        for multiset in multisets
    ]
    return torch.tensor(log_weights, dtype=torch.float64)


@lru_cache(maxsize=32)
def _tabulate_transitions(multisets: tuple[Composition, ...]) -> tuple[Int[Tensor, "_ rule"], ...]:
    """For each size, the multiset that results from adding each rule to each smaller one; -1 if the prior excludes it."""
    transitions: list[Tensor] = []
    while multisets[0]:
        number = {multiset: index for index, multiset in enumerate(multisets)}
        multisets = tuple(sorted({whole[:i] + whole[i + 1 :] for whole in multisets for i in range(len(whole))}))
        larger = [[tuple(sorted((*multiset, rule))) for rule in range(len(RULES))] for multiset in multisets]
        transitions.insert(0, torch.tensor([[number.get(multiset, -1) for multiset in row] for row in larger]))
    return tuple(transitions)
