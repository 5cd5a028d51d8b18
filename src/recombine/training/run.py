"""A run: from its configuration to `result.json`.

The hash of the configuration names the run directory. A finished run is not trained again, and a killed one is resumed from
its last checkpoint. A finished run is evaluated again if the number of instances or the version of the evaluation differs.

All intervals are multiples of the logging interval. The sum of the losses since the last row of `metrics.jsonl` is part of a
checkpoint, so a run that is stopped at any step and resumed ends with the same bits, rows included, as one that never stopped.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor, nn

from recombine.foundation.errors import InputError, check_positive
from recombine.models.base import version_of
from recombine.models.transformer import count_parameters
from recombine.tasks.base import Task
from recombine.training.config import TRAINING_VERSION, RunConfig
from recombine.training.directory import RunDirectory, hash_config
from recombine.training.schema import CheckpointInfo, MetricsRow, ResultFile
from recombine.training.score import (
    EVALUATION_VERSION,
    Scores,
    describe_metrics,
    describe_splits,
    score,
    scores_as_dict,
)
from recombine.training.session import (
    Progress,
    StoppedError,
    StopRequest,
    Tracker,
    Tracking,
    TrainingBar,
    Watcher,
    handle_stop_signals,
    hash_source,
    join_group,
    num_processes,
    record_environment,
    resolve_device,
    use_deterministic_algorithms,
    use_threads,
)
from recombine.training.trainer import Clock, Trainer

_log = logging.getLogger(__name__)

EVALUATION_ROOMS = ("attention", "compositions.py", "foundation", "models", "random.py", "tasks", "training")
COPIES_IN_TRAINING = 4  # parameters, gradients and two moments
WARMUP_STEPS_OF_CLOCK = 20  # not part of the steps per second: compilation, caches, first allocations


class RunOptions(NamedTuple):
    """How a run is trained: nothing that is part of its configuration, since it changes results by rounding at most."""

    compile: bool = False
    shard: bool = False
    threads: int | None = None
    again: bool = False
    watch: Watcher | None = None
    trackers: Sequence[Tracker] = ()


def train_run(
    config: RunConfig,
    *,
    out: Path | str = "runs",
    device: str = "auto",
    evaluation_instances: int | None = None,
    compile: bool = False,
    shard: bool = False,
    deterministic: bool = False,
    threads: int | None = None,
    again: bool = False,
    watch: Watcher | None = None,
    trackers: Sequence[Tracker] = (),
) -> RunDirectory:
    """Train a configuration in its run directory, from the last checkpoint if there is one, and evaluate it.

    A finished run is returned unchanged, unless it was evaluated with another number of instances or another version of the
    evaluation, or `again` asks for a new evaluation. Three arguments are not part of the configuration, because they change
    results by rounding only: `compile` trains under torch.compile, `shard` keeps a part of the model in each process (FSDP2),
    and `deterministic` uses only algorithms that give the same bits in every run.
    A small model trains on one thread, because several would wait for one another, unless `threads` says otherwise.
    Under `torchrun`, all processes call this function and train one model together; the first one reads and writes files.
    """
    num_instances = check_evaluation_instances(config.task, evaluation_instances)
    config = config.prepare()
    if num_processes() == 1 and not again and (finished := find_finished(config, Path(out), num_instances)):
        return finished  # needs no device
    torch_device = resolve_device(device)
    config.task.check_batch_size(config.training.batch_size)
    model = config.build_model(copies=COPIES_IN_TRAINING)  # invalid sizes are errors before anything is written
    group = join_group(torch_device)
    run = RunDirectory(Path(group.run_on_leader(lambda: str(open_directory(config, Path(out)).path))))
    options = RunOptions(compile, shard, threads, again, watch, trackers)
    with use_deterministic_algorithms() if deterministic else contextlib.nullcontext():
        finish_run(run, config, model, torch_device, num_instances, options)
    return run


def finish_run(
    run: RunDirectory,
    config: RunConfig,
    model: nn.Module,
    device: torch.device,
    num_instances: int,
    options: RunOptions,
) -> None:
    """Train a run from its last checkpoint to the last step, evaluate the model and write `result.json`."""
    group, steps, repeat = join_group(device), config.training.steps, "run the same command again to"
    with contextlib.ExitStack() as stack:
        stack.enter_context(
            group.name_lost_process(f"checkpoints are in {run.path}; {repeat} go on, with any number of processes")
        )
        request = stack.enter_context(handle_stop_signals())
        operations = 6.0 * count_parameters(model) * config.training.batch_size * config.task.train_length
        stack.enter_context(use_threads(options.threads, operations))
        if group.run_on_leader(lambda: lock_unless_done(run, num_instances, stack, again=options.again)):
            return
        execution = {"compile": options.compile, "shard": options.shard}
        trainer = Trainer(model, config.task, config.training, device, group=group, **execution)
        clock = restore(run, trainer)
        group.run_on_leader(lambda: write_description(run, config, trainer, num_instances))
        tracking = Tracking(options.trackers if group.is_leader else (), run, trainer.step)
        stack.callback(tracking.call, "close")
        with request.deferred():
            intervals = choose_intervals(steps, config.task.training_evaluations)
            fit(trainer, intervals, run=run, clock=clock, request=request, watch=options.watch, tracking=tracking)
        if trainer.step < steps:
            where = f"at step {trainer.step} of {steps}; its checkpoint is in {run.path}; {repeat} go on"
            raise StoppedError(f"stopped by {request.name} {where}", request.exit_code)
        if group.any(request.is_made):
            where = f"after the last step; the trained model is in {run.path}; {repeat} evaluate it"
            raise StoppedError(f"stopped by {request.name} {where}", request.exit_code)
        result = build_result(config, trainer, clock, num_instances)
        group.run_on_leader(lambda: write_result(run, result))
        if result is not None:
            tracking.call("finish", result)


def lock_unless_done(run: RunDirectory, num_instances: int, stack: contextlib.ExitStack, *, again: bool) -> bool:
    """Lock a run unless there is nothing to do; returns whether that is so."""
    if again or not is_up_to_date(run, num_instances):
        stack.enter_context(run.lock())
    if again or not is_up_to_date(run, num_instances):  # another process may have finished it meanwhile
        return False
    reuse(run)
    return True


def restore(run: RunDirectory, trainer: Trainer) -> Clock:
    """Load the last intact checkpoint into a trainer, if there is one; returns the clock to continue with."""
    loaded: dict[str, Tensor] = {}

    def load() -> CheckpointInfo | None:
        checkpoint = run.load_checkpoint(fall_back=True)
        if checkpoint is None:
            if run.finished:
                raise InputError(f"{run.path} has a result but no checkpoint: delete it to train the run again")
            return None
        tensors, info = checkpoint
        if "interval" in info:
            raise InputError(
                f"{run.path} was stopped by an earlier version in the middle of a logging interval: expected a checkpoint "
                "of this version; delete the folder to train the run again"
            )
        loaded.update(tensors)
        if not run.finished:
            _log.info("%s resumes at step %d", run.path, info["step"])
        return info

    info: CheckpointInfo | None = trainer.group.run_on_leader(load)
    if info is None:
        return Clock()
    if trainer.group.size > 1:
        from recombine.training.processes import broadcast_tensors

        loaded = broadcast_tensors(loaded, trainer.group)
    trainer.load_state({name: tensor.to(trainer.device) for name, tensor in loaded.items()}, info["step"])
    return Clock(
        seconds=info.get("seconds", 0.0),
        timed_steps=info.get("timed_steps", 0),
        timed_seconds=info.get("timed_seconds", 0.0),
    )


def write_description(run: RunDirectory, config: RunConfig, trainer: Trainer, num_instances: int) -> None:
    """Write the split, the task's files and the environment; drop the rows of metrics after the current step."""
    if run.finished:
        _log.warning("%s: evaluating again, on %d instances per split", run.path, num_instances)
        return
    task = config.task
    compositions = {
        split: [list(composition) for composition in task.split.compositions(split)]
        for split in task.splits
        if split != "test"  # the same as `train`
    }
    run.write_json("split.json", {"certificate": task.split.certificate.as_dict(), "compositions": compositions})
    for name, content in task.artifacts().items():
        run.write_bytes(name, content)
    record_environment(run, trainer.device, trainer.step, trainer.group.size)
    run.rewind_metrics(trainer.step)


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
    request: StopRequest | None = None,
    watch: Watcher | None = None,
    tracking: Tracking | None = None,
) -> None:
    """Train to the last step, or to the step at which a process has to stop, after which a checkpoint is saved."""
    config, group = trainer.config, trainer.group
    started = counted = trainer.step
    clock.skip()
    while trainer.step < config.steps and not trainer.is_stopping:
        if group.is_leader and isinstance(watch, TrainingBar):
            watch.before_step(trainer.step, config.steps)
        trainer.advance(stop=request is not None and request.is_made)
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
            row = make_row(step, loss, config.rate_at(first), clock, scores)
            trainer.loss_sum.zero_()
        is_saved = is_last or trainer.is_stopping or step % intervals.checkpoint_every == 0
        if run is not None:
            save(trainer, run, row, checkpoint_info(step, loss, clock) if is_saved else None)
        if row is not None and group.is_leader:
            if tracking is not None:
                tracking.call("add", row)
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


def build_result(config: RunConfig, trainer: Trainer, clock: Clock, num_instances: int) -> ResultFile | None:
    """Evaluate a trained model. The result is on the leader; the other processes take part if the model is sharded."""
    is_leader = trainer.group.is_leader
    if not (is_leader or trainer.is_sharded):
        return None
    scores = score(trainer.model, config.task, num_instances=num_instances, references=is_leader, device=trainer.device)
    if not is_leader:
        return None
    return {
        "task": config.task.name,
        "model": config.model.kind,
        "label": config.model.label,
        "num_parameters": count_parameters(trainer.model),
        "split_sha256": config.task.split.certificate.sha256,
        "seed": config.task.seed,
        "steps": config.training.steps,
        "seconds": round(clock.seconds, 3),
        "steps_per_second": round(clock.steps_per_second, 3),
        "versions": {
            "task": version_of(type(config.task)),
            "model": version_of(type(config.model)),
            "training": TRAINING_VERSION,
            "evaluation": EVALUATION_VERSION,
        },
        "evaluation_instances": num_instances,
        "evaluation_source_sha256": hash_source(EVALUATION_ROOMS),
        "metrics": describe_metrics(config.task, scores.values()),
        "splits": describe_splits(config.task),
        "scores": scores_as_dict(scores),
        "composition_sums": {
            split: {name: [list(sums) for sums in metric.sums] for name, metric in metrics.items()}
            for split, metrics in scores.items()
        },
        "baselines": scores.baselines,
    }


def write_result(run: RunDirectory, result: ResultFile | None) -> None:
    """Finish a run."""
    assert result is not None
    run.write_json("result.json", result)
    run.drop_previous_checkpoint()


def check_evaluation_instances(task: Task, evaluation_instances: int | None) -> int:
    """The number of instances per split in the final evaluation, by default the task's."""
    if evaluation_instances is None:
        return task.evaluation_instances
    check_positive(evaluation_instances=evaluation_instances)
    return evaluation_instances


def open_directory(config: RunConfig, out: Path, origins: dict[str, str] | None = None) -> RunDirectory:
    """The run directory of a configuration, new or existing."""
    contents = {"origins": config.origins if origins is None else origins, **config.as_dict()}
    run = RunDirectory.create(out, config.name, contents, identity=config.identity)
    require_config(run, config)
    return run


def require_config(run: RunDirectory, config: RunConfig) -> None:
    """Raise an error if `config.json` was edited."""
    if hash_config(config.without_defaults(run.config)) != hash_config(config.identity):
        raise InputError(f"{run.path} holds another configuration: expected the one that its name was made from")


def find_finished(config: RunConfig, out: Path, num_instances: int) -> RunDirectory | None:
    """The run of a configuration if it is finished and its evaluation is up to date."""
    run = RunDirectory(out / config.directory_name)
    if not is_up_to_date(run, num_instances):
        return None
    require_config(run, config)
    reuse(run)
    return run


def reuse(run: RunDirectory) -> None:
    """Log that a run is finished, and whether its scores were computed by other code than today's."""
    _log.info("%s is already finished", run.path)
    if run.read_json("result.json").get("evaluation_source_sha256") != hash_source(EVALUATION_ROOMS):
        _log.warning(
            "%s: other code of the same version computed its scores; --again (again=True) computes them again", run.path
        )
    run.drop_previous_checkpoint()  # remains after a kill right after the result


def is_up_to_date(run: RunDirectory, num_instances: int) -> bool:
    """Whether a run is finished, and was evaluated by this version on this number of instances per split."""
    if not run.finished:
        return False
    result = run.read_json("result.json")
    version = result.get("versions", {}).get("evaluation")
    return (version, result.get("evaluation_instances")) == (EVALUATION_VERSION, num_instances)
