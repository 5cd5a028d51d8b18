"""SRAVEN, a symbolic Raven's progressive matrix (Attention as a Hypernetwork, arXiv 2406.05816, section 4).

A puzzle is a grid of G x G panels; a panel holds M features, each a value in 0..K-1. Every latent feature follows one of
eight rules along all rows (see `generator`), and the last panel must be predicted. A task is a *multiset* of M rules. Each
puzzle draws which feature follows which rule, and one permutation of the features per column (the same in all rows), which
hides which positions belong together.

Tokens, one one-hot value each: the G² - 1 visible panels in reading order, the M features of a panel in their column's
order; then M empty (all-zero) tokens that ask for the features of the last panel, in the order of the last column.

Several answers can be consistent with some rules and permutations, as in a quarter of the puzzles at M=4, K=8. The solver
(see `solver`) finds all of them with their probabilities, which give the ceiling. `unambiguous=True` redraws such puzzles
with the same multiset of rules until only one answer is left.

Probes read the code of the last query token attending to the same feature in its own row, itself included, on puzzles
without permutations, where the rule of the last feature is known. A swap gives this token the codes of a puzzle whose last
feature follows another rule. If the code determines the operation, the answer is the result of that other rule on the
puzzle's own row.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import ClassVar

import torch
from jaxtyping import Bool, Float, Int, Shaped
from markupsafe import Markup
from torch import Tensor
from torch.nn.functional import cross_entropy, one_hot

from recombine.compositions import Composition, CompositionSplit, all_multisets, split_compositions
from recombine.foundation.errors import InputError, check_choice, check_positive
from recombine.random import Stream
from recombine.tasks.base import METRICS, Metric, Preset, Ratio, Reference, Scale, Task
from recombine.tasks.reading import Counterfactual, Reading
from recombine.tasks.sampling import Batch, SplitName
from recombine.tasks.sraven.generator import DISTRIBUTE, RULES, check_sizes, deduce_last, draw_puzzles, look_up
from recombine.tasks.sraven.picture import draw_puzzle, make_card, write_puzzle
from recombine.tasks.sraven.solver import Solution, solve
from recombine.tasks.text import TextForm
from recombine.tasks.view import Card

NUM_DRAWN, MAX_REDRAWS = 4, 500  # puzzles per redraw, and redraws; at M=4, K=3 one puzzle in 50 is unambiguous


@dataclass(frozen=True, kw_only=True)
class SRaven(Task):
    """Complete a symbolic Raven matrix whose features follow hidden rules."""

    name: ClassVar[str] = "sraven"
    summary: ClassVar[str] = (
        "complete a symbolic Raven matrix from the rules of its features (arXiv 2406.05816, section 4)"
    )
    splits: ClassVar[tuple[SplitName, ...]] = ("train", "test", "ood")
    evaluation_instances: ClassVar[int] = 51_200
    metric_info: ClassVar[Mapping[str, Metric]] = METRICS | {"feature_accuracy": Metric(title="feature accuracy")}
    column_info: ClassVar[Mapping[str, str]] = {
        "panels": "values of the visible panels in reading order, in the order of their column",
        "rules": "rule that each feature follows",
        "permutations": "feature at each position of each column",
        "ambiguous": "whether several answers fit the visible panels",
        "num_answers": "number of answers that fit",
        "posterior_of_target": "probability of the target given the visible panels, with all compositions equally likely",
    }

    num_features: int = 4
    """Number of features per panel, each with a rule."""
    num_values: int = 8
    """Number of values a feature can take."""
    grid_size: int = 3
    """Number of rows and columns of panels."""
    held_out: float = 0.25
    """Fraction of the multisets of rules that is held out."""
    permuted: bool = True
    """Permute the features in each column, so that the model must find which ones correspond."""
    unambiguous: bool = False
    """Draw only puzzles with one possible answer. Slower, since the exact solver checks each puzzle."""

    def __post_init__(self) -> None:
        check_positive(num_features=self.num_features)
        check_sizes(num_values=self.num_values, grid_size=self.grid_size)
        _ = self.split  # raise an error now if the split cannot cover all modules

    @classmethod
    def preset(cls, scale: Scale, model: str | None = None) -> Preset:
        """Table A3 of the paper, 20M instances; `small` has two features and fewer steps, `tiny` is also narrower."""
        sizes = {"num_layers": 4, "embedding_dim": 128, "kqv_dim": 64, "mlp_dim": 256, "num_heads": 16}
        if scale == "tiny":
            sizes |= {"embedding_dim": 64, "kqv_dim": 32, "mlp_dim": 128, "num_heads": 8}
        return Preset(
            task=cls(num_features=4 if scale == "paper" else 2),
            model=model or "transformer",
            sizes=sizes if model in (None, "transformer") else {},
            training={
                "steps": {"tiny": 6_000, "small": 12_000, "paper": 156_250}[scale],
                "learning_rate": 2e-3 if scale == "tiny" else 1e-3,
                "weight_decay": 0.1,
                "warmup_steps": 1_000,
            },
        )

    @property
    def input_dim(self) -> int:
        return self.num_values

    @property
    def output_dim(self) -> int:
        return self.num_values

    @property
    def sequence_length(self) -> int:
        return self.grid_size**2 * self.num_features

    @property
    def num_read(self) -> int:
        return self.num_features

    @cached_property
    def split(self) -> CompositionSplit:
        multisets = all_multisets(len(RULES), self.num_features)
        return split_compositions(multisets, held_out=self.held_out, seed=self.seed)

    def make_batch(self, split: SplitName, stream: Stream) -> Batch:
        """Puzzles whose rules belong to the split.

        - `inputs` (batch, token, value): one-hot, float32; the module's docstring has the order of the tokens;
        - `targets` (batch, position): the values of the last panel, in the order of the last column;
        - `latents` (batch, feature): the sorted multiset of rules, numbered as in `RULES`;
        - `info["rules"]` (batch, latent feature): the rule that each latent feature follows;
        - `info["permutations"]` (batch, column, position): the latent feature at each position of each column;
        - `info["grids"]` (batch, row, column, position): all values, those of the last panel included.
        """
        composition, modules = self.draw_compositions(split, stream)
        puzzles = self.draw_puzzles(modules, stream)
        if self.unambiguous:
            self._redraw_ambiguous(puzzles, modules, stream)
        grids = puzzles["grids"]
        inputs = look_up(torch.eye(self.num_values, dtype=torch.float32, device=grids.device), grids).flatten(1, 3)
        inputs[:, -self.num_features :] = 0
        return Batch(inputs, grids[:, -1, -1].contiguous(), modules, {"composition": composition, **puzzles})

    def draw_puzzles(self, modules: Int[Tensor, "rows features"], stream: Stream) -> dict[str, Tensor]:
        """Puzzles with these multisets of rules: `rules`, `permutations` and `grids`, as in `make_batch`."""
        return draw_puzzles(
            modules, stream, num_values=self.num_values, grid_size=self.grid_size, permuted=self.permuted
        )

    def _redraw_ambiguous(self, puzzles: dict[str, Tensor], modules: Tensor, stream: Stream) -> None:
        """Replace ambiguous puzzles by new ones with the same multiset. Each row depends on its own random numbers only."""
        pending = self.solve(puzzles["grids"]).ambiguous.nonzero()[:, 0]
        for redraw in range(MAX_REDRAWS):
            if len(pending) == 0:
                return
            first, last = int(pending[0]), int(pending[-1]) + 1
            rows = stream.rows[first:last]
            rows = range(rows.start * NUM_DRAWN, rows.stop * NUM_DRAWN)
            again = Stream(*stream.key, "redraw", redraw, rows=rows, device=stream.device)
            fresh = self.draw_puzzles(modules[first:last].repeat_interleave(NUM_DRAWN, dim=0), again)
            drawn = (pending - first)[:, None] * NUM_DRAWN + torch.arange(NUM_DRAWN, device=stream.device)
            unique = ~self.solve(fresh["grids"][drawn.flatten()]).ambiguous.view_as(drawn)
            is_solved = unique.any(dim=1)
            chosen = drawn[is_solved].gather(1, unique[is_solved].int().argmax(dim=1, keepdim=True))[:, 0]
            for name, column in fresh.items():
                puzzles[name][pending[is_solved]] = column[chosen]
            pending = pending[~is_solved]
        if len(pending):
            rules = self.describe(tuple(modules[pending[0]].tolist()))
            raise InputError(
                f"no unambiguous puzzle among {MAX_REDRAWS * NUM_DRAWN} with the rules {rules}, num_values is "
                f"{self.num_values} at grid size {self.grid_size}: expected larger values, or unambiguous=False"
            )

    def solve(self, grids: Int[Tensor, "batch row column position"]) -> Solution:
        """All consistent answers, with every multiset of rules, trained or held out, equally likely."""
        return solve(grids, self.num_values, permuted=self.permuted)[0]

    def loss(self, predictions: Tensor, batch: Batch) -> Float[Tensor, ""]:
        """Cross-entropy, the mean over the features of the last panel."""
        return cross_entropy(self.read(predictions).flatten(0, 1), batch.targets.flatten())

    def metrics(self, predictions: Tensor, batch: Batch) -> dict[str, Ratio]:
        """Accuracy of the whole panel, and of its features."""
        right = (self.read(predictions).argmax(dim=-1) == batch.targets).double()
        ones = torch.ones_like(right[:, 0])
        return {"accuracy": Ratio(right.amin(dim=1), ones), "feature_accuracy": Ratio(right.mean(dim=1), ones)}

    def read(self, predictions: Tensor) -> Float[Tensor, "batch position value"]:
        """The logits of the query tokens, from those alone or from all tokens."""
        lengths = (self.num_features, self.sequence_length)
        if predictions.ndim != 3 or predictions.shape[1] not in lengths or predictions.shape[2] != self.num_values:
            expected = f"(batch, {lengths[0]} or {lengths[1]} tokens, {self.num_values} values)"
            raise InputError(f"predictions have shape {tuple(predictions.shape)}: expected {expected}")
        return predictions[:, -self.num_features :]

    def chance(self, batch: Batch) -> Float[Tensor, "batch position value"]:
        """A constant panel. Under every rule the last value is uniform, so all panels are equally likely: K^-M."""
        return self.predict_answers(torch.zeros_like(batch.targets))

    def best_predictions(
        self, batch: Batch, *, split: SplitName | None, metric: str
    ) -> Float[Tensor, "batch position value"]:
        """The most probable panel given the visible ones or, for `feature_accuracy`, the most probable values; exact."""
        check_choice("metric", metric, ("accuracy", "feature_accuracy"))
        return self._answer(batch, [split])[0][metric]

    def reference_predictions(
        self, batch: Batch, *, split: SplitName, metrics: Sequence[str]
    ) -> dict[Reference, dict[str, Tensor]]:
        """One search for both priors and both metrics."""
        ceiling, agnostic = self._answer(batch, [split, None])
        return {"chance": dict.fromkeys(metrics, self.chance(batch)), "ceiling": ceiling, "agnostic": agnostic}

    def _answer(self, batch: Batch, splits: Sequence[SplitName | None]) -> list[dict[str, Tensor]]:
        """The best predictions for each metric, under the prior of each split."""
        priors = [None if split is None else self.split.compositions(split) for split in splits]
        answers = []
        for solution in solve(batch.info["grids"], self.num_values, priors=priors, permuted=self.permuted):
            missing = int((solution.num_answers == 0).sum())
            if missing:
                raise InputError(f"{missing} puzzles fit no rules of the split: expected a batch of the same split")
            features = solution.best_features(self.num_values)
            answers.append(
                {"accuracy": self.predict_answers(solution.best), "feature_accuracy": self.predict_answers(features)}
            )
        return answers

    def baselines(self, batch: Batch) -> dict[str, Float[Tensor, "batch position value"]]:
        """Simple predictors that a model should beat."""
        answers = {
            "most frequent answer": self.most_frequent_answer.to(batch.targets).expand_as(batch.targets),
            "panel to the left": batch.info["grids"][:, -1, -2],
        }
        return {name: self.predict_answers(answer) for name, answer in answers.items()}

    @cached_property
    def most_frequent_answer(self) -> Int[Tensor, " position"]:
        """The answer that occurs most often among 65,536 puzzles of the training multisets."""
        stream = Stream(self.name, self.seed, "most frequent answer", rows=range(65_536))
        _, modules = self.draw_compositions("train", stream)
        answers = self.draw_puzzles(modules, stream)["grids"][:, -1, -1]
        different, count = answers.unique(dim=0, return_counts=True)
        return different[count.argmax()]

    def reading(self) -> Reading:
        return SRavenReading(self)

    def text_form(self) -> TextForm:
        return SRavenText(self)

    @property
    def success_criterion(self) -> str:
        return "every feature of the last panel is right"

    def judge(self, predictions: Tensor, batch: Batch) -> tuple[Tensor, Bool[Tensor, " batch"]]:
        answers = self.read(predictions).argmax(dim=-1)
        return answers, (answers == batch.targets).all(dim=1)

    def card(self, batch: Batch, row: int, answer: Tensor) -> Card:
        return make_card(self, batch, row, answer)

    def describe(self, composition: Composition) -> str:
        return " + ".join(RULES[rule] for rule in composition)

    def render(self, batch: Batch, row: int) -> str:
        grid, rules, permutations = (batch.info[name][row] for name in ("grids", "rules", "permutations"))
        return write_puzzle(grid, rules, permutations, self.solve(grid[None]))

    def picture(self, batch: Batch, row: int) -> Markup:
        """One puzzle, with its rules and answers."""
        grid = batch.info["grids"][row]
        rules = [RULES[rule] for rule in batch.latents[row].tolist()]
        return draw_puzzle(grid, self.num_values, solution=self.solve(grid[None]), rules=rules)

    def columns(self, batch: Batch) -> dict[str, Tensor]:
        solution = self.solve(batch.info["grids"])
        return {
            "panels": batch.info["grids"].flatten(1, 2)[:, :-1],
            "rules": batch.info["rules"],
            "permutations": batch.info["permutations"],
            "ambiguous": solution.ambiguous,
            "num_answers": solution.num_answers,
            "posterior_of_target": solution.probability_of(batch.targets),
        }


NUMBER = r"(?:0|[1-9]\d*)"


class SRavenText(TextForm):
    """Panels as numbers."""

    task: SRaven

    @property
    def instructions(self) -> str:
        size, features, values = self.task.grid_size, self.task.num_features, self.task.num_values
        moved = "at the same position in every column"
        if self.task.permuted:
            moved = (
                "not always at the same position: each column has an order of the features of its own, which is the same "
                "in all rows"
            )
        return (
            f"A puzzle is a grid of {size} x {size} panels, separated by |. A panel has {features} numbers from 0 to "
            f"{values - 1}, one for each feature. A feature is {moved}. From left to right, each feature follows one of "
            "these rules, the same in every row: constant (the number stays the same); progression (it changes by +1, +2, -1 "
            "or -2 from column to column); addition (the last number is the sum of the others); subtraction (the last number "
            f"is the first minus the others); distribute (the same {size} different numbers occur in every row, in any "
            f"order). All sums are modulo {values}. Find the last panel, with its numbers in the order of the last column."
        )

    @property
    def answer_format(self) -> str:
        return f"its {self.task.num_features} numbers, separated by spaces, and nothing else"

    @property
    def pattern(self) -> str:
        return NUMBER + rf"(?:,? {NUMBER}){{{self.task.num_features - 1}}}"

    def write_question(self, batch: Batch, row: int) -> str:
        panels = batch.info["grids"][row].tolist()
        panels[-1][-1] = ["?"] * self.task.num_features
        lines = [" | ".join(" ".join(map(str, panel)) for panel in line) for line in panels]
        return "\n".join(f"Row {number + 1}: {line}" for number, line in enumerate(lines))

    def write_answers(self, batch: Batch, row: int) -> list[str]:
        return [" ".join(map(str, batch.targets[row].tolist()))]

    def predict(self, answers: Sequence[str | None], batch: Batch) -> Tensor:
        """Numbers that are missing or out of range are replaced by wrong ones."""
        wrong = (batch.targets + 1) % self.task.num_values
        none = [-1] * self.task.num_features
        numbers = [none if answer is None else [int(number[:9]) for number in answer.split()] for answer in answers]
        given = torch.tensor(numbers)
        return self.task.predict_answers(torch.where((given >= 0) & (given < self.task.num_values), given, wrong))


class SRavenReading(Reading):
    """The rule of the last feature of unpermuted puzzles, and the code of its row."""

    task: SRaven
    instances = "puzzles without permutations"
    codes = "the last query token attending to the same feature in its own row, and to itself"
    labels = "the rule of the last feature"
    group_names = RULES

    def __init__(self, task: SRaven) -> None:
        super().__init__(replace(task, permuted=False))

    @property
    def keys(self) -> tuple[int, ...]:
        return tuple(-1 - column * self.task.num_features for column in reversed(range(self.task.grid_size)))

    def label(self, batch: Batch) -> Float[Tensor, "rows modules"]:
        return one_hot(self.group(batch), len(self.modules)).float()

    @property
    def swap(self) -> Reading:
        return self

    def group(self, batch: Batch) -> Int[Tensor, " rows"]:
        """The rule of the last feature."""
        return batch.info["rules"][:, -1]

    def read_answer(self, predictions: Tensor) -> Int[Tensor, " rows"]:
        """The value of the last feature."""
        return predictions[:, -1].argmax(dim=-1)

    def counterfactual(
        self, batch: Batch, partner: Int[Tensor, " rows"], answers: Shaped[Tensor, " rows *outputs"]
    ) -> Counterfactual:
        """The result of the partner's rule on the row. Distribute three is left out: it cannot be applied to another row."""
        rules, own = self.group(batch), batch.targets[:, -1]
        *columns, _ = batch.info["grids"][:, -1, :, -1].unbind(dim=1)
        deduced = torch.cat([deduce_last(columns, self.task.num_values), own[None]])
        other = deduced.gather(0, rules[partner][None])[0]
        distinct = (rules[partner] != rules) & (rules[partner] != DISTRIBUTE) & (other != own)
        return Counterfactual(own=own, other=other, distinct=distinct)
