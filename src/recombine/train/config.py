"""How a model is trained: the settings of a training, and the version of what they mean."""

from __future__ import annotations

from dataclasses import dataclass

from recombine.errors import check_positive, require
from recombine.optim import Schedule
from recombine.precision import Precision
from recombine.settings import Settings

# Raise it when the same configuration gives other parameters than before: another order of batches, schedule or update.
TRAINING_VERSION = 1


@dataclass(frozen=True, kw_only=True)
class TrainingConfig(Settings):
    """How a model is trained."""

    steps: int = 50_000
    """Number of optimizer steps."""
    batch_size: int = 128
    """Instances per step."""
    learning_rate: float = 1e-3
    """Peak learning rate."""
    weight_decay: float = 0.1
    """Decoupled weight decay of parameters with two or more dimensions."""
    warmup_steps: int = 100
    """Number of steps in which the learning rate rises linearly from 0."""
    schedule: Schedule = "cosine"
    """Learning rate after the warm-up."""
    final_fraction: float = 0.1
    """Learning rate at the end of the cosine, as a fraction of the peak."""
    beta2: float = 0.999
    """Decay rate of AdamW's second moments."""
    gradient_clip: float | None = None
    """Largest norm of the gradient (default: not clipped)."""
    precision: Precision = "float32"
    """Precision of the forward pass. With bf16, parameters, scores and optimizer stay float32."""
    model_seed: int | None = None
    """Random seed for the initial parameters (default: the task's seed)."""

    def __post_init__(self) -> None:
        check_positive(steps=self.steps, batch_size=self.batch_size)
        require(self.learning_rate > 0, "learning_rate", self.learning_rate, "a positive number")
        require(self.weight_decay >= 0, "weight_decay", self.weight_decay, "0 or a positive number")
        require(self.warmup_steps >= 0, "warmup_steps", self.warmup_steps, "0 or a positive whole number")
        require(0 <= self.final_fraction <= 1, "final_fraction", self.final_fraction, "a number from 0 to 1")
        require(0 <= self.beta2 < 1, "beta2", self.beta2, "a number from 0 to below 1")
        clip = self.gradient_clip
        require(clip is None or clip > 0, "gradient_clip", clip, "a positive number")
