"""SRAVEN, a symbolic Raven's progressive matrix (Attention as a Hypernetwork, arXiv 2406.05816, section 4).

A puzzle is a grid of G x G panels; a panel holds M features, each a value in 0..K-1. Every latent feature follows one of
eight rules along all rows (see `sraven_rules`), and the last panel is to be predicted. A task is a *multiset* of M rules:
which feature follows which rule is drawn anew for each puzzle, and so is one permutation of the features for each column,
the same in all rows, that hides which positions belong together.

Tokens, one one-hot value each: the G² - 1 visible panels in reading order, the M features of a panel in their column's
order; then M empty (all-zero) tokens that ask for the features of the last panel, in the order of the last column.

A puzzle can have several answers that some rules and permutations explain, a quarter of them do at M=4, K=8; the solver
(`sraven_solver`) knows them all, and its accuracy is the ceiling. `unambiguous=True` draws puzzles again, keeping their
multiset of rules, until there is one answer only.

Generation: a row of a feature is an entry of a table, which lists the K^(G-1) rows of each rule that fills the last
column from free values, then the C(K, G) G! rows of distribute; a progression repeats its K rows as often as needed.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path
from typing import ClassVar

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn.functional import cross_entropy, one_hot

from recombine.compositions import Composition, CompositionSplit, all_multisets, split_compositions
from recombine.errors import InputError, check_positive
from recombine.tasks.base import Batch, Ratio, SplitName, Stream, Task
from recombine.tasks.sraven_picture import draw_puzzle, write_puzzle
from recombine.tasks.sraven_rules import DISTRIBUTE, RULES, STEPS, check_sizes, deduce_last
from recombine.tasks.sraven_solver import Solution, solve

MAX_TABLE_ROWS = 1 << 21
MAX_TABULATED_PERMUTATION = 7
MAX_ATTEMPTS = 200  # to find an unambiguous puzzle of a given multiset


@dataclass(frozen=True, kw_only=True)
class SRaven(Task):
    """Complete a symbolic Raven matrix whose features follow hidden rules."""

    name: ClassVar[str] = "sraven"
    summary: ClassVar[str] = "complete a symbolic Raven matrix from the rules of its features (AH, section 4)"
    splits: ClassVar[tuple[SplitName, ...]] = ("train", "test", "ood")
    evaluation_instances: ClassVar[int] = 51_200

    num_features: int = 4
    """Features of a panel, each with a rule."""
    num_values: int = 8
    """Values a feature can take."""
    grid_size: int = 3
    """Rows and columns of panels."""
    held_out: float = 0.25
    """Fraction of the multisets of rules that are never trained."""
    permuted: bool = True
    """Reorder the features in each column, so that correspondences must be found."""
    unambiguous: bool = False
    """Draw only puzzles with one possible answer (slow: the exact solver checks each)."""

    def __post_init__(self) -> None:
        check_positive(num_features=self.num_features)
        check_sizes(num_values=self.num_values, grid_size=self.grid_size)
        num_rows = DISTRIBUTE * self.num_free_rows + self.num_sets * self.num_orders
        if num_rows > MAX_TABLE_ROWS:
            raise InputError(
                f"num_values is {self.num_values} at grid size {self.grid_size}, which allows {num_rows} different rows "
                f"of a feature: expected at most {MAX_TABLE_ROWS}"
            )
        _ = self.split  # refuse what cannot be covered before anything is built on it

    @property
    def num_free_rows(self) -> int:
        """Rows of a rule with G - 1 free values."""
        return self.num_values ** (self.grid_size - 1)

    @property
    def num_sets(self) -> int:
        """Sets of values that distribute chooses from."""
        return math.comb(self.num_values, self.grid_size)

    @property
    def num_orders(self) -> int:
        """Orders that distribute can bring a set into."""
        return math.factorial(self.grid_size)

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

    def sample(
        self,
        split: SplitName,
        index: int,
        *,
        batch_size: int = 128,
        rows: range | None = None,
        device: torch.device | str = "cpu",
    ) -> Batch:
        """Batch `index` of a split, or only the given rows of it.

        - `inputs` (batch, token, value): one-hot float32, see the module's docstring for the order of tokens;
        - `targets` (batch, feature): the values of the last panel, in the order of the last column;
        - `latents` (batch, feature): the sorted multiset of rules, numbered as in `RULES`;
        - `info["rules"]` (batch, latent feature): the rule that each latent feature follows;
        - `info["permutations"]` (batch, column, position): the latent feature at each position of each column;
        - `info["grids"]` (batch, row, column, position): all values, those of the last panel included.
        """
        stream = self.stream(split, index, range(batch_size) if rows is None else rows, device)
        composition, modules = self.draw_compositions(split, stream)
        puzzles = self._draw_puzzles(modules, stream)
        if self.unambiguous:
            self._redraw_ambiguous(puzzles, modules, stream)
        visible = puzzles["grids"].flatten(1)[:, : -self.num_features]
        inputs = torch.zeros(len(visible), self.sequence_length * self.num_values, device=stream.device)
        first = torch.arange(0, visible.shape[1] * self.num_values, self.num_values, device=stream.device)
        inputs.scatter_(1, visible + first, 1.0)
        return Batch(
            inputs.view(len(visible), self.sequence_length, self.num_values),
            puzzles["grids"][:, -1, -1].contiguous(),
            modules,
            {"composition": composition, **puzzles},
        )

    def _draw_puzzles(self, modules: Int[Tensor, "rows features"], stream: Stream) -> dict[str, Tensor]:
        """Rules, permutations and grids for multisets of rules."""
        num_features, grid_size = self.num_features, self.grid_size
        arrangement, *columns = self._draw_permutations(grid_size + 1, stream)
        rules = modules.gather(1, arrangement)
        if self.permuted:
            permutations = torch.stack(columns, dim=1)
        else:  # the same numbers are drawn, so that switching permutations off changes nothing else
            permutations = torch.arange(num_features, device=stream.device).expand(len(rules), grid_size, -1).clone()
        radices = [*[self.num_free_rows] * grid_size, self.num_sets, *[self.num_orders] * grid_size]
        digits = stream.digits(radices, num_features)
        free, orders = torch.stack(digits[:grid_size], dim=1), torch.stack(digits[grid_size + 1 :], dim=1)
        distributed = DISTRIBUTE * self.num_free_rows + self.num_orders * digits[grid_size][:, None] + orders
        other = self.num_free_rows * rules[:, None] + free
        entry = torch.where((rules == DISTRIBUTE)[:, None], distributed, other)  # (rows, row, latent feature)
        shape = (len(rules), grid_size, grid_size, num_features)
        entry = entry[:, :, None].expand(shape).gather(3, permutations[:, None].expand(shape))
        table = tabulate_rows(self.num_values, grid_size, stream.device)
        column = torch.arange(grid_size, device=stream.device)[:, None] * table.shape[1]
        return {"rules": rules, "permutations": permutations, "grids": table.take(entry + column)}

    def _draw_permutations(self, count: int, stream: Stream) -> Iterable[Int[Tensor, "rows features"]]:
        if self.num_features > MAX_TABULATED_PERMUTATION:
            return stream.permutations(self.num_features, count).unbind(dim=1)
        table = tabulate_permutations(self.num_features, stream.device)
        return [table[number] for number in stream.digits([len(table)] * count)]

    def _redraw_ambiguous(self, puzzles: dict[str, Tensor], modules: Tensor, stream: Stream) -> None:
        """Replace ambiguous puzzles by fresh ones of the same multiset; a row's attempts depend on that row alone."""
        pending = self.solve(puzzles["grids"]).ambiguous.nonzero()[:, 0]
        for attempt in range(1, MAX_ATTEMPTS):
            if len(pending) == 0:
                return
            first, last = int(pending[0]), int(pending[-1]) + 1
            again = Stream(*stream.key, "attempt", attempt, rows=stream.rows[first:last], device=stream.device)
            fresh = self._draw_puzzles(modules[first:last], again)
            unique = ~self.solve(fresh["grids"][pending - first]).ambiguous
            for name, drawn in fresh.items():
                puzzles[name][pending[unique]] = drawn[pending[unique] - first]
            pending = pending[~unique]
        if len(pending):
            rules = self.describe(tuple(modules[pending[0]].tolist()))
            raise InputError(
                f"no unambiguous puzzle of the rules {rules} in {MAX_ATTEMPTS} attempts with num_values "
                f"{self.num_values}: expected more values, or unambiguous=False"
            )

    def solve(self, grids: Int[Tensor, "batch row column feature"]) -> Solution:
        """What the visible panels say, when each multiset of rules, held out or not, is equally likely."""
        return solve(grids, self.num_values, permuted=self.permuted)

    def loss(self, predictions: Tensor, batch: Batch) -> Float[Tensor, ""]:
        """Cross-entropy, the mean over the features of the last panel."""
        return cross_entropy(self.read(predictions).flatten(0, 1), batch.targets.flatten())

    def metrics(self, predictions: Tensor, batch: Batch) -> dict[str, Ratio]:
        """How often the whole panel is right, and how many of its features are."""
        right = (self.read(predictions).argmax(dim=-1) == batch.targets).double()
        ones = torch.ones_like(right[:, 0])
        return {"accuracy": Ratio(right.amin(dim=1), ones), "feature_accuracy": Ratio(right.mean(dim=1), ones)}

    def read(self, predictions: Tensor) -> Float[Tensor, "batch feature value"]:
        """The logits of the query tokens, from those alone or those of all tokens."""
        lengths = (self.num_features, self.sequence_length)
        if predictions.ndim != 3 or predictions.shape[1] not in lengths or predictions.shape[2] != self.num_values:
            raise InputError(
                f"predictions have shape {tuple(predictions.shape)}: expected (batch, {lengths[0]} or {lengths[1]} "
                f"tokens, {self.num_values} values)"
            )
        return predictions[:, -self.num_features :]

    def chance(self, batch: Batch) -> Float[Tensor, "batch feature value"]:
        """A constant panel. Rules make every value of every feature equally likely, so that any is as good: K^-M."""
        return self._predict(torch.zeros_like(batch.targets))

    def oracle(self, batch: Batch) -> Float[Tensor, "batch feature value"]:
        """The most probable answer given the visible panels, see `solve`."""
        return self._predict(self.solve(batch.info["grids"]).best)

    def baselines(self, batch: Batch) -> dict[str, Float[Tensor, "batch feature value"]]:
        """Predictors worth a line in a table: each must be beaten before anything is called reasoning."""
        return {
            "most frequent answer": self._predict(self.most_frequent_answer.to(batch.targets).expand_as(batch.targets)),
            "panel to the left": self._predict(batch.info["grids"][:, -1, -2]),
        }

    @cached_property
    def most_frequent_answer(self) -> Int[Tensor, " feature"]:
        """The answer that occurs most often in 65,536 puzzles of the training rules."""
        stream = Stream(self.name, self.seed, "most frequent answer", rows=range(65_536))
        _, modules = self.draw_compositions("train", stream)
        answers = self._draw_puzzles(modules, stream)["grids"][:, -1, -1]
        different, count = answers.unique(dim=0, return_counts=True)
        return different[count.argmax()]

    def _predict(self, answers: Int[Tensor, "batch feature"]) -> Float[Tensor, "batch feature value"]:
        return one_hot(answers, self.num_values).float()

    def describe(self, composition: Composition) -> str:
        return " + ".join(RULES[rule] for rule in composition)

    def render(self, batch: Batch, row: int) -> str:
        return write_puzzle(self, batch, row)

    def draw(self, batch: Batch, row: int, path: Path | str) -> None:
        """Write a picture of one puzzle: PNG, SVG or PDF, as the path ends."""
        draw_puzzle(self, batch, row, path)

    def columns(self, batch: Batch) -> dict[str, Tensor]:
        """Panels, answer, latents, and what the solver says about the puzzle."""
        solution = self.solve(batch.info["grids"])
        return {
            "panels": batch.info["grids"].flatten(1, 2)[:, :-1],
            "answer": batch.targets,
            "rules": batch.info["rules"],
            "permutations": batch.info["permutations"],
            "ambiguous": solution.ambiguous,
            "num_answers": solution.num_answers,
            "posterior_of_answer": solution.probability_of(batch.targets),
            "composition": batch.composition,
        }


@lru_cache(maxsize=16)
def tabulate_rows(num_values: int, grid_size: int, device: torch.device) -> Int[Tensor, "column row"]:
    """Every row that a feature can have: those of each rule with free values, rule by rule, then those of distribute."""
    free = torch.cartesian_prod(*[torch.arange(num_values)] * (grid_size - 1)).view(-1, grid_size - 1)
    *_, added, subtracted = deduce_last(free.unbind(dim=1), num_values)
    advance = torch.arange(grid_size)
    rows = [(free[:, :1] + step * advance) % num_values for step in STEPS]
    rows += [torch.cat([free, last[:, None]], dim=1) for last in (added, subtracted)]
    sets = torch.combinations(torch.arange(num_values), grid_size)
    orders = tabulate_permutations(grid_size, torch.device("cpu"))
    rows.append(sets[:, orders].flatten(0, 1))
    return torch.cat(rows).T.contiguous().to(device)


@lru_cache(maxsize=16)
def tabulate_permutations(size: int, device: torch.device) -> Int[Tensor, "permutation size"]:
    """All orders of 0..size-1, lexicographically."""
    return torch.tensor(list(itertools.permutations(range(size))), device=device)
