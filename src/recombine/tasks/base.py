"""What a task is: a frozen dataclass that samples batches, scores predictions, and knows chance and ceiling.

Streams: batch i of a split is a pure function of (task, seed, split, i). Random numbers are counter-based: number j of
row r in draw d is the SplitMix64 output (Steele, Lea & Flood 2014) at counter r * width + j under a key hashed from
(task, seed, split, i, d). So the same integers come out on every device and library version, no two splits share a
stream, resuming needs no saved generator, and one process of many can make only its own rows of the global batch.
"""

from __future__ import annotations

import hashlib
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, wraps
from pathlib import Path
from typing import Any, ClassVar, Literal, NamedTuple, TypeVar

import torch
from jaxtyping import Float, Int
from torch import Tensor

from recombine.compositions import Composition, CompositionSplit
from recombine.errors import InputError, check_choice

SplitName = Literal["train", "test", "ood", "unknown"]
Value = TypeVar("Value")


@dataclass(frozen=True)
class Batch:
    """Rows of a task; `latents` holds the modules that made each row, `info["composition"]` its composition's number.

    Where compositions differ in size, the shorter ones are filled up with -1.
    """

    inputs: Tensor
    targets: Tensor
    latents: Int[Tensor, "batch size"]
    info: Mapping[str, Tensor] = field(default_factory=dict)

    @property
    def composition(self) -> Int[Tensor, " batch"]:
        """Index of each row's composition in `task.split.compositions(split)`."""
        return self.info["composition"]

    def __len__(self) -> int:
        return len(self.targets)


class Ratio(NamedTuple):
    """A metric before it is summed: its value over any set of rows is sum(numerator) / sum(denominator)."""

    numerator: Float[Tensor, " batch"]
    denominator: Float[Tensor, " batch"]


@dataclass(frozen=True, kw_only=True)
class Audit:
    """A table of facts about a task, for `recombine check`."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str | int | float, ...], ...]
    note: str = ""


def measure_r2(error: Float[Tensor, rows * outputs], variance: Float[Tensor, rows * _]) -> dict[str, Ratio]:
    """R² as the mean over rows and outputs of 1 - error² / variance, and pooled, 1 - sum error² / sum variance.

    An output that hardly varies can outweigh hundreds of others in the mean; it cannot in the pooled one.
    """
    variance = variance.clamp_min(1e-12).expand_as(error).reshape(len(error), -1)
    error = error.reshape(len(error), -1)
    total = variance.sum(dim=1)
    return {
        "r2": Ratio((1 - error / variance).mean(dim=1), torch.ones_like(total)),
        "r2_pooled": Ratio(total - error.sum(dim=1), total),
    }


@dataclass(frozen=True, kw_only=True)
class Task(ABC):
    """One task family at one setting. The dataclass is the configuration; derived values are properties."""

    name: ClassVar[str]
    summary: ClassVar[str]
    splits: ClassVar[tuple[SplitName, ...]] = ("train", "test", "ood")
    evaluation_instances: ClassVar[int] = 16_000  # a split, in a final evaluation
    # whether the tokens that are read see the rest and themselves, not one another
    isolated_queries: ClassVar[bool] = False
    # whether later tokens betray the answers to earlier ones, so that only causal models are asked the question
    betrays_answers: ClassVar[bool] = False

    seed: int = 0
    """Of the split of compositions, of every stream and of the model's first parameters."""

    @cached_property
    @abstractmethod
    def split(self) -> CompositionSplit:
        """Which compositions are trained, held out, unknown."""

    @property
    @abstractmethod
    def input_dim(self) -> int:
        """Features of an input token."""

    @property
    def encoding_dim(self) -> int:
        """How many features, first in each token and the same in all tokens of a row, tell which task it is."""
        return 0

    @property
    @abstractmethod
    def output_dim(self) -> int:
        """Features of a prediction."""

    @property
    @abstractmethod
    def sequence_length(self) -> int:
        """Tokens of an input."""

    @property
    @abstractmethod
    def num_read(self) -> int:
        """How many tokens, at the end of the sequence, are read as predictions."""

    @abstractmethod
    def sample(
        self,
        split: SplitName,
        index: int,
        *,
        batch_size: int = 128,
        rows: range | None = None,
        device: torch.device | str = "cpu",
    ) -> Batch:
        """Batch `index` of a split; with `rows`, only these rows of it."""

    @abstractmethod
    def loss(self, predictions: Tensor, batch: Batch) -> Float[Tensor, ""]:
        """What training minimises."""

    @abstractmethod
    def metrics(self, predictions: Tensor, batch: Batch) -> dict[str, Ratio]:
        """Scores by name, the headline first, per row."""

    @abstractmethod
    def chance(self, batch: Batch) -> Tensor:
        """Predictions of the best predictor that ignores the input."""

    @abstractmethod
    def oracle(self, batch: Batch) -> Tensor:
        """Predictions of the best predictor there is: what the input determines and no more."""

    @abstractmethod
    def describe(self, composition: Composition) -> str:
        """A composition in words or formulas."""

    @abstractmethod
    def render(self, batch: Batch, row: int) -> str:
        """One row of a batch as text, for people."""

    def baselines(self, batch: Batch) -> dict[str, Tensor]:
        """Predictions of simple strategies by name, for comparison."""
        return {}

    def audits(self, num_instances: int) -> list[Audit]:
        """What is worth knowing about the family before training on it, estimated from so many instances."""
        return []

    def draw(self, batch: Batch, row: int, path: Path | str) -> None:
        """Write a picture of one row."""
        raise InputError(f"task {self.name!r} has no picture: expected one that has, such as 'sraven'")

    def columns(self, batch: Batch) -> dict[str, Tensor]:
        """A batch as named columns, for export."""
        return {
            "inputs": batch.inputs,
            "target": batch.targets,
            "latents": batch.latents,
            **batch.info,
        }

    def stream(self, split: SplitName, index: int, rows: range, device: torch.device | str) -> Stream:
        """The random numbers of rows of batch `index` of a split."""
        check_choice("split", split, self.splits)
        return Stream(self.name, self.seed, split, index, rows=rows, device=device)

    def draw_compositions(
        self, split: SplitName, stream: Stream
    ) -> tuple[Int[Tensor, " rows"], Int[Tensor, "rows size"]]:
        """A uniformly random composition for each row: its number, and its modules, then -1 up to the largest."""
        table = self._composition_tables.get((split, stream.device))
        if table is None:
            compositions = self.split.compositions(split)
            size = max(map(len, compositions))
            filled = [(*composition, *[-1] * (size - len(composition))) for composition in compositions]
            table = torch.tensor(filled, device=stream.device)
            self._composition_tables[split, stream.device] = table
        number = stream.integers(len(table), 1)[:, 0]
        return number, table[number]

    @cached_property
    def _composition_tables(self) -> dict[tuple[SplitName, torch.device], Tensor]:
        return {}


def once_per_device(make: Callable[[Any, torch.device], Value]) -> Callable[[Any, torch.device | str], Value]:
    """A method that keeps what it makes for each device: frozen weights move there once."""

    @wraps(make)
    def kept(self: Any, device: torch.device | str) -> Value:
        place = torch.device(device)
        values = vars(self).setdefault(f"{make.__name__} once", {})
        if place not in values:
            values[place] = make(self, place)
        return values[place]

    return kept


_GOLDEN = 0x9E3779B97F4A7C15
_MIX_1, _MIX_2 = 0xBF58476D1CE4E5B9, 0x94D049BB133111EB


class Stream:
    """Random numbers for a range of rows; each call is one draw with a key of its own."""

    def __init__(self, *key: object, rows: range, device: torch.device | str = "cpu") -> None:
        self.key = key
        self.rows = rows
        self.device = torch.device(device)
        self.num_draws = 0

    def bits(self, *shape: int) -> Int[Tensor, "rows ..."]:
        """64 random bits each, for every row."""
        digest = hashlib.sha256(repr((*self.key, self.num_draws)).encode()).digest()
        self.num_draws += 1
        width = math.prod(shape)
        first, last = self.rows.start * width, self.rows.stop * width
        counter = torch.arange(first, last, dtype=torch.int64, device=self.device)
        mixed = counter.mul_(_signed(_GOLDEN)).add_(_signed(int.from_bytes(digest[:8], "little")))
        mixed.bitwise_xor_(_shift_right(mixed, 30)).mul_(_signed(_MIX_1))
        mixed.bitwise_xor_(_shift_right(mixed, 27)).mul_(_signed(_MIX_2))
        return mixed.bitwise_xor_(_shift_right(mixed, 31)).view(len(self.rows), *shape)

    def uniform(self, *shape: int) -> Float[Tensor, "rows ..."]:
        """Uniform in [0, 1), multiples of 2^-24, float32."""
        return _shift_right(self.bits(*shape), 40).to(torch.float32).mul_(2.0**-24)

    def integers(self, high: int, *shape: int) -> Int[Tensor, "rows ..."]:
        """Uniform in 0..high-1; the bias of multiply-and-shift is below high / 2^32."""
        assert 0 < high < 2**31
        return (_shift_right(self.bits(*shape), 32) * high) >> 32

    def digits(self, radices: Sequence[int], *shape: int) -> tuple[Int[Tensor, "rows ..."], ...]:
        """For each radix a tensor of independent uniform numbers below it; one word serves as many as it has bits for.

        The leading B bits of a word are a fraction, written out in mixed radix (Brackett-Rozinsky & Lemire 2024). Every
        joint outcome of the N digits of a word has probability 1/N within a factor of 1 +- N / 2^B, and N <= 2^(B - 20).
        """
        num_bits = 63 - (max(radices) - 1).bit_length()
        assert min(radices) > 0
        assert max(radices) <= 1 << 21
        digits, room = [], 0
        for radix in radices:
            if radix > room:
                fraction = _shift_right(self.bits(*shape), 64 - num_bits)
                room = 1 << (num_bits - 20)
            room //= radix
            scaled = fraction * radix
            digits.append(scaled >> num_bits)
            fraction = scaled & ((1 << num_bits) - 1)
        return tuple(digits)

    def permutations(self, size: int, *shape: int) -> Int[Tensor, "rows ... size"]:
        """Uniformly random orders of 0..size-1."""
        return self.bits(*shape, size).argsort(dim=-1)


def _signed(value: int) -> int:
    return value - 2**64 if value >= 2**63 else value


def _shift_right(bits: Tensor, places: int) -> Tensor:
    """Logical shift: torch's own shift of int64 copies the sign."""
    return (bits >> places).bitwise_and_((1 << (64 - places)) - 1)
