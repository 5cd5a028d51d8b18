"""The training loop: batches, optimizer steps, rows of metrics, evaluations and checkpoints.

All intervals are multiples of the logging interval. The sum of the losses since the last row of `metrics.jsonl` is part of a
checkpoint, so a run that is stopped at any step and resumed ends with the same bits, rows included, as one that never stopped.
"""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol, runtime_checkable

import torch
from torch import Tensor, nn

from recombine.attention.layer import DropoutKeys
from recombine.foundation.errors import InputError
from recombine.tasks.base import Task
from recombine.tasks.sampling import Batch
from recombine.training.config import TrainingConfig, build_optimizer, learning_rate
from recombine.training.directory import RunDirectory
from recombine.training.schema import CheckpointInfo, MetricsRow
from recombine.training.score import Scores, check_predictions, score

WARMUP_STEPS_OF_CLOCK = 20  # not part of the steps per second: compilation, caches, first allocations


@dataclass(kw_only=True)
class Clock:
    """Seconds spent in training, and steps per second without the warm-up of each process that trained."""

    seconds: float = 0.0
    timed_steps: int = 0
    timed_seconds: float = 0.0
    _last: float = field(default_factory=time.perf_counter)

    def add(self, steps: int, *, warm: bool) -> None:
        """Count the steps since the last call."""
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


class BatchGroups:
    """The training batches of a task, generated in groups; caches the group of the last batch.

    For small batches the overhead of the calls dominates, so a task may generate several batches at once
    (`Task.sample_many`). Batch i always belongs to the group from i - i % n to the next multiple of n, with
    n = `task.count_batches_at_once(batch_size)`: the last bits of a matrix product can depend on the number of its rows,
    and with fixed groups a resumed training has the same bits.
    """

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

    def __getitem__(self, index: int) -> Batch:
        first = index - index % self.group_size
        if first != self._first:
            self._first, self._group = -1, []  # the next group reuses the memory of this one
            self._group = self.generate(first)
            self._first = first
        return self._group[index - first]

    def generate(self, first: int) -> list[Batch]:
        """The group of batches that starts at `first`, a multiple of the group's size."""
        return self.task.sample_many(
            "train", first, self.group_size, batch_size=self.batch_size, rows=self.rows, device=self.device
        )


class Group:
    """The processes that train one model together; this class is for a single one, where every exchange is trivial.

    The leader alone reads and writes files and reports to the user. `recombine.training.processes.ProcessGroup` is the group
    of the processes that `torchrun` started.
    """

    rank = 0
    size = 1

    @property
    def is_leader(self) -> bool:
        return self.rank == 0

    def rows(self, batch_size: int) -> range | None:
        """This process's rows of every batch; None for all of them."""
        return None

    def combine(self, weight: float | Tensor, stop: bool) -> tuple[float, bool]:
        """The factor of the loss of this process's rows, and whether any process received a signal to stop."""
        return 1.0, stop

    def sum(self, tensor: Tensor) -> Tensor:
        """The sum over the processes."""
        return tensor

    def collect(self, number: float) -> list[float]:
        """The number of every process, by rank."""
        return [number]

    def any(self, flag: bool) -> bool:
        """Whether the flag is set in any process."""
        return any(self.collect(float(flag)))

    def run_on_leader(self, work: Callable[[], Any]) -> Any:
        """Run a function on the leader while the others wait; returns its result, which must be JSON, or raises its error."""
        return work()

    def broadcast(self, content: bytes) -> bytes:
        """The leader's bytes."""
        return content

    @contextlib.contextmanager
    def name_lost_process(self, advice: str) -> Iterator[None]:
        """Turn the error of an exchange with a process that is gone into a `LostProcessError`."""
        yield


SINGLE_PROCESS = Group()
ADAMW_STATE = ("step", "exp_avg", "exp_avg_sq")  # of each parameter


class DivergedError(RuntimeError):
    """A loss or a parameter became infinite or NaN."""


class Trainer:
    """A model, its optimizer and its batches; `advance` is one training step: forward, loss, gradient, update."""

    def __init__(
        self,
        model: nn.Module,
        task: Task,
        config: TrainingConfig,
        device: torch.device | str,
        *,
        compile: bool = False,
        group: Group = SINGLE_PROCESS,
        shard: bool = False,
    ) -> None:
        if shard and (compile or group.size == 1):
            actual = "with compile" if compile else "with one process"
            raise InputError(f"shard is set {actual}: expected several processes (torchrun) and no compile")
        self.task = task
        self.config = config
        self.device = torch.device(device)
        self.group = group
        self.is_sharded = shard
        self.is_compiled = compile
        self.rows = group.rows(config.batch_size)
        self.batches = BatchGroups(task, batch_size=config.batch_size, rows=self.rows, device=self.device)
        self.model, self.forward = self._place(model)
        self.optimizer = build_optimizer(self.model, weight_decay=config.weight_decay, betas=(0.9, config.beta2))
        self.dropout = DropoutKeys(self.model, first_row=0 if self.rows is None else self.rows.start)
        self.step = 0
        self.is_stopping = False  # the processes agreed to stop
        self.loss_sum = torch.zeros((), device=self.device)  # of this process, since the last row of metrics

    def _place(self, model: nn.Module) -> tuple[nn.Module, Callable[[Tensor], Tensor]]:
        """The model on this process's device, and its forward function: compiled, replicated or sharded."""
        if self.is_sharded:
            from recombine.training.processes import shard_model

            sharded = shard_model(model, self.device)
            return sharded, sharded
        model = model.to(self.device)
        # a whole graph or an error: past its limit of recompilations torch would go on eagerly without a warning
        forward: Any = torch.compile(model, dynamic=False, fullgraph=True) if self.is_compiled else model
        if self.group.size > 1:
            from recombine.training.processes import replicate

            forward = replicate(
                forward, model, self.device, self.task.sample("train", 0, rows=range(1), device=self.device).inputs
            )
        return model, forward

    def advance(self, *, stop: bool = False) -> Tensor:
        """One optimizer step; returns this process's share of its loss, still on the device.

        The processes exchange in every step whether one of them received a signal to `stop`, so that all stop at the same one.
        """
        config = self.config
        batch = self.batches[self.step]
        seed = self.task.seed if config.model_seed is None else config.model_seed
        with self._precision(), self.dropout.at(seed, self.step):
            predictions = check_predictions(self.forward(batch.inputs), num_rows=len(batch))
        loss = self.task.loss(predictions.float(), batch)
        factor, self.is_stopping = self.group.combine(self.task.loss_weight(batch), stop)
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

    def _precision(self) -> contextlib.AbstractContextManager[object]:
        if self.config.precision == "float32":
            return contextlib.nullcontext()
        from recombine.training.precision import use_precision

        return use_precision(self.config.precision, self.device, compiled=self.is_compiled)

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
        """Parameters and optimizer state under flat names. All processes of a sharded model must call this."""
        tensors = {f"model/{name}": value for name, value in self.model.state_dict().items()}
        for name, parameter in self.model.named_parameters():
            for key, value in self.optimizer.state.get(parameter, {}).items():
                tensors[f"optimizer/{key}/{name}"] = value
        if any(sums := self.group.collect(self.loss_sum.item())):  # zero at a row of metrics
            tensors["loss_sums"] = torch.tensor(sums)
        if not self.is_sharded:
            return tensors
        whole = ((name, t.full_tensor() if hasattr(t, "full_tensor") else t) for name, t in tensors.items())
        return {name: tensor.cpu() for name, tensor in whole if self.group.is_leader}

    def load_state(self, tensors: dict[str, Tensor], step: int) -> None:
        """Continue from the tensors of a checkpoint."""
        if self.is_sharded:
            from recombine.training.processes import shard_like

            tensors = shard_like(tensors, dict(self.model.named_parameters()))
        load_model(self.model, tensors)
        for name, parameter in self.model.named_parameters():
            names = {key: f"optimizer/{key}/{name}" for key in ADAMW_STATE}  # none of a parameter without a gradient
            self.optimizer.state[parameter] = {key: tensors[full] for key, full in names.items() if full in tensors}
        self.step = step
        sums, rank = tensors.get("loss_sums", torch.zeros(1)), self.group.rank
        if len(sums) != self.group.size:  # another number of processes: the leader continues the sum of all
            sums = sums.sum().expand(1) if rank == 0 else torch.zeros(rank + 1)
        self.loss_sum.fill_(float(sums[rank]))

    def require_finite(self, loss: float) -> None:
        """Raise before an infinite or NaN parameter is saved."""
        broken = find_infinite(self.model)
        if self.group.any(broken is not None) or not math.isfinite(loss):
            what = f"parameter {broken}" if broken else f"loss {loss}"
            raise DivergedError(
                f"training diverged before step {self.step}: {what} is not finite; try a lower learning rate"
            )


def load_model(model: nn.Module, tensors: dict[str, Tensor]) -> None:
    """Load a model's parameters from a checkpoint, whose names and shapes must agree."""
    state = {name.removeprefix("model/"): value for name, value in tensors.items() if name.startswith("model/")}
    try:
        model.load_state_dict(state)
    except RuntimeError as error:
        raise InputError(f"the checkpoint does not fit the model: {str(error).splitlines()[-1].strip()}") from None


def find_infinite(model: nn.Module) -> str | None:
    """The first parameter with an infinite or NaN value; of a sharded model, in the part of this process."""
    for name, parameter in model.named_parameters():
        local = parameter.to_local() if hasattr(parameter, "to_local") else parameter
        if not torch.isfinite(local).all():
            return name
    return None


@dataclass
class Progress:
    """The state of a training at a row of metrics, for its watcher."""

    step: int
    steps: int
    loss: float
    steps_per_second: float
    scores: Scores | None = None


Watcher = Callable[[Progress], None]  # called at every row of metrics


@runtime_checkable
class StepWatcher(Protocol):
    """A watcher whose `before_step` is called before every step."""

    def before_step(self, step: int, steps: int) -> None:
        """Step number `step` of `steps` begins."""


class Intervals(NamedTuple):
    """Numbers of steps between rows of metrics, checkpoints and evaluations."""

    log_every: int
    checkpoint_every: int
    evaluate_every: int


def choose_intervals(steps: int, evaluations: int = 8) -> Intervals:
    """About 200 rows of metrics, 50 checkpoints and 20 evaluations in a long run, fewer in a short one.

    A run of up to 20,000 steps is evaluated at most `evaluations` times.
    """
    log_every = min(100, max(10, steps // 200))
    return Intervals(
        log_every=log_every,
        checkpoint_every=log_every * max(5, min(steps // 50, 1_000) // log_every),
        evaluate_every=log_every * max(200 // evaluations, steps // 20 // log_every),
    )


def fit(
    trainer: Trainer,
    intervals: Intervals,
    *,
    clock: Clock,
    run: RunDirectory | None = None,
    should_stop: Callable[[], bool] = lambda: False,
    watch: Watcher | None = None,
    watch_rows: Callable[[MetricsRow], None] | None = None,
) -> None:
    """Train to the last step, or to the step at which a process has to stop, after which a checkpoint is saved."""
    config, group = trainer.config, trainer.group
    started = counted = trainer.step
    clock.skip()
    while trainer.step < config.steps and not trainer.is_stopping:
        if group.is_leader and isinstance(watch, StepWatcher):
            watch.before_step(trainer.step, config.steps)
        trainer.advance(stop=should_stop())
        step, is_last = trainer.step, trainer.step == config.steps
        is_logged = is_last or step % intervals.log_every == 0
        if not (is_logged or trainer.is_stopping):
            continue
        first = (step - 1) // intervals.log_every * intervals.log_every
        loss = group.sum(trainer.loss_sum).item() / (step - first)
        clock.add(step - counted, warm=counted - started >= WARMUP_STEPS_OF_CLOCK)
        trainer.require_finite(loss)
        row, scores = None, None
        if is_logged:
            scores = evaluate(trainer) if is_last or step % intervals.evaluate_every == 0 else None
            row = make_row(step, loss, trainer.rate_at(first), clock, scores)
            trainer.loss_sum.zero_()
        is_saved = is_last or trainer.is_stopping or step % intervals.checkpoint_every == 0
        if run is not None:
            save(trainer, run, row, checkpoint_info(step, loss, clock) if is_saved else None)
        if row is not None and group.is_leader:
            if watch_rows is not None:
                watch_rows(row)
            if watch is not None:
                watch(Progress(step, config.steps, loss, clock.steps_per_second, scores))
        clock.skip()
        counted = step


def evaluate(trainer: Trainer) -> Scores:
    """Scores on a few instances. The leader alone computes them if it has the whole model."""
    scores: Scores = {}
    task, num_instances = trainer.task, trainer.task.training_evaluation_instances

    def measure() -> None:
        scores.update(score(trainer.model, task, num_instances=num_instances, references=False, device=trainer.device))

    if trainer.is_sharded:
        measure()
    else:
        trainer.group.run_on_leader(measure)
    return scores


def save(trainer: Trainer, run: RunDirectory, row: MetricsRow | None, info: CheckpointInfo | None) -> None:
    """Let the leader write a row of metrics, a checkpoint, or both."""
    tensors = trainer.state() if info is not None else {}

    def write() -> None:
        if row is not None:
            run.append_metrics(row)
        if info is not None:
            run.save_checkpoint(tensors, info)

    trainer.group.run_on_leader(write)


def make_row(step: int, loss: float, rate: float, clock: Clock, scores: Scores | None) -> MetricsRow:
    """A row of `metrics.jsonl`."""
    row: MetricsRow = {"step": step, "loss": loss, "learning_rate": rate, "seconds": round(clock.seconds, 3)}
    if scores is not None:
        row["scores"] = {
            split: {name: metric.value for name, metric in metrics.items()} for split, metrics in scores.items()
        }
    return row


def checkpoint_info(step: int, loss: float, clock: Clock) -> CheckpointInfo:
    """`checkpoint.json`: a resumed run continues from this step with this clock."""
    return {
        "step": step,
        "loss": loss,
        "seconds": clock.seconds,
        "timed_steps": clock.timed_steps,
        "timed_seconds": clock.timed_seconds,
    }
