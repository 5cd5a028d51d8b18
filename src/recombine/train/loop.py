"""The training loop: step, log, evaluate, checkpoint."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from recombine.evaluate import Scores, score
from recombine.store import CheckpointInfo, MetricsRow, RunDirectory
from recombine.train.clock import Clock
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


Watcher = Callable[[Progress], None]


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
        loss = trainer.advance_to(last).item() / (last - first)
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
