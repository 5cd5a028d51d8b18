"""The training loop: step, log, evaluate, checkpoint.

All intervals are multiples of the logging interval. A run that is stopped between two rows of `metrics.jsonl` keeps the sum
of the losses so far in its checkpoint, so it ends with the same bits, rows included, as one that was never stopped.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, TypedDict, cast, runtime_checkable

import torch
from torch import Tensor

from recombine.evaluate import Scores, score
from recombine.store import CheckpointInfo, Interval, MetricsRow, RunDirectory
from recombine.train.clock import Clock
from recombine.train.signals import StoppedError, StopRequest
from recombine.train.trainer import Trainer

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
    interval: Interval | None = None,
    request: StopRequest | None = None,
    watch: Watcher | None = None,
    watch_rows: RowWatcher | None = None,
) -> None:
    """Train to the last step. `interval` is what a checkpoint holds of a logging interval that was not complete."""
    config, group = trainer.config, trainer.group
    request = StopRequest() if request is None else request
    started = trainer.step
    is_asked = _watch_steps(trainer, watch, request)
    clock.skip()
    while trainer.step < config.steps or interval is not None:
        first = trainer.step if interval is None else interval["first_step"]
        last = min(config.steps, (first // log_every + 1) * log_every)
        begun = trainer.step
        total = _restore_sum(trainer, interval)
        interval = None
        total = trainer.advance_to(last, total, is_asked)
        clock.add(trainer.step - begun, warm=begun - started >= WARMUP_STEPS_OF_CLOCK)
        loss = group.sum(total).item() / max(1, trainer.step - first)
        trainer.require_finite(loss)
        if trainer.agreed_to_stop:
            unfinished: Interval = {"first_step": first, "loss_sums": group.collect(total.item())}
            _stop(trainer, run, clock, loss, unfinished, request)
        is_last = last == config.steps
        scores = evaluate(trainer) if last % evaluate_every == 0 or is_last else None
        row = _metrics_row(last, loss, trainer.rate_at(first), clock, scores)
        save(trainer, run, row, _describe(trainer, loss, clock) if last % checkpoint_every == 0 or is_last else None)
        if group.is_leader and watch_rows is not None:
            watch_rows(row)
        if group.is_leader and watch is not None:
            watch(Progress(last, config.steps, loss, clock.steps_per_second, scores))
        clock.skip()


def _watch_steps(trainer: Trainer, watch: Watcher | None, request: StopRequest) -> Callable[[], bool]:
    """What is called before every step: it tells the watcher, and whether this process was asked to stop."""
    if not isinstance(watch, StepWatcher) or not trainer.group.is_leader:
        return lambda: request.is_made

    def tell() -> bool:
        watch.pulse(trainer.step, trainer.config.steps)
        return request.is_made

    return tell


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


def _stop(
    trainer: Trainer,
    run: RunDirectory | None,
    clock: Clock,
    loss: float,
    interval: Interval,
    request: StopRequest,
) -> None:
    """Save a checkpoint in the middle of a logging interval and raise."""
    info = _describe(trainer, loss, clock)
    info["interval"] = interval
    save(trainer, run, None, info)
    where = f"at step {trainer.step} of {trainer.config.steps}"
    kept = "" if run is None else f"; its checkpoint is in {run.path}; run the same command again to go on"
    raise StoppedError(f"stopped by {request.name} {where}{kept}", request.exit_code)


def _describe(trainer: Trainer, loss: float, clock: Clock) -> CheckpointInfo:
    return cast(CheckpointInfo, {"step": trainer.step, "loss": loss, **clock.state()})


def _restore_sum(trainer: Trainer, interval: Interval | None) -> Tensor:
    """The sum of the losses of this process in the interval so far."""
    total = torch.zeros((), device=trainer.device)
    if interval is None:
        return total
    sums, group = interval["loss_sums"], trainer.group
    if len(sums) == group.size:
        return total + sums[group.rank]
    return total + sum(sums) if group.is_leader else total


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
