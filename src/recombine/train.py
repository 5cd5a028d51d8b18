"""The training loop: step, log, evaluate, checkpoint.

Training is a pure function of a configuration: the first parameters and batch i come from its seed, so a loop that
starts from a checkpoint ends with the same bits as one that was never stopped. `run.py` puts the loop into a run
directory.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import get_args

import torch
from torch import Tensor, nn

from recombine.errors import InputError, check_choice, check_positive
from recombine.evaluate import Scores, score
from recombine.layers.dropout import DropoutKeys
from recombine.optim import Schedule, build_optimizer, learning_rate
from recombine.precision import Precision, use_precision
from recombine.store import Json, RunDirectory
from recombine.tasks import Task

# Raise it when the same configuration gives other parameters than before: another order of batches, schedule or update.
TRAINING_VERSION = 1
WARMUP_STEPS_OF_CLOCK = 20  # left out of steps a second: compilation, caches, first allocations


class DivergedError(RuntimeError):
    """Training met a loss or a parameter that is not finite."""


@dataclass(frozen=True, kw_only=True)
class TrainingConfig:
    """How a model is trained."""

    steps: int = 50_000
    """Number of optimizer steps."""
    batch_size: int = 128
    """Instances a step."""
    learning_rate: float = 1e-3
    """Peak rate."""
    weight_decay: float = 0.1
    """Decoupled decay of parameters with two or more dimensions."""
    warmup_steps: int = 100
    """Steps of linear warm-up from 0."""
    schedule: Schedule = "cosine"
    """What follows the warm-up."""
    final_fraction: float = 0.1
    """Rate at the end of the cosine, as a fraction of the peak."""
    beta2: float = 0.999
    """Decay of AdamW's second moments."""
    gradient_clip: float | None = None
    """Largest norm of the gradient, if any."""
    precision: Precision = "float32"
    """With bf16 (autocast), parameters, scores and optimizer stay float32."""
    model_seed: int | None = None
    """Seed of the first parameters, if not that of the task."""

    def __post_init__(self) -> None:
        check_positive(steps=self.steps, batch_size=self.batch_size)
        check_choice("precision", self.precision, get_args(Precision))
        check_choice("schedule", self.schedule, get_args(Schedule))
        if not self.learning_rate > 0 or self.weight_decay < 0 or self.warmup_steps < 0:
            raise InputError(
                f"learning rate {self.learning_rate}, weight decay {self.weight_decay}, warm-up {self.warmup_steps}: "
                "expected a positive rate and nothing negative"
            )


@dataclass
class Progress:
    """Where a training stands; passed to whoever watches it."""

    step: int
    steps: int
    loss: float
    steps_per_second: float
    scores: Scores | None = None


Watcher = Callable[[Progress], None]


class Trainer:
    """A module, its optimizer and its clock."""

    def __init__(
        self,
        model: nn.Module,
        task: Task,
        config: TrainingConfig,
        device: torch.device | str,
        *,
        compile: bool = False,
    ) -> None:
        self.model = model.to(device)
        # a whole graph or an error: past its limit of recompilations torch would otherwise go on eagerly and say nothing
        self.forward: Callable[[Tensor], Tensor] = (
            torch.compile(self.model, dynamic=False, fullgraph=True) if compile else self.model
        )
        self.task = task
        self.config = config
        self.device = torch.device(device)
        self.optimizer = build_optimizer(model, weight_decay=config.weight_decay, betas=(0.9, config.beta2))
        self.dropout = DropoutKeys(model)
        self.step = 0

    def advance(self) -> Tensor:
        """One optimizer step; returns its loss, still on the device."""
        config = self.config
        batch = self.task.sample("train", self.step, batch_size=config.batch_size, device=self.device)
        seed = self.task.seed if config.model_seed is None else config.model_seed
        with (
            use_precision(config.precision, self.device, compiled=self.forward is not self.model),
            self.dropout.at(seed, self.step),
        ):
            predictions = self.forward(batch.inputs)
        loss = self.task.loss(predictions.float(), batch)
        self.optimizer.zero_grad(set_to_none=True)
        loss.backward()
        if config.gradient_clip is not None:
            nn.utils.clip_grad_norm_(self.model.parameters(), config.gradient_clip)
        for group in self.optimizer.param_groups:
            group["lr"] = self.rate
        self.optimizer.step()
        self.step += 1
        return loss.detach()

    @property
    def rate(self) -> float:
        config = self.config
        return learning_rate(
            self.step,
            peak=config.learning_rate,
            steps=config.steps,
            warmup_steps=config.warmup_steps,
            final_fraction=config.final_fraction,
            schedule=config.schedule,
        )

    def state(self) -> dict[str, Tensor]:
        """Parameters and optimizer moments under flat names."""
        tensors = {f"model/{name}": value for name, value in self.model.state_dict().items()}
        for name, parameter in self.model.named_parameters():
            for key, value in self.optimizer.state.get(parameter, {}).items():
                tensors[f"optimizer/{key}/{name}"] = value
        return tensors

    def load_state(self, tensors: dict[str, Tensor], step: int) -> None:
        load_model(self.model, tensors)
        for name, parameter in self.model.named_parameters():
            keys = [key for key in ("step", "exp_avg", "exp_avg_sq") if f"optimizer/{key}/{name}" in tensors]
            self.optimizer.state[parameter] = {key: tensors[f"optimizer/{key}/{name}"] for key in keys}
        self.step = step

    def require_finite(self, loss: float) -> None:
        """Raise before anything that is not finite is saved."""
        parameters = self.model.named_parameters()
        broken = next((name for name, parameter in parameters if not torch.isfinite(parameter).all()), None)
        if broken or not math.isfinite(loss):
            what = f"parameter {broken}" if broken else f"loss {loss}"
            raise DivergedError(
                f"training diverged before step {self.step}: {what} is not finite; try a lower learning rate"
            )


def load_model(model: nn.Module, tensors: dict[str, Tensor]) -> None:
    """Fill a model from a checkpoint's tensors; every name and shape must agree."""
    state = {name.removeprefix("model/"): value for name, value in tensors.items() if name.startswith("model/")}
    try:
        model.load_state_dict(state)
    except RuntimeError as error:
        raise InputError(f"the checkpoint does not fit the model: {str(error).splitlines()[-1].strip()}") from None


@dataclass(kw_only=True)
class Clock:
    """Seconds spent in training, and steps a second without the warm-up of each process that trained."""

    seconds: float = 0.0
    timed_steps: int = 0
    timed_seconds: float = 0.0
    _last: float = field(default_factory=time.perf_counter)

    def add(self, steps: int, *, warm: bool) -> None:
        now = time.perf_counter()
        self.seconds += now - self._last
        if warm:
            self.timed_steps += steps
            self.timed_seconds += now - self._last
        self._last = now

    def skip(self) -> None:
        """Leave out what happened since the last call: evaluation, saving."""
        self._last = time.perf_counter()

    @property
    def steps_per_second(self) -> float:
        return self.timed_steps / self.timed_seconds if self.timed_seconds else 0.0

    def state(self) -> Json:
        """What a resumed run goes on counting from."""
        return {"seconds": self.seconds, "timed_steps": self.timed_steps, "timed_seconds": self.timed_seconds}


def fit(
    trainer: Trainer,
    *,
    run: RunDirectory | None = None,
    log_every: int,
    checkpoint_every: int,
    evaluate_every: int,
    clock: Clock,
    watch: Watcher | None = None,
) -> None:
    """Train to the last step. All intervals are multiples of `log_every`, so that resuming repeats no half interval."""
    config = trainer.config
    started = trainer.step
    clock.skip()
    while trainer.step < config.steps:
        first = trainer.step
        last = min(config.steps, (first // log_every + 1) * log_every)
        rate = trainer.rate
        total = torch.zeros((), device=trainer.device)
        while trainer.step < last:
            total += trainer.advance()
        loss = total.item() / (last - first)
        clock.add(last - first, warm=first - started >= WARMUP_STEPS_OF_CLOCK)
        trainer.require_finite(loss)
        scores = None
        if last % evaluate_every == 0 or last == config.steps:
            scores = score(trainer.model, trainer.task, num_instances=1_000, references=False, device=trainer.device)
        if run is not None:
            run.append_metrics(_metrics_row(last, loss, rate, clock, scores))
            if last % checkpoint_every == 0 or last == config.steps:
                run.save_checkpoint(trainer.state(), {"step": last, "loss": loss, **clock.state()})
        if watch is not None:
            watch(Progress(last, config.steps, loss, clock.steps_per_second, scores))
        clock.skip()


def _metrics_row(step: int, loss: float, rate: float, clock: Clock, scores: Scores | None) -> Json:
    row: Json = {"step": step, "loss": loss, "learning_rate": rate, "seconds": round(clock.seconds, 3)}
    if scores is not None:
        row["scores"] = {
            split: {name: each.value for name, each in metrics.items()} for split, metrics in scores.items()
        }
    return row


def intervals(steps: int) -> dict[str, int]:
    """How often to log, checkpoint and evaluate: about 200, 50 and 20 times a long run, less often a short one."""
    log_every = min(100, max(10, steps // 200))
    return {
        "log_every": log_every,
        "checkpoint_every": log_every * max(5, min(steps // 50, 1_000) // log_every),
        "evaluate_every": log_every * max(25, steps // 20 // log_every),
    }
