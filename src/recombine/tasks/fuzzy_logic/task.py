"""Fuzzy logic functions to be learned in context (Attention as a Hypernetwork, arXiv 2406.05816, section 3).

With Zadeh's operators, and = min, or = max, not x = 1 - x, a *term* is a conjunction of all L variables, each possibly
negated, and a task is a disjunction of K distinct terms:

    f(x) = max over chosen terms t of min over variables i of (x_i or 1 - x_i, as bit i of t says)

A sequence shows (x, f(x)) pairs and ends with a query whose f(x) is hidden as 0. There are 2^L terms; the last quarter
never occurs in training (pairs of two such terms are the `unknown` split), and of the sets of the other terms a
fraction is held out (the `ood` split).

Bit i of a term's number, counted from the most significant, is 1 where variable i is negated: term 0 is x1 & x2 & x3 & x4.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar, Literal

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from recombine.compositions import Composition, CompositionSplit, all_sets, split_compositions
from recombine.errors import InputError, check_choice, check_positive
from recombine.tasks.base import Batch, Preset, Ratio, Scale, SplitName, Task, measure_r2
from recombine.tasks.stream import Stream

Fixed = Literal["nothing", "context", "query"]
MAX_ORACLE_COMPOSITIONS = 200_000


@dataclass(frozen=True, kw_only=True)
class FuzzyLogic(Task):
    """Predict a fuzzy logic function at a query from examples of it."""

    name: ClassVar[str] = "fuzzy_logic"
    summary: ClassVar[str] = "infer a disjunction of fuzzy conjunctions from examples (AH, section 3)"
    splits: ClassVar[tuple[SplitName, ...]] = ("train", "test", "ood", "unknown")

    num_variables: int = 4
    """Inputs of a function."""
    num_terms: int = 2
    """Conjunctions a function is the disjunction of."""
    num_examples: int = 32
    """Tokens of a sequence, the query included."""
    held_out: float = 0.7
    """Fraction of the combinations of known terms that are never trained."""

    def __post_init__(self) -> None:
        check_positive(num_variables=self.num_variables, num_terms=self.num_terms)
        if self.num_examples < 2:
            raise InputError(f"num_examples is {self.num_examples}: expected at least 2, one example and the query")
        if self.num_terms > self.num_known_terms:
            raise InputError(
                f"num_terms is {self.num_terms}: expected at most {self.num_known_terms}, "
                f"the number of known terms of {self.num_variables} variables"
            )
        _ = self.split  # refuse what cannot be covered before anything is built on it

    @classmethod
    def preset(cls, scale: Scale, model: str | None = None) -> Preset:
        """Table A3 of the paper; `small` trains for fewer steps, `tiny` also a narrower model at the grid's higher rate."""
        sizes = {"num_layers": 2, "embedding_dim": 128, "kqv_dim": 16, "mlp_dim": 256, "num_heads": 8}
        if scale == "tiny":
            sizes |= {"embedding_dim": 64, "mlp_dim": 128}
        return Preset(
            task=cls(),
            model=model or "transformer",
            sizes=sizes if model in (None, "transformer") else {},
            training={
                "steps": {"tiny": 2_500, "small": 10_000, "paper": 50_000}[scale],
                "learning_rate": 3e-3 if scale == "tiny" else 1e-3,
                "weight_decay": 0.1,
                "warmup_steps": 100,
            },
        )

    @property
    def num_known_terms(self) -> int:
        return 2**self.num_variables - 2**self.num_variables // 4

    @property
    def input_dim(self) -> int:
        return self.num_variables + 1

    @property
    def output_dim(self) -> int:
        return 1

    @property
    def sequence_length(self) -> int:
        return self.num_examples

    @property
    def num_read(self) -> int:
        return 1

    @cached_property
    def split(self) -> CompositionSplit:
        unknown = range(self.num_known_terms, 2**self.num_variables)
        return split_compositions(
            all_sets(self.num_known_terms, self.num_terms),
            held_out=self.held_out,
            seed=self.seed,
            unknown=tuple(
                tuple(unknown[i] for i in chosen)
                for chosen in (all_sets(len(unknown), self.num_terms) if len(unknown) >= self.num_terms else ())
            ),
        )

    def sample(
        self,
        split: SplitName,
        index: int,
        *,
        batch_size: int = 128,
        rows: range | None = None,
        device: torch.device | str = "cpu",
        fixed: Fixed = "nothing",
    ) -> Batch:
        """Batch `index` of a split. `fixed` shares the context's inputs, or the query's, among all rows (for probing)."""
        check_choice("fixed part", fixed, ("nothing", "context", "query"))
        stream = self.stream(split, index, range(batch_size) if rows is None else rows, device)
        if not self.split.compositions(split):
            raise InputError(f"split {split!r} is empty: {self.num_variables} variables have too few unknown terms")
        composition, modules = self.draw_compositions(split, stream)
        x = stream.uniform(self.num_examples, self.num_variables)
        if fixed != "nothing":
            shared = Stream(*stream.key, "fixed", rows=range(1), device=device).uniform(*x.shape[1:])
            where = slice(None, -1) if fixed == "context" else slice(-1, None)
            x[:, where] = shared[:, where]
        y = evaluate_function(x, modules)
        inputs = torch.cat([x, y.unsqueeze(-1)], dim=-1)
        inputs[:, -1, -1] = 0
        return Batch(inputs, y[:, -1], modules, {"composition": composition})

    def loss(self, predictions: Tensor, batch: Batch) -> Float[Tensor, ""]:
        """Squared error at the query."""
        return (self.read(predictions) - batch.targets).square().mean()

    def metrics(self, predictions: Tensor, batch: Batch) -> dict[str, Ratio]:
        """R² as published, the mean over instances, and pooled; the variance is that of the sequence's own targets."""
        targets = batch.targets.double()
        values = torch.cat([batch.inputs[:, :-1, -1].double(), targets[:, None]], dim=1)
        return measure_r2((self.read(predictions).double() - targets).square(), values.var(dim=1, correction=0))

    def read(self, predictions: Tensor) -> Float[Tensor, " batch"]:
        """The query's prediction, from one number a row or one a token."""
        flat = predictions.flatten(1) if predictions.ndim > 1 else predictions[:, None]
        if flat.shape[1] not in (1, self.num_examples):
            raise InputError(
                f"predictions have shape {tuple(predictions.shape)}: expected one number a row, "
                f"or one for each of {self.num_examples} tokens"
            )
        return flat[:, -1]

    def chance(self, batch: Batch) -> Float[Tensor, " batch"]:
        """The best constant: the mean target of training."""
        return torch.full_like(batch.targets, self.mean_target)

    @cached_property
    def mean_target(self) -> float:
        """Mean of f over 65,536 inputs of the training stream's own distribution."""
        stream = Stream(self.name, self.seed, "mean target", rows=range(65_536))
        _, modules = self.draw_compositions("train", stream)
        return evaluate_function(stream.uniform(1, self.num_variables), modules).double().mean().item()

    def oracle(self, batch: Batch) -> Float[Tensor, " batch"]:
        """Posterior mean at the query, under a uniform prior over all sets of all terms.

        A function fits if its terms never exceed an example's value and one of them reaches it. Comparisons are exact:
        min, max and 1 - x only ever select or subtract once, so equal values are equal to the last bit.
        """
        fits = self.find_consistent(batch)
        values = evaluate_terms(batch.inputs[:, -1:, :-1])[:, 0]
        at_query = values[:, self.all_compositions(batch.inputs.device)].amax(dim=-1)
        weight = fits.to(values.dtype)
        return (weight * at_query).sum(dim=1) / weight.sum(dim=1)

    def find_consistent(self, batch: Batch) -> Bool[Tensor, "batch compositions"]:
        """Which of all compositions agree with every example of the context."""
        terms = evaluate_terms(batch.inputs[:, :-1, :-1])
        values = batch.inputs[:, :-1, -1:]
        allowed = (terms <= values).all(dim=1)
        reached = terms == values
        fits = []
        for compositions in self.all_compositions(batch.inputs.device).split(256):
            covers = reached[:, :, compositions].any(dim=-1).all(dim=1)
            fits.append(covers & allowed[:, compositions].all(dim=-1))
        return torch.cat(fits, dim=1)

    def all_compositions(self, device: torch.device) -> Int[Tensor, "compositions terms"]:
        count = math.comb(2**self.num_variables, self.num_terms)
        if count > MAX_ORACLE_COMPOSITIONS:
            raise InputError(
                f"the exact oracle would enumerate {count} compositions: expected at most {MAX_ORACLE_COMPOSITIONS}"
            )
        return torch.tensor(all_sets(2**self.num_variables, self.num_terms), device=device)

    def describe(self, composition: Composition) -> str:
        def term(number: int) -> str:
            bits = f"{number:0{self.num_variables}b}"
            return " ∧ ".join(f"{'¬' if bit == '1' else ''}x{i + 1}" for i, bit in enumerate(bits))

        return " ∨ ".join(f"({term(number)})" for number in composition)

    def render(self, batch: Batch, row: int) -> str:
        lines = [f"f = {self.describe(tuple(batch.latents[row].tolist()))}"]
        lines.append("".join(f"{f'x{i + 1}':>7}" for i in range(self.num_variables)) + "      f")
        *context, query = batch.inputs[row].tolist()
        lines += ["".join(f"{value:7.3f}" for value in token) for token in context]
        lines.append("".join(f"{value:7.3f}" for value in query[:-1]) + f"      ?   (answer {batch.targets[row]:.3f})")
        return "\n".join(lines)


def evaluate_terms(x: Float[Tensor, "*batch variables"]) -> Float[Tensor, "*batch terms"]:
    """Every conjunction of x: all 2^L of them, built one variable at a time."""
    terms = torch.stack([x[..., 0], 1 - x[..., 0]], dim=-1)
    for i in range(1, x.shape[-1]):
        both = torch.stack([x[..., i], 1 - x[..., i]], dim=-1)
        terms = torch.minimum(terms.unsqueeze(-1), both.unsqueeze(-2)).flatten(-2)
    return terms


def evaluate_function(
    x: Float[Tensor, "batch tokens variables"], modules: Int[Tensor, "batch terms"]
) -> Float[Tensor, "batch tokens"]:
    """f(x) for each row's own terms; |bit - x| is x or 1 - x, exactly."""
    num_variables = x.shape[-1]
    places = torch.arange(num_variables - 1, -1, -1, device=x.device)
    negated = ((modules[:, None, :, None] >> places) & 1).to(x.dtype)
    return (negated - x.unsqueeze(2)).abs().amin(dim=-1).amax(dim=-1)
