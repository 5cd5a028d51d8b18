"""The training loop: step, log, evaluate, checkpoint.

Training is a pure function of a configuration: the initial parameters and batch i come from its seed, so a loop that
starts from a checkpoint ends with the same bits as one that was never stopped. `run/` puts the loop into a run directory.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypedDict

import torch
from torch import Tensor, nn

from recombine.errors import InputError, check_positive, require
from recombine.evaluate import Scores, score
from recombine.layers.dropout import DropoutKeys
from recombine.optim import Schedule, build_optimizer, learning_rate
from recombine.precision import Precision, use_precision
from recombine.settings import Settings
from recombine.store import CheckpointInfo, MetricsRow, RunDirectory
from recombine.tasks import Task
from recombine.tasks.ahead import Ahead

# Raise it when the same configuration gives other parameters than before: another order of batches, schedule or update.
TRAINING_VERSION = 1
WARMUP_STEPS_OF_CLOCK = 20  # left out of the steps per second: compilation, caches, first allocations


class DivergedError(RuntimeError):
    """Training met a loss or a parameter that is not finite."""


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


@dataclass
class Progress:
    """How far a training is; passed to its watcher."""

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
        self.batches = Ahead(task, batch_size=config.batch_size, device=self.device)
        self.optimizer = build_optimizer(model, weight_decay=config.weight_decay, betas=(0.9, config.beta2))
        self.dropout = DropoutKeys(model)
        self.step = 0

    def advance(self) -> Tensor:
        """One optimizer step; returns its loss, still on the device."""
        config = self.config
        batch = self.batches.take(self.step)
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
        """Continue from the tensors of a checkpoint."""
        load_model(self.model, tensors)
        for name, parameter in self.model.named_parameters():
            moments = {key: tensors.get(f"optimizer/{key}/{name}") for key in ("step", "exp_avg", "exp_avg_sq")}
            state = {key: tensor for key, tensor in moments.items() if tensor is not None}
            shapes = {key: tensor.shape for key, tensor in state.items() if key != "step"}
            if len(state) not in (0, len(moments)) or any(shape != parameter.shape for shape in shapes.values()):
                raise InputError(
                    f"the checkpoint does not fit the optimizer: it lacks or misshapes the moments of {name}"
                )
            self.optimizer.state[parameter] = state
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
    """Fill a model from a checkpoint's tensors; every name, shape and type must agree, and parameters must be finite."""
    state = {name.removeprefix("model/"): value for name, value in tensors.items() if name.startswith("model/")}
    for name, value in model.state_dict().items():
        if name in state and state[name].dtype != value.dtype:
            raise InputError(f"the checkpoint does not fit the model: {name} is {state[name].dtype}, not {value.dtype}")
    try:
        model.load_state_dict(state)
    except RuntimeError as error:
        raise InputError(f"the checkpoint does not fit the model: {str(error).splitlines()[-1].strip()}") from None
    for name, parameter in model.named_parameters():
        if not torch.isfinite(parameter).all():
            raise InputError(f"the checkpoint has values of {name} that are not finite: expected finite parameters")


class ClockState(TypedDict):
    """What a checkpoint holds of a clock."""

    seconds: float
    timed_steps: int
    timed_seconds: float


@dataclass(kw_only=True)
class Clock:
    """Seconds spent in training, and steps per second without the warm-up of each process that trained."""

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
        """Do not count the time since the last call, which was spent on evaluation or saving."""
        self._last = time.perf_counter()

    @property
    def steps_per_second(self) -> float:
        return self.timed_steps / self.timed_seconds if self.timed_seconds else 0.0

    def state(self) -> ClockState:
        """What a resumed run continues from."""
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
    """Train to the last step. All intervals are multiples of `log_every`, so that a resumed run repeats whole intervals."""
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
            scores = _score(trainer)
        if run is not None:
            run.append_metrics(_metrics_row(last, loss, rate, clock, scores))
            if last % checkpoint_every == 0 or last == config.steps:
                info: CheckpointInfo = {"step": last, "loss": loss, **clock.state()}
                run.save_checkpoint(trainer.state(), info)
        if watch is not None:
            watch(Progress(last, config.steps, loss, clock.steps_per_second, scores))
        clock.skip()


def _score(trainer: Trainer) -> Scores:
    task = trainer.task
    num_instances = task.training_evaluation_instances
    return score(trainer.model, task, num_instances=num_instances, references=False, device=trainer.device)


def _metrics_row(step: int, loss: float, rate: float, clock: Clock, scores: Scores | None) -> MetricsRow:
    row: MetricsRow = {"step": step, "loss": loss, "learning_rate": rate, "seconds": round(clock.seconds, 3)}
    if scores is not None:
        row["scores"] = {
            split: {name: metric.value for name, metric in metrics.items()} for split, metrics in scores.items()
        }
    return row


def intervals(steps: int) -> dict[str, int]:
    """How often to log, checkpoint and evaluate: about 200, 50 and 20 times in a long run, fewer in a short one."""
    log_every = min(100, max(10, steps // 200))
    return {
        "log_every": log_every,
        "checkpoint_every": log_every * max(5, min(steps // 50, 1_000) // log_every),
        "evaluate_every": log_every * max(25, steps // 20 // log_every),
    }
