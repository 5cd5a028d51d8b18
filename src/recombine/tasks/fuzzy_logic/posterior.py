"""The posterior over fuzzy logic functions given the examples, and the best predictions at the query.

There is no noise and the prior is uniform, so the posterior is uniform over the functions that agree with every example.
The best prediction then depends on the metric:

- `r2_pooled` is 1 - sum of squared errors / sum of variances. Predictions do not change the variances, so the smallest
  squared error is best: the posterior mean.
- `r2` is the mean over sequences of 1 - (error² / v), where v is the variance of the sequence's targets, the query's
  among them. The answer y is not known, and v depends on it, so the expected loss is the mean of (prediction - y)² / v(y)
  over the functions that agree. Its minimum is their mean with weights 1 / v(y).

Both are optimal among all predictors; the first in the limit of many sequences, as a ratio of sums.
"""

from __future__ import annotations

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from recombine.errors import InputError
from recombine.tasks.base import MIN_VARIANCE
from recombine.tasks.rounding import snap

WEIGHTINGS = ("r2", "r2_pooled")
CHUNK_SIZE = 256  # compositions at a time


def average_consistent(
    inputs: Float[Tensor, "batch tokens features"],
    compositions: Int[Tensor, "compositions terms"],
    possible: Bool[Tensor, "priors compositions"],
    decimals: int = 0,
) -> dict[str, Float[Tensor, "priors batch"]]:
    """For each metric and prior, the weighted mean at the query of the possible functions that agree with the examples."""
    at_query = snap(evaluate_terms(inputs[:, -1, :-1]), decimals)
    at_examples = snap(evaluate_terms(inputs[:, :-1, :-1]), decimals)
    shape = (2, len(WEIGHTINGS), len(possible), len(inputs))
    sums = torch.zeros(shape, dtype=torch.float64, device=inputs.device)  # of the weights, and of weighted values
    parts = zip(compositions.split(CHUNK_SIZE), possible.split(CHUNK_SIZE, dim=1), strict=True)
    for chunk, chosen in parts:
        chunk, chosen = chunk.to(inputs.device), chosen.to(inputs.device, torch.float64)
        fits = find_consistent(at_examples, inputs[:, :-1, -1], chunk).double()
        values = at_query[:, chunk].amax(dim=-1).double()
        variance = measure_variance(inputs[:, :-1, -1].double(), values).clamp_min(MIN_VARIANCE)
        for number, weights in enumerate((fits / variance, fits)):
            sums[0, number] += chosen @ weights.T
            sums[1, number] += chosen @ (weights * values).T
    missing = int((sums[0, -1] == 0).sum())
    if missing:
        raise InputError(f"{missing} sequences agree with no possible function: expected a batch of the split itself")
    return dict(zip(WEIGHTINGS, sums[1] / sums[0], strict=True))


def find_most_probable(
    inputs: Float[Tensor, "batch tokens features"],
    compositions: Int[Tensor, "compositions terms"],
    possible: Bool[Tensor, "priors compositions"],
    decimals: int,
) -> Float[Tensor, "priors batch"]:
    """For each prior, the value at the query on which most of the possible functions agree: the best for `accuracy`."""
    at_query = snap(evaluate_terms(inputs[:, -1, :-1]), decimals)
    at_examples = snap(evaluate_terms(inputs[:, :-1, :-1]), decimals)
    votes = torch.zeros(len(possible), len(inputs), 10**decimals + 1, dtype=torch.float64)
    for chunk, chosen in zip(compositions.split(CHUNK_SIZE), possible.split(CHUNK_SIZE, dim=1), strict=True):
        fits = find_consistent(at_examples, inputs[:, :-1, -1], chunk)
        level = (at_query[:, chunk].amax(dim=-1) * 10**decimals).round().long()
        for number, prior in enumerate(chosen):
            votes[number].scatter_add_(1, level, (fits & prior).double())
    return snap(votes.argmax(dim=-1).double() / 10**decimals, decimals)


def find_consistent(
    terms: Float[Tensor, "batch examples all_terms"],
    values: Float[Tensor, "batch examples"],
    compositions: Int[Tensor, "compositions terms"],
) -> Bool[Tensor, "batch compositions"]:
    """Which compositions agree with every example: no term exceeds its value, and one of them reaches it.

    Comparisons are exact: min, max and 1 - x only ever select or subtract once, so equal values are equal to the last bit.
    """
    allowed = (terms <= values[..., None]).all(dim=1)
    reached = terms == values[..., None]
    return reached[:, :, compositions].any(dim=-1).all(dim=1) & allowed[:, compositions].all(dim=-1)


def measure_variance(
    context: Float[Tensor, "batch examples"], answers: Float[Tensor, "batch compositions"]
) -> Float[Tensor, "batch compositions"]:
    """The variance of a sequence's targets with each of the answers at its query."""
    count = context.shape[1] + 1
    mean = context.mean(dim=1, keepdim=True)
    within = (context - mean).square().sum(dim=1, keepdim=True)
    return within / count + (count - 1) / count**2 * (answers - mean).square()


def evaluate_terms(x: Float[Tensor, "*batch variables"]) -> Float[Tensor, "*batch terms"]:
    """Every conjunction of x: all 2^L of them, built one variable at a time."""
    terms = torch.stack([x[..., 0], 1 - x[..., 0]], dim=-1)
    for i in range(1, x.shape[-1]):
        both = torch.stack([x[..., i], 1 - x[..., i]], dim=-1)
        terms = torch.minimum(terms.unsqueeze(-1), both.unsqueeze(-2)).flatten(-2)
    return terms
