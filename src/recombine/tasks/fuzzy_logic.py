"""Fuzzy logic functions, learned in context (Attention as a Hypernetwork, arXiv 2406.05816, section 3).

With Zadeh's operators, and = min, or = max, not x = 1 - x, a *term* is a conjunction of all L variables, each possibly
negated, and a task is a disjunction of K distinct terms:

    f(x) = max over chosen terms t of min over variables i of (x_i or 1 - x_i, as bit i of t says)

A sequence contains (x, f(x)) pairs and ends with a query whose f(x) is replaced by 0. There are 2^L terms. The last quarter
never occurs in training (pairs of two such terms are the `unknown` split), and a fraction of the sets of the other terms is
held out (the `ood` split). Bit i of a term's number, counted from the most significant, is 1 where variable i is negated:
term 0 is x1 & x2 & x3 & x4.

There is no noise and the prior is uniform, so the posterior is uniform over the functions that agree with every example.
The best prediction at the query then depends on the metric:

- `r2_pooled` is 1 - sum of squared errors / sum of variances. Predictions do not change the variances, so the smallest
  squared error is best: the posterior mean.
- `r2` is the mean over sequences of 1 - (error² / v), where v is the variance of the sequence's targets, the query's
  among them. The answer y is not known, and v depends on it, so the expected loss is the mean of (prediction - y)² / v(y)
  over the functions that agree. Its minimum is their mean with weights 1 / v(y).
- `accuracy`, for rounded answers, needs the value on which most functions agree.

All are optimal among all predictors; `r2_pooled` in the limit of many sequences, as a ratio of sums.

As text, variables have a few decimals. Rounding commutes with min, max and 1 - x, so answers are exact: one of the numbers
in the question, or 1 minus one.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import ClassVar, Literal

import torch
from jaxtyping import Bool, Float, Int
from markupsafe import Markup
from torch import Tensor

from recombine.compositions import Composition, CompositionSplit, all_sets, split_compositions
from recombine.foundation.errors import InputError, check_choice, check_positive, require
from recombine.random import Stream
from recombine.tasks.base import MIN_VARIANCE, Preset, Ratio, Reference, Scale, Task, measure_r2
from recombine.tasks.reading import Reading
from recombine.tasks.sampling import Batch, SplitName
from recombine.tasks.text import TextForm, round_decimals
from recombine.tasks.view import Card, Panel, TokenView, assemble, use_minus_signs

WEIGHTINGS = ("r2", "r2_pooled")
CHUNK_SIZE = 256  # compositions at a time
MAX_DECIMALS = 4
MAX_VARIABLES = 30  # 2**30 terms; the number of compositions is the stricter limit
WIDTH, HEIGHT = 220, 74  # of the picture in a report
TOLERANCE = 0.05  # an answer this close to the true value counts as right


def best_answers(
    inputs: Float[Tensor, "batch tokens features"],
    compositions: Int[Tensor, "compositions terms"],
    possible: Bool[Tensor, "priors compositions"],
    decimals: int = 0,
) -> dict[str, Float[Tensor, "priors batch"]]:
    """For each metric and prior, the best answer at the query, given the possible functions that agree with the examples."""
    device = inputs.device
    at_query = round_decimals(evaluate_terms(inputs[:, -1, :-1]), decimals)
    at_examples = round_decimals(evaluate_terms(inputs[:, :-1, :-1]), decimals)
    shape = (2, len(WEIGHTINGS), len(possible), len(inputs))
    sums = torch.zeros(shape, dtype=torch.float64, device=device)  # of the weights, and of weighted values
    levels = 10**decimals
    votes = torch.zeros(*shape[2:], levels + 1, dtype=torch.float64, device=device)  # for each rounded value
    for chunk, chosen in zip(compositions.split(CHUNK_SIZE), possible.split(CHUNK_SIZE, dim=1), strict=True):
        chunk, chosen = chunk.to(device), chosen.to(device, torch.float64)
        fits = find_consistent(at_examples, inputs[:, :-1, -1], chunk).double()
        values = at_query[:, chunk].amax(dim=-1).double()
        variance = measure_variance(inputs[:, :-1, -1].double(), values).clamp_min(MIN_VARIANCE)
        for number, weights in enumerate((fits / variance, fits)):
            sums[0, number] += chosen @ weights.T
            sums[1, number] += chosen @ (weights * values).T
        if decimals:
            level = (values * levels).round().long()
            votes.scatter_add_(2, level.expand(len(possible), -1, -1), fits * chosen[:, None])
    best = dict(zip(WEIGHTINGS, sums[1] / sums[0], strict=True))
    return best | ({"accuracy": round_decimals(votes.argmax(dim=-1).double() / levels, decimals)} if decimals else {})


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


def evaluate_function(
    x: Float[Tensor, "batch tokens variables"], modules: Int[Tensor, "batch terms"]
) -> Float[Tensor, "batch tokens"]:
    """f(x) for the terms of each row; |bit - x| is exactly x or 1 - x."""
    num_variables = x.shape[-1]
    places = torch.arange(num_variables - 1, -1, -1, device=x.device)
    negated = ((modules[:, None, :, None] >> places) & 1).to(x.dtype)
    return (negated - x.unsqueeze(2)).abs().amin(dim=-1).amax(dim=-1)


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
        require(self.num_examples > 1, "num_examples", self.num_examples, "at least 2, one example and the query")
        require(0 <= self.decimals <= MAX_DECIMALS, "decimals", self.decimals, f"0 to {MAX_DECIMALS}")
        most = f"at most {self.num_known_terms}, the number of known terms of {self.num_variables} variables"
        require(self.num_terms <= self.num_known_terms, "num_terms", self.num_terms, most)
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
        chosen = all_sets(len(unknown), self.num_terms) if len(unknown) >= self.num_terms else ()
        return split_compositions(
            all_sets(self.num_known_terms, self.num_terms),
            held_out=self.held_out,
            seed=self.seed,
            unknown=tuple(tuple(unknown[i] for i in each) for each in chosen),
        )

    def make_batch(self, split: SplitName, stream: Stream) -> Batch:
        """Examples (x, f(x)) as `inputs` (batch, token, variable and value), the last value hidden; `targets` (batch)."""
        composition, modules = self.draw_compositions(split, stream)
        x = round_decimals(stream.uniform(self.num_examples, self.num_variables), self.decimals)
        y = round_decimals(evaluate_function(x, modules), self.decimals)
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
            expected = f"one number per row, or one per token ({self.num_examples} tokens)"
            raise InputError(f"predictions have shape {tuple(predictions.shape)}: expected {expected}")
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
        x = round_decimals(stream.uniform(1, self.num_variables), self.decimals)
        return round_decimals(evaluate_function(x, modules), self.decimals)

    def best_predictions(self, batch: Batch, *, split: SplitName | None, metric: str) -> Float[Tensor, " batch"]:
        """The mean at the query over all functions that agree with the examples, weighted as the metric requires; exact."""
        check_choice("metric", metric, (*WEIGHTINGS, *(("accuracy",) if self.decimals else ())))
        return self._answer(batch, [split])[0][metric]

    def reference_predictions(
        self, batch: Batch, *, split: SplitName, metrics: Sequence[str]
    ) -> dict[Reference, dict[str, Tensor]]:
        """One enumeration of the functions for both priors and both metrics."""
        chance = dict.fromkeys(metrics, self.chance(batch))
        if self.decimals:
            chance["accuracy"] = torch.full_like(batch.targets, self.most_frequent_target)
        ceiling, agnostic = self._answer(batch, [split, None])
        return {"chance": chance, "ceiling": ceiling, "agnostic": agnostic}

    def _answer(self, batch: Batch, splits: Sequence[SplitName | None]) -> list[dict[str, Tensor]]:
        """The best predictions for each metric, under the prior of each split."""
        possible = torch.stack([self._possible[split] for split in splits])
        best = best_answers(batch.inputs, self.all_compositions, possible, self.decimals)
        missing = int(best["r2_pooled"].isnan().sum())
        if missing:
            raise InputError(f"{missing} sequences agree with no possible function: expected a batch of the same split")
        return [{metric: means[row] for metric, means in best.items()} for row in range(len(splits))]

    @cached_property
    def _possible(self) -> dict[SplitName | None, Bool[Tensor, " compositions"]]:
        """Which of all compositions each split contains; all of them for None."""
        everything = list(map(tuple, self.all_compositions.tolist()))
        members: dict[SplitName | None, frozenset[Composition]] = {None: frozenset(everything)}
        members |= {split: frozenset(self.split.compositions(split)) for split in self.splits}
        return {split: torch.tensor([terms in own for terms in everything]) for split, own in members.items()}

    @cached_property
    def all_compositions(self) -> Int[Tensor, "compositions terms"]:
        """Every set of terms, including those in no split."""
        return torch.tensor(all_sets(2**self.num_variables, self.num_terms))

    def reading(self) -> Reading:
        return FuzzyLogicReading(self)

    def text_form(self) -> TextForm:
        """Two decimals, unless the task has other ones already."""
        return FuzzyLogicText(self if self.decimals else replace(self, decimals=2))

    @property
    def success_criterion(self) -> str:
        return f"the answer is within {TOLERANCE} of the true value"

    def judge(self, predictions: Tensor, batch: Batch) -> tuple[Tensor, Bool[Tensor, " batch"]]:
        answers = self.read(predictions)
        return answers, (answers - batch.targets).abs() < TOLERANCE

    def card(self, batch: Batch, row: int, answer: Tensor) -> Card:
        truth, given = float(batch.targets[row]), float(answer)
        query = ", ".join(f"{value:.2f}" for value in batch.inputs[row, -1, :-1].tolist())
        return Card(
            picture=draw_values(batch.inputs[row, :-1, -1].tolist(), truth, given),
            composition=tuple(self.describe((term,)) for term in batch.latents[row].tolist()),
            joined_by=" ∨ ",
            remarks=(
                f"at x = ({query})",
                use_minus_signs(f"network {given:.3f}, truth {truth:.3f}, error {abs(given - truth):.3f}"),
            ),
        )

    def view(self, batch: Batch, row: int) -> TokenView:
        """Examples, then the query, whose value is framed."""
        values = batch.inputs[row].cpu().clone()
        values[-1, -1] = batch.targets[row].item()
        names, last = tuple(f"x{number + 1}" for number in range(self.num_variables)), len(values) - 1
        return TokenView(
            title=f"f = {self.describe(tuple(batch.latents[row].tolist()))}",
            panels=[
                Panel("variables", values[:, :-1].T.numpy(), names),
                Panel("value of the function", values[:, -1:].T.numpy(), ("f",), range(last, last + 1)),
            ],
            parts=[(f"{last} examples", last), ("query", 1)],
        )

    def describe(self, composition: Composition) -> str:
        def term(number: int) -> str:
            bits = f"{number:0{self.num_variables}b}"
            return " ∧ ".join(f"{'¬' if bit == '1' else ''}x{i + 1}" for i, bit in enumerate(bits))

        return " ∨ ".join(f"({term(number)})" for number in composition)


def draw_values(examples: Sequence[float], truth: float, given: float) -> Markup:
    """The example values as ticks on a line from 0 to 1, with the true value below it and the network's above it."""
    left, line, span = 14, 37, WIDTH - 28

    def position(value: float) -> float:
        return left + span * min(1.0, max(0.0, value))

    quality = "good" if abs(given - truth) < TOLERANCE else "bad"
    ticks = "".join(f"M{position(value):.1f} {line - 6}v12" for value in examples)
    a, b = position(given), position(truth)
    return assemble(
        WIDTH,
        HEIGHT,
        [
            f'<path class="axis" d="M{left} {line}h{span}"/><path class="tick" d="{ticks}"/>',
            f'<path class="off {quality}" d="M{a:.1f} {line}H{b:.1f}"/>',
            f'<path class="{quality}" d="M{a:.1f} {line - 3}l-7 -12h14z"/>',
            f'<path class="plain" d="M{b:.1f} {line + 3}l-7 12h14z"/>',
            f'<text class="{quality}" x="{min(max(a, 32), WIDTH - 32):.1f}" y="13">network</text>',
            f'<text class="plain" x="{min(max(b, 24), WIDTH - 24):.1f}" y="{line + 31}">truth</text>',
        ],
        "values",
        f"The network says {given:.3f}, the truth is {truth:.3f}.",
    )


class FuzzyLogicReading(Reading):
    """Instances as in training, one logistic decoder per term; and two variants with a shared part."""

    task: FuzzyLogic
    pictured = "pictured"

    @property
    def variants(self) -> Mapping[str, Reading]:
        return {"pictured": SharedReading(self.task, "examples"), "same_query": SharedReading(self.task, "query")}

    @property
    def swap(self) -> Reading:
        return SharedReading(self.task, "query")


class SharedReading(FuzzyLogicReading):
    """Fuzzy logic functions that all have the same examples or the same query."""

    def __init__(self, task: FuzzyLogic, shared: Literal["examples", "query"]) -> None:
        super().__init__(task)
        self.shared = shared
        self.instances = f"every function with the same {shared}"

    def batches(self, split: SplitName, num_instances: int, device: torch.device | str = "cpu") -> Iterator[Batch]:
        tokens = slice(None, -1) if self.shared == "examples" else slice(-1, None)
        shared_x = self.task.sample("test", 0, batch_size=1, device=device).inputs[:, tokens, :-1]
        for batch in super().batches(split, num_instances, device):
            x = batch.inputs[..., :-1].clone()
            x[:, tokens] = shared_x
            y = evaluate_function(x, batch.latents)
            inputs = torch.cat([x, y[..., None]], dim=-1)
            inputs[:, -1, -1] = 0
            yield replace(batch, inputs=inputs, targets=y[:, -1])


class FuzzyLogicText(TextForm):
    """Examples as numbers with as many decimals as the task has."""

    task: FuzzyLogic

    @property
    def instructions(self) -> str:
        return (
            f"A fuzzy logic function has {self.task.num_variables} variables between 0 and 1. With not x = 1 - x, and = "
            f"minimum, or = maximum, it is an or of {self.task.num_terms} different terms. A term is an and of all "
            "variables, each of them as it is or negated. The following lines show values of one such function f. Find its "
            "value in the last line."
        )

    @property
    def answer_format(self) -> str:
        return f"this number, with {self.task.decimals} decimals, and nothing else"

    @property
    def pattern(self) -> str:
        return rf"[01]\.\d{{{self.task.decimals}}}"

    def _write(self, value: float) -> str:
        return f"{value:.{self.task.decimals}f}"

    def write_question(self, batch: Batch, row: int) -> str:
        lines = []
        for *x, y in batch.inputs[row].tolist():
            values = " ".join(f"x{number + 1}={self._write(value)}" for number, value in enumerate(x))
            lines.append(f"{values} f={self._write(y)}")
        lines[-1] = lines[-1].rpartition("=")[0] + "=?"
        return "\n".join(lines)

    def write_answers(self, batch: Batch, row: int) -> list[str]:
        return [self._write(float(batch.targets[row]))]

    def predict(self, answers: Sequence[str | None], batch: Batch) -> Tensor:
        """An answer that is missing is the best constant, moved by a decimal where that would happen to be right."""
        constant = self.task.chance(batch).double()
        step = 10.0**-self.task.decimals
        right = (constant - batch.targets).abs() < 2 * step
        constant = torch.where(right, constant - 2 * step, constant)
        given = [float("nan") if answer is None else float(answer) for answer in answers]
        numbers = torch.tensor(given, dtype=torch.float64)
        return torch.where(numbers.isnan(), constant, numbers)
