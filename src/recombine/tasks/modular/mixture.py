"""Tasks that mix a few of M modules with strengths, and state the mixture in their inputs (SC, arXiv 2507.07207)."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from jaxtyping import Float, Int
from torch import Tensor

from recombine.compositions import CompositionSplit
from recombine.foundation.errors import check_positive
from recombine.random import Stream
from recombine.tasks.base import Task
from recombine.tasks.modular.encodings import Encoding, build_encoder, check_encoding
from recombine.tasks.modular.supports import Support, split_support
from recombine.tasks.modular.teacher import Latents, draw_strengths


@dataclass(frozen=True, kw_only=True)
class MixtureTask(Task):
    """Settings, splits, strengths and encodings of mixtures; `info["strengths"]` of a batch holds the strengths."""

    num_modules: int = 16
    """Number of modules."""
    num_active: int = 3
    """Maximum number of modules in a training task."""
    latents: Latents = "discrete"
    """Strengths of active modules: 0.5, 0.6, ..., 1 (discrete), always 1 (k_hot), or any from 0.5 to 1 (continuous)."""
    encoding: Encoding = "identity"
    """How the task is encoded in the inputs."""
    support: Support = "random"
    """Which compositions are trained."""
    held_out: float = 0.25
    """Fraction of compositions held out. disconnected and non_compositional ignore it; unpopular_modules may exceed it."""

    def __post_init__(self) -> None:
        check_positive(num_modules=self.num_modules, num_active=self.num_active)
        check_encoding(self.encoding, latents=self.latents, num_modules=self.num_modules)
        _ = self.split  # raise an error now if the split cannot cover all modules

    @property
    def most_active(self) -> int:
        """Maximum number of modules in any task, trained or not."""
        return self.num_active

    @property
    def encoding_dim(self) -> int:
        return self.num_modules * (2 if self.encoding == "tokens" else 1)

    @cached_property
    def split(self) -> CompositionSplit:
        sizes = (self.num_modules, self.num_active, self.most_active)
        return split_support(self.support, *sizes, held_out=self.held_out, seed=self.seed)

    def draw_strengths(self, modules: Int[Tensor, "rows active"], stream: Stream) -> Float[Tensor, "rows modules"]:
        """Random strengths of these modules, 0 for all others."""
        return draw_strengths(modules, stream, num_modules=self.num_modules, latents=self.latents)

    def encode(self, strengths: Float[Tensor, "rows modules"]) -> Float[Tensor, "rows features"]:
        """The encoding of tasks with these strengths."""
        encode = build_encoder(self.encoding, self.name, self.seed, size=self.num_modules, device=strengths.device)
        return encode(strengths)
