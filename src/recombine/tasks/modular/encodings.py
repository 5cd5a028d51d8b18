"""How a task is told to a network: six encodings of its strengths z, one for each module (SC, arXiv 2507.07207).

    identity          z itself
    orthogonal        a random rotation of z
    tokens            for each active module its number and floor(10 z), as plain numbers; (0, 0) fills what is left
    invertible        three affine couplings (Dinh et al. 2017), which mix the modules: b <- b exp(s(a)) + t(a)
    interval_shuffle  one permutation of the ten intervals [0, .1), ..., [.9, 1), in each entry; 1 stays 1
    few_shot          examples (x, y) of the task, flattened: made by the task itself, for it needs the teacher

All but `few_shot` are injective: `tokens` on multiples of 0.1, the others everywhere. In float32, 0.7 is less than seven
tenths: the interval of a number is therefore found in float64, with a number so close below a border put on it.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor

from recombine.errors import InputError, check_positive
from recombine.tasks.modular.strengths import Latents
from recombine.tasks.modular.teacher import draw_weights
from recombine.tasks.stream import Stream

Encode = Callable[[Tensor, Tensor], Tensor]
Encoding = Literal["identity", "orthogonal", "tokens", "invertible", "interval_shuffle", "few_shot"]

NUM_INTERVALS = 10
BORDER = 1e-6  # of an interval's width: what rounding to float32 can take from a multiple of 0.1, and hardly more
NUM_COUPLINGS = 3
COUPLING_DIM = 32  # hidden features of a coupling's network
COUPLING_GAIN = 1.0  # enough for tanh to bend: with small weights each coupling would be nearly affine


def find_intervals(z: Float[Tensor, "*shape"]) -> tuple[Int[Tensor, "*shape"], Float[Tensor, "*shape"]]:
    """The number of each entry's interval, floor(10 z), and how far into it the entry lies, 0 to 1, in float64."""
    scaled = z.double() * NUM_INTERVALS
    interval = (scaled + BORDER * NUM_INTERVALS).floor()
    return interval.long(), (scaled - interval).clamp_min(0)


def encode_tokens(
    z: Float[Tensor, "rows modules"], modules: Int[Tensor, "rows active"], num_slots: int
) -> Float[Tensor, "rows features"]:
    """Number and level of each active module, interleaved; -1 in `modules` stands for none."""
    active = modules >= 0
    number = modules.clamp_min(0)
    level = find_intervals(z)[0].gather(1, number)
    tokens = torch.stack([number * active, level * active], dim=-1).flatten(1).to(z.dtype)
    return torch.nn.functional.pad(tokens, (0, 2 * num_slots - tokens.shape[1]))


def draw_rotation(*key: object, size: int) -> Float[Tensor, "size size"]:
    """A uniformly random orthogonal matrix."""
    normal = draw_weights(Stream(*key, "rotation", rows=range(size)), "normal", 1.0, 1, size)[:, 0]
    q, r = torch.linalg.qr(normal.double())
    return (q * r.diagonal().sign()).float()


def draw_interval_order(*key: object) -> Int[Tensor, " intervals"]:
    """Where each interval goes."""
    return Stream(*key, "intervals", rows=range(1)).permutations(NUM_INTERVALS)[0]


def shuffle_intervals(z: Float[Tensor, "*shape"], order: Int[Tensor, " intervals"]) -> Float[Tensor, "*shape"]:
    """Move each entry with its interval; 1, the end of the last one, has no room behind another and stays."""
    interval, offset = find_intervals(z)
    moved = (order[interval.clamp_max(NUM_INTERVALS - 1)] + offset) / NUM_INTERVALS
    return torch.where(interval < NUM_INTERVALS, moved, z.double()).to(z.dtype)


@dataclass(frozen=True)
class InvertibleNetwork:
    """Affine couplings; between two of them the halves change places, so that each half is moved by the other."""

    order: Int[Tensor, " size"]
    hidden: Float[Tensor, "couplings half hidden"]
    biases: Float[Tensor, "couplings hidden"]
    scale: Float[Tensor, "couplings hidden half"]
    shift: Float[Tensor, "couplings hidden half"]

    def to(self, device: torch.device | str) -> InvertibleNetwork:
        parts = (self.order, self.hidden, self.biases, self.scale, self.shift)
        return InvertibleNetwork(*(part.to(device) for part in parts))

    def forward(self, z: Float[Tensor, "rows size"]) -> Float[Tensor, "rows size"]:
        first, second = z[:, self.order].chunk(2, dim=1)
        for number in range(NUM_COUPLINGS):
            scale, shift = self._couple(first, number)
            first, second = second * scale + shift, first
        return torch.cat([first, second], dim=1)

    def inverse(self, code: Float[Tensor, "rows size"]) -> Float[Tensor, "rows size"]:
        first, second = code.chunk(2, dim=1)
        for number in reversed(range(NUM_COUPLINGS)):
            scale, shift = self._couple(second, number)
            first, second = second, (first - shift) / scale
        return torch.cat([first, second], dim=1)[:, self.order.argsort()]

    def _couple(self, half: Tensor, number: int) -> tuple[Tensor, Tensor]:
        hidden = torch.tanh(half @ self.hidden[number] + self.biases[number])
        return torch.tanh(hidden @ self.scale[number]).exp(), hidden @ self.shift[number]


def draw_invertible(*key: object, size: int) -> InvertibleNetwork:
    """A random invertible network of an even number of features."""
    _check_halves(size)
    stream = Stream(*key, "couplings", rows=range(NUM_COUPLINGS))
    half, gain = size // 2, COUPLING_GAIN**2
    return InvertibleNetwork(
        order=Stream(*key, "order", rows=range(1)).permutations(size)[0],
        hidden=draw_weights(stream, "normal", gain * half, half, COUPLING_DIM),
        biases=stream.uniform(COUPLING_DIM) * 2 - 1,
        scale=draw_weights(stream, "normal", gain, COUPLING_DIM, half),
        shift=draw_weights(stream, "normal", gain, COUPLING_DIM, half),
    )


def _check_halves(size: int) -> None:
    check_positive(size=size)
    if size % 2:
        raise InputError(f"encoding invertible of {size} modules: expected an even number, as couplings take halves")


def check_encoding(encoding: Encoding, *, latents: Latents, num_modules: int) -> None:
    """Refuse an encoding that these latents or this number of modules do not have."""
    if encoding == "tokens" and latents == "continuous":
        raise InputError("encoding tokens of continuous latents: expected discrete or k_hot, as it tells tenths only")
    if encoding == "invertible":
        _check_halves(num_modules)


def encode_strengths(
    encoding: Encoding,
    *key: object,
    strengths: Float[Tensor, "rows modules"],
    modules: Int[Tensor, "rows active"],
    num_slots: int,
) -> Float[Tensor, "rows features"]:
    """The strengths of tasks as a network is told them; the key (task name, seed, ...) decides what is random."""
    encode = build_encoder(encoding, *key, size=strengths.shape[1], num_slots=num_slots, device=strengths.device)
    return encode(strengths, modules)


@lru_cache(maxsize=32)
def build_encoder(encoding: Encoding, *key: object, size: int, num_slots: int, device: torch.device) -> Encode:
    """From the strengths of a task, and its modules in at most `num_slots` columns, to its code; few_shot has none."""
    assert encoding != "few_shot"
    if encoding == "orthogonal":
        rotation = draw_rotation(*key, size=size).to(device)
        return lambda z, _: z @ rotation
    if encoding == "invertible":
        network = draw_invertible(*key, size=size).to(device)
        return lambda z, _: network.forward(z)
    if encoding == "interval_shuffle":
        order = draw_interval_order(*key).to(device)
        return lambda z, _: shuffle_intervals(z, order)
    if encoding == "tokens":
        return lambda z, modules: encode_tokens(z, modules, num_slots)
    return lambda z, _: z


def measure_linearity(
    codes: Float[Tensor, "rows features"], z: Float[Tensor, "rows modules"], fitted: int
) -> tuple[float, float]:
    """R² of z read linearly from its code, ridge regression on the first rows: on as many others, and on the rest."""
    codes, z = codes.double(), z.double()
    mean, deviation = codes[:fitted].mean(dim=0), codes[:fitted].std(dim=0).clamp_min(1e-9)
    x = torch.cat([(codes - mean) / deviation, torch.ones(len(codes), 1, dtype=codes.dtype)], dim=1)
    gram = x[:fitted].T @ x[:fitted] + x.shape[1] * torch.eye(x.shape[1], dtype=x.dtype)
    read = x @ torch.linalg.solve(gram, x[:fitted].T @ z[:fitted])
    return _explained(read, z, slice(fitted, 2 * fitted)), _explained(read, z, slice(2 * fitted, None))


def _explained(read: Tensor, z: Tensor, rows: slice) -> float:
    error = (read[rows] - z[rows]).square().sum()
    total = (z[rows] - z[rows].mean(dim=0)).square().sum()
    return float(1 - error / total) if total > 0 else math.nan
