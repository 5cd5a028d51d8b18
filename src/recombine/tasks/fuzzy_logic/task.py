"""Fuzzy logic functions, learned in context (Attention as a Hypernetwork, arXiv 2406.05816, section 3).

With Zadeh's operators, and = min, or = max, not x = 1 - x, a *term* is a conjunction of all L variables, each possibly
negated, and a task is a disjunction of K distinct terms:

    f(x) = max over chosen terms t of min over variables i of (x_i or 1 - x_i, as bit i of t says)

A sequence contains (x, f(x)) pairs and ends with a query whose f(x) is replaced by 0. There are 2^L terms. The last quarter
never occurs in training (pairs of two such terms are the `unknown` split), and a fraction of the sets of the other terms is
held out (the `ood` split).

Bit i of a term's number, counted from the most significant, is 1 where variable i is negated: term 0 is x1 & x2 & x3 & x4.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import ClassVar, TypeVar

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from recombine.compositions import MAX_COMPOSITIONS, Composition, CompositionSplit, all_sets, split_compositions
from recombine.drawing.card import Card
from recombine.errors import InputError, check_choice, check_positive
from recombine.tasks.base import Batch, Preset, Ratio, Reference, Scale, SplitName, Task, measure_r2
from recombine.tasks.fuzzy_logic.card import TOLERANCE, make_card
from recombine.tasks.fuzzy_logic.picture import draw_function
from recombine.tasks.fuzzy_logic.posterior import WEIGHTINGS, average_consistent, find_most_probable
from recombine.tasks.reading import Reading
from recombine.tasks.rounding import snap
from recombine.tasks.stream import Stream
from recombine.tasks.text import TextForm

MAX_DECIMALS = 4
MAX_VARIABLES = 30  # 2**30 terms; the number of compositions is the stricter limit
Key = TypeVar("Key", bound=str)


@dataclass(frozen=True, kw_only=True)
class FuzzyLogic(Task):
    """Predict a fuzzy logic function at a query from examples of it."""

    name: ClassVar[str] = "fuzzy_logic"
    summary: ClassVar[str] = "infer a disjunction of fuzzy conjunctions from examples (arXiv 2406.05816, section 3)"
    splits: ClassVar[tuple[SplitName, ...]] = ("train", "test", "ood", "unknown")

    num_variables: int = 4
    """Number of input variables of a function."""
    num_terms: int = 2
    """Number of conjunctions in a function."""
    num_examples: int = 32
    """Number of tokens per sequence, including the query."""
    held_out: float = 0.7
    """Fraction of the compositions of known terms that is held out."""
    decimals: int = 0
    """Number of decimals to which variables are rounded; 0 for no rounding. Adds the accuracy of rounded answers."""

    def __post_init__(self) -> None:
        check_positive(num_variables=self.num_variables, num_terms=self.num_terms)
        if self.num_variables > MAX_VARIABLES:
            raise InputError(
                f"num_variables is {self.num_variables}, which makes 2**{self.num_variables} terms: expected at most "
                f"{MAX_VARIABLES}"
            )
        if self.num_examples < 2:
            raise InputError(f"num_examples is {self.num_examples}: expected at least 2, one example and the query")
        if not 0 <= self.decimals <= MAX_DECIMALS:
            raise InputError(f"decimals is {self.decimals}: expected 0 to {MAX_DECIMALS}")
        if self.num_terms > self.num_known_terms:
            raise InputError(
                f"num_terms is {self.num_terms}: expected at most {self.num_known_terms}, "
                f"the number of known terms of {self.num_variables} variables"
            )
        _ = self.split  # raise an error now if the split cannot cover all modules

    @classmethod
    def preset(cls, scale: Scale, model: str | None = None) -> Preset:
        """Table A3 of the paper. `small` has fewer steps; `tiny` also has a narrower model and the grid's higher rate."""
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

    def make_batch(self, split: SplitName, stream: Stream) -> Batch:
        """Examples (x, f(x)) as `inputs` (batch, token, variable and value), the last value hidden; `targets` (batch)."""
        composition, modules = self.draw_compositions(split, stream)
        x = snap(stream.uniform(self.num_examples, self.num_variables), self.decimals)
        y = snap(evaluate_function(x, modules), self.decimals)
        inputs = torch.cat([x, y.unsqueeze(-1)], dim=-1)
        inputs[:, -1, -1] = 0
        return Batch(inputs, y[:, -1], modules, {"composition": composition})

    def explain_empty(self, split: SplitName) -> str:
        return f"{self.num_variables} variables have too few unknown terms"

    def loss(self, predictions: Tensor, batch: Batch) -> Float[Tensor, ""]:
        """Squared error at the query."""
        return (self.read(predictions) - batch.targets).square().mean()

    def metrics(self, predictions: Tensor, batch: Batch) -> dict[str, Ratio]:
        """R² as published, the mean over instances, and pooled; the variance is that of the sequence's own targets.

        With `decimals`, the share of answers that are right after rounding comes first.
        """
        targets = batch.targets.double()
        values = torch.cat([batch.inputs[:, :-1, -1].double(), targets[:, None]], dim=1)
        error = self.read(predictions).double() - targets
        r2 = measure_r2(error.square(), values.var(dim=1, correction=0))
        if not self.decimals:
            return r2
        right = (error.abs() < 0.5 * 10.0**-self.decimals).double()
        return {"accuracy": Ratio(right, torch.ones_like(right)), **r2}

    def read(self, predictions: Tensor) -> Float[Tensor, " batch"]:
        """The query's prediction, from one number per row or one per token."""
        flat = predictions.flatten(1) if predictions.ndim > 1 else predictions[:, None]
        if flat.shape[1] not in (1, self.num_examples):
            raise InputError(
                f"predictions have shape {tuple(predictions.shape)}: expected one number per row, "
                f"or one per token ({self.num_examples} tokens)"
            )
        return flat[:, -1]

    def chance(self, batch: Batch) -> Float[Tensor, " batch"]:
        """The best constant: the mean target of training."""
        return torch.full_like(batch.targets, self.mean_target)

    @cached_property
    def mean_target(self) -> float:
        """Mean of f over 65,536 inputs from the training distribution."""
        return self._training_targets.double().mean().item()

    @cached_property
    def most_frequent_target(self) -> float:
        """The value that f has most often there, rounded."""
        different, count = self._training_targets.unique(return_counts=True)
        return float(different[count.argmax()])

    @cached_property
    def _training_targets(self) -> Float[Tensor, "rows 1"]:
        stream = Stream(self.name, self.seed, "mean target", rows=range(65_536))
        _, modules = self.draw_compositions("train", stream)
        x = snap(stream.uniform(1, self.num_variables), self.decimals)
        return snap(evaluate_function(x, modules), self.decimals)

    def best_predictions(self, batch: Batch, *, split: SplitName | None, metric: str) -> Float[Tensor, " batch"]:
        """The mean at the query over all functions that agree with the examples, weighted as the metric requires.

        Exact; see `posterior` for the weights.
        """
        check_choice("metric", metric, (*WEIGHTINGS, *(("accuracy",) if self.decimals else ())))
        return self._average(batch, {"best": split})["best"][metric]

    def reference_predictions(
        self, batch: Batch, *, split: SplitName, metrics: Sequence[str]
    ) -> dict[Reference, dict[str, Tensor]]:
        """One enumeration of the functions for both priors and both metrics."""
        chance: dict[Reference, dict[str, Tensor]] = {"chance": dict.fromkeys(metrics, self.chance(batch))}
        if self.decimals:
            chance["chance"]["accuracy"] = torch.full_like(batch.targets, self.most_frequent_target)
        return chance | self._average(batch, {"ceiling": split, "agnostic": None})

    def _average(self, batch: Batch, priors: Mapping[Key, SplitName | None]) -> dict[Key, dict[str, Tensor]]:
        possible = torch.stack([self._possible[prior] for prior in priors.values()])
        means = average_consistent(batch.inputs, self.all_compositions, possible, self.decimals)
        if self.decimals:
            means["accuracy"] = find_most_probable(batch.inputs, self.all_compositions, possible, self.decimals)
        return {name: {metric: mean[row] for metric, mean in means.items()} for row, name in enumerate(priors)}

    @cached_property
    def _possible(self) -> dict[SplitName | None, Bool[Tensor, " compositions"]]:
        """Which of all compositions each split contains; all of them for None."""
        everything = list(map(tuple, self.all_compositions.tolist()))
        members = {split: frozenset(self.split.compositions(split)) for split in self.splits}
        possible: dict[SplitName | None, Tensor] = {None: torch.ones(len(everything), dtype=torch.bool)}
        return possible | {
            split: torch.tensor([composition in own for composition in everything]) for split, own in members.items()
        }

    @cached_property
    def all_compositions(self) -> Int[Tensor, "compositions terms"]:
        """Every set of terms, including those in no split."""
        count = math.comb(2**self.num_variables, self.num_terms)
        if count > MAX_COMPOSITIONS:
            raise InputError(f"the ceiling would enumerate {count} compositions: expected at most {MAX_COMPOSITIONS}")
        return torch.tensor(all_sets(2**self.num_variables, self.num_terms))

    def reading(self) -> Reading:
        from recombine.tasks.fuzzy_logic.reading import FuzzyLogicReading

        return FuzzyLogicReading(self)

    def text_form(self) -> TextForm:
        """Two decimals, unless the task has other ones already."""
        from recombine.tasks.fuzzy_logic.text import FuzzyLogicText

        return FuzzyLogicText(self if self.decimals else replace(self, decimals=2))

    @property
    def right_means(self) -> str:
        return f"the answer is within {TOLERANCE} of the true value"

    def judge(self, predictions: Tensor, batch: Batch) -> tuple[Tensor, Bool[Tensor, " batch"]]:
        answers = self.read(predictions)
        return answers, (answers - batch.targets).abs() < TOLERANCE

    def card(self, batch: Batch, row: int, answer: Tensor) -> Card:
        return make_card(self, batch, row, float(answer))

    def draw(self, batch: Batch, row: int, path: Path | str) -> None:
        """Write a picture of one function and its examples as PNG or SVG (by the suffix of the path)."""
        draw_function(self, batch, row, path)

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


def evaluate_function(
    x: Float[Tensor, "batch tokens variables"], modules: Int[Tensor, "batch terms"]
) -> Float[Tensor, "batch tokens"]:
    """f(x) for the terms of each row; |bit - x| is exactly x or 1 - x."""
    num_variables = x.shape[-1]
    places = torch.arange(num_variables - 1, -1, -1, device=x.device)
    negated = ((modules[:, None, :, None] >> places) & 1).to(x.dtype)
    return (negated - x.unsqueeze(2)).abs().amin(dim=-1).amax(dim=-1)
