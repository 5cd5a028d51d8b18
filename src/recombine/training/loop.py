"""The clock of a training, which goes on where a checkpoint stopped it.

Training batches, generated in groups ahead of their use.

For small batches the overhead of the calls dominates, so a task may generate several batches at once
(`Task.sample_many`). Batch i is always generated together with the other batches of its group: those from i - i % n to the
next multiple of n, with n = `task.count_batches_at_once(batch_size)`. The last bits of a matrix product can depend on the
number of its rows. With fixed groups, training that resumes at any step sees the same bits as training without a pause.

One training step: forward, loss, gradient, update; and the state that a checkpoint holds.

The training loop: step, log, evaluate, checkpoint.

All intervals are multiples of the logging interval. The sum of the losses since the last row of `metrics.jsonl` is part of a
checkpoint, so a run that is stopped at any step ends with the same bits, rows included, as one that was never stopped.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol, TypedDict, cast, runtime_checkable

import torch
from torch import Tensor, nn

from recombine.attention.dropout import DropoutKeys
from recombine.foundation.errors import InputError
from recombine.tasks.base import Task
from recombine.tasks.batch import Batch
from recombine.training.config import TrainingConfig, build_optimizer, learning_rate
from recombine.training.devices import use_precision
from recombine.training.directory import RunDirectory
from recombine.training.processes import ALONE, Group, gather, local_part, shard_like, spread
from recombine.training.schema import CheckpointInfo, MetricsRow
from recombine.training.score import Scores, check_predictions, score
from recombine.training.signals import StoppedError, StopRequest


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


class Ahead:
    """The training batches of a task; keeps the group that the last batch belongs to."""

    def __init__(
        self, task: Task, *, batch_size: int, rows: range | None = None, device: torch.device | str = "cpu"
    ) -> None:
        self.task = task
        self.batch_size = batch_size
        self.rows = rows
        self.device = device
        self.group_size = task.count_batches_at_once(batch_size)
        self._first = -1
        self._group: list[Batch] = []

    def take(self, index: int) -> Batch:
        """Training batch `index`."""
        first = index - index % self.group_size
        if first != self._first:
            self._first, self._group = -1, []  # so that the next group can have the memory of this one
            self._group = self.make_group(first)
            self._first = first
        return self._group[index - first]

    def make_group(self, first: int) -> list[Batch]:
        """The batches that are generated together, starting at a multiple of the group's size."""
        return self.task.sample_many(
            "train", first, self.group_size, batch_size=self.batch_size, rows=self.rows, device=self.device
        )


MOMENTS = ("step", "exp_avg", "exp_avg_sq")  # of AdamW, for each parameter


class DivergedError(RuntimeError):
    """Training met a loss or a parameter that is not finite."""


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
        group: Group = ALONE,
        shard: bool = False,
    ) -> None:
        self.task = task
        self.config = config
        self.device = torch.device(device)
        self.group = group
        self.is_sharded = shard
        self.is_compiled = compile
        rows = group.rows(config.batch_size)
        self.batches = Ahead(task, batch_size=config.batch_size, rows=rows, device=self.device)
        example = None if rows is None else task.sample("train", 0, rows=range(1), device=self.device).inputs
        self.model, self.forward = spread(model, group, self.device, shard=shard, compile=compile, example=example)
        self.optimizer = build_optimizer(self.model, weight_decay=config.weight_decay, betas=(0.9, config.beta2))
        self.dropout = DropoutKeys(self.model, first_row=0 if rows is None else rows.start)
        self.step = 0
        self.agreed_to_stop = False
        self.loss_sum = torch.zeros((), device=self.device)  # of this process, since the last row of metrics

    def advance(self, *, stop: bool = False) -> Tensor:
        """One optimizer step; returns this process's share of its loss, still on the device.

        The processes tell each other in every step whether they were asked to `stop`, so that all stop at the same one.
        """
        config = self.config
        batch = self.batches.take(self.step)
        seed = self.task.seed if config.model_seed is None else config.model_seed
        with (
            use_precision(config.precision, self.device, compiled=self.is_compiled),
            self.dropout.at(seed, self.step),
        ):
            predictions = check_predictions(self.forward(batch.inputs), num_rows=len(batch))
        loss = self.task.loss(predictions.float(), batch)
        factor, self.agreed_to_stop = self.group.combine(self.task.loss_weight(batch), stop)
        self.optimizer.zero_grad(set_to_none=True)
        (loss if factor == 1 else loss * factor).backward()
        if config.gradient_clip is not None:
            nn.utils.clip_grad_norm_(self.model.parameters(), config.gradient_clip)
        for group in self.optimizer.param_groups:
            group["lr"] = self.rate_at(self.step)
        self.optimizer.step()
        self.step += 1
        share = loss.detach() if self.group.size == 1 else loss.detach() * (factor / self.group.size)
        self.loss_sum += share
        return share

    def rate_at(self, step: int) -> float:
        """The learning rate of a step, counted from 0."""
        config = self.config
        return learning_rate(
            step,
            peak=config.learning_rate,
            steps=config.steps,
            warmup_steps=config.warmup_steps,
            final_fraction=config.final_fraction,
            schedule=config.schedule,
        )

    def state(self) -> dict[str, Tensor]:
        """Parameters and optimizer moments under flat names. Processes with a part of the model each must all call this."""
        tensors = {f"model/{name}": value for name, value in self.model.state_dict().items()}
        for name, parameter in self.model.named_parameters():
            for key, value in self.optimizer.state.get(parameter, {}).items():
                tensors[f"optimizer/{key}/{name}"] = value
        if any(sums := self.group.collect(self.loss_sum.item())):  # none at a row of metrics
            tensors["loss_sums"] = torch.tensor(sums)
        if not self.is_sharded:
            return tensors
        whole = ((name, gather(tensor)) for name, tensor in tensors.items())
        return {name: tensor.cpu() for name, tensor in whole if self.group.is_leader}

    def load_state(self, tensors: dict[str, Tensor], step: int) -> None:
        """Continue from the tensors of a checkpoint."""
        check_moments(self.model, tensors, step)
        if self.is_sharded:
            tensors = shard_like(tensors, dict(self.model.named_parameters()))
        load_model(self.model, tensors)
        for name, parameter in self.model.named_parameters():
            moments = {key: tensors.get(f"optimizer/{key}/{name}") for key in MOMENTS}
            state = {key: tensor.to(self.device) for key, tensor in moments.items() if tensor is not None}
            self.optimizer.state[parameter] = state
        self.step = step
        sums, rank = tensors.get("loss_sums", torch.zeros(1)), self.group.rank
        if len(sums) != self.group.size:  # other processes than now: the leader continues the sum of all
            sums = sums.sum().expand(1) if rank == 0 else torch.zeros(rank + 1)
        self.loss_sum.fill_(float(sums[rank]))

    def require_finite(self, loss: float) -> None:
        """Raise before anything that is not finite is saved."""
        broken = find_infinite(self.model)
        if self.group.any(broken is not None) or not math.isfinite(loss):
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
    if (broken := find_infinite(model)) is not None:
        raise InputError(f"the checkpoint has values of {broken} that are not finite: expected finite parameters")


def check_moments(model: nn.Module, tensors: dict[str, Tensor], step: int) -> None:
    """Require the moments in a checkpoint to fit: those of a parameter that was never used may be missing, all may not."""
    complaint = "the checkpoint does not fit the optimizer"
    if step > 0 and not any(name.startswith("optimizer/") for name in tensors):
        raise InputError(f"{complaint}: it is of step {step} and has no moments")
    for name, parameter in model.named_parameters():
        moments = {key: tensors[full] for key in MOMENTS if (full := f"optimizer/{key}/{name}") in tensors}
        if len(moments) not in (0, len(MOMENTS)):
            raise InputError(f"{complaint}: it lacks some of the moments of {name}")
        for key, value in moments.items():
            shape, dtype = ((), torch.float32) if key == "step" else (parameter.shape, parameter.dtype)
            if value.shape != shape or value.dtype != dtype:
                raise InputError(f"{complaint}: {key} of {name} is {tuple(value.shape)}, {value.dtype}")
            if value.isnan().any() or (key != "exp_avg" and (value < 0).any()):
                raise InputError(f"{complaint}: {key} of {name} is negative or NaN")


def find_infinite(model: nn.Module) -> str | None:
    """The first parameter with a value that is not finite; of a sharded model, in the part of this process."""
    for name, parameter in model.named_parameters():
        if not torch.isfinite(local_part(parameter)).all():
            return name
    return None


WARMUP_STEPS_OF_CLOCK = 20  # left out of the steps per second: compilation, caches, first allocations


@dataclass
class Progress:
    """How far a training is; passed to its watcher."""

    step: int
    steps: int
    loss: float
    steps_per_second: float
    scores: Scores | None = None


class Intervals(TypedDict):
    """How many steps lie between two rows of metrics, two checkpoints, two evaluations."""

    log_every: int
    checkpoint_every: int
    evaluate_every: int


Watcher = Callable[[Progress], None]  # called at every row of metrics
RowWatcher = Callable[[MetricsRow], None]


@runtime_checkable
class StepWatcher(Protocol):
    """A watcher that is also called before every step, if it has this method."""

    def pulse(self, step: int, steps: int) -> None:
        """Step number `step` of `steps` begins."""


def fit(
    trainer: Trainer,
    *,
    run: RunDirectory | None = None,
    log_every: int,
    checkpoint_every: int,
    evaluate_every: int,
    clock: Clock,
    request: StopRequest | None = None,
    watch: Watcher | None = None,
    watch_rows: RowWatcher | None = None,
) -> None:
    """Train to the last step, or until a signal stops it: a row of metrics, a checkpoint and an evaluation every so often."""
    config, group = trainer.config, trainer.group
    request = StopRequest() if request is None else request
    started = counted = trainer.step
    clock.skip()
    while trainer.step < config.steps:
        if group.is_leader and isinstance(watch, StepWatcher):
            watch.pulse(trainer.step, config.steps)
        trainer.advance(stop=request.is_made)
        step, is_last = trainer.step, trainer.step == config.steps
        is_logged = is_last or step % log_every == 0
        if not (is_logged or trainer.agreed_to_stop):
            continue
        first = (step - 1) // log_every * log_every
        loss = group.sum(trainer.loss_sum).item() / (step - first)
        clock.add(step - counted, warm=counted - started >= WARMUP_STEPS_OF_CLOCK)
        trainer.require_finite(loss)
        row = None
        if is_logged:
            scores = evaluate(trainer) if is_last or step % evaluate_every == 0 else None
            row = _metrics_row(step, loss, trainer.rate_at(first), clock, scores)
            trainer.loss_sum.zero_()
        is_saved = is_last or trainer.agreed_to_stop or step % checkpoint_every == 0
        save(
            trainer, run, row, cast(CheckpointInfo, {"step": step, "loss": loss, **clock.state()}) if is_saved else None
        )
        if row is not None and group.is_leader:
            if watch_rows is not None:
                watch_rows(row)
            if watch is not None:
                watch(Progress(step, config.steps, loss, clock.steps_per_second, scores))
        if trainer.agreed_to_stop and not is_last:
            kept = "" if run is None else f"; its checkpoint is in {run.path}; run the same command again to go on"
            where = f"stopped by {request.name} at step {step} of {config.steps}"
            raise StoppedError(f"{where}{kept}", request.exit_code)
        clock.skip()
        counted = step


def evaluate(trainer: Trainer) -> Scores | None:
    """Scores on a few instances. The leader alone computes them if it has the whole model."""
    scores: Scores = {}
    task, num_instances = trainer.task, trainer.task.training_evaluation_instances

    def measure() -> None:
        scores.update(score(trainer.model, task, num_instances=num_instances, references=False, device=trainer.device))

    if trainer.is_sharded:
        measure()
    else:
        trainer.group.lead(measure)
    return scores


def save(trainer: Trainer, run: RunDirectory | None, row: MetricsRow | None, info: CheckpointInfo | None) -> None:
    """Let the leader write a row of metrics, a checkpoint, or both."""
    if run is None:
        return
    tensors = trainer.state() if info is not None else {}

    def write() -> None:
        if row is not None:
            run.append_metrics(row)
        if info is not None:
            run.save_checkpoint(tensors, info)

    trainer.group.lead(write)


def _metrics_row(step: int, loss: float, rate: float, clock: Clock, scores: Scores | None) -> MetricsRow:
    row: MetricsRow = {"step": step, "loss": loss, "learning_rate": rate, "seconds": round(clock.seconds, 3)}
    if scores is not None:
        row["scores"] = {
            split: {name: metric.value for name, metric in metrics.items()} for split, metrics in scores.items()
        }
    return row


def intervals(steps: int, evaluations: int = 8) -> Intervals:
    """How often to log, checkpoint and evaluate: about 200, 50 and 20 times in a long run, fewer in a short one.

    A run of up to 20,000 steps is evaluated at most `evaluations` times.
    """
    log_every = min(100, max(10, steps // 200))
    return {
        "log_every": log_every,
        "checkpoint_every": log_every * max(5, min(steps // 50, 1_000) // log_every),
        "evaluate_every": log_every * max(200 // evaluations, steps // 20 // log_every),
    }
