"""Train and evaluate a configuration in its run directory.

The hash of the configuration names the directory, so a finished run is not trained twice and a killed one is resumed. A
finished run that was evaluated in another way than now asked for is evaluated again from its checkpoint.
"""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

from recombine.errors import InputError, check_positive
from recombine.evaluate import evaluate_predictor
from recombine.models import check_size
from recombine.parallel import Group, join_group
from recombine.run.config import RunConfig
from recombine.run.device import resolve_device, use_deterministic_algorithms
from recombine.run.records import describe_split, is_up_to_date, record_environment, summarise
from recombine.run.tracking import Tracker, track
from recombine.store import CheckpointInfo, Interval, ResultFile, RunDirectory
from recombine.tasks import Task
from recombine.train import Clock, StoppedError, StopRequest, Trainer, Watcher, fit, heed_signals, intervals

COPIES_IN_TRAINING = 4  # parameters, gradients and two moments

_log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class Execution:
    """How a run is computed. None of it is part of the configuration: it changes results by rounding only."""

    compile: bool = False
    """Train under torch.compile."""
    compile_steps: int | None = None
    """Compile this many whole steps into one graph."""
    shard: bool = False
    """Keep only a part of the model in each process (FSDP2)."""
    deterministic: bool = False
    """Use only algorithms that give the same bits in every run."""


PLAIN = Execution()


def train_run(
    config: RunConfig,
    *,
    out: Path | str = "runs",
    device: str = "auto",
    evaluation_instances: int | None = None,
    compile: bool = False,
    compile_steps: int | None = None,
    shard: bool = False,
    deterministic: bool = False,
    watch: Watcher | None = None,
    trackers: Sequence[Tracker] = (),
) -> RunDirectory:
    """Train a configuration in its run directory, from the last checkpoint if there is one, and evaluate it.

    A finished run stays as it is, unless it was evaluated with another number of instances or another version of the
    evaluation. `compile`, `compile_steps`, `shard` and `deterministic` (see `Execution`) are not part of the configuration.
    Under `torchrun`, all processes call this function and train one model together; the first one reads and writes files.
    """
    check_evaluation_instances(evaluation_instances)
    torch_device = resolve_device(device)
    config = config.prepare()
    execution = Execution(compile=compile, compile_steps=compile_steps, shard=shard, deterministic=deterministic)
    config.task.check_batch_size(config.training.batch_size)
    check_size(config.model, config.task, copies=COPIES_IN_TRAINING)
    model = config.build_model()  # invalid sizes are errors before anything is written
    group = join_group(torch_device)
    run = RunDirectory(Path(group.lead(lambda: str(open_directory(config, Path(out)).path))))
    finish_run(
        run,
        config,
        model,
        torch_device,
        evaluation_instances=evaluation_instances,
        execution=execution,
        watch=watch,
        trackers=trackers,
    )
    return run


def check_evaluation_instances(evaluation_instances: int | None) -> None:
    """Require a positive number, or None for the task's own."""
    if evaluation_instances is not None:
        check_positive(evaluation_instances=evaluation_instances)


def open_directory(config: RunConfig, out: Path, origins: dict[str, str] | None = None) -> RunDirectory:
    """The run directory of a configuration, new or existing."""
    contents = {"origins": config.origins if origins is None else origins, **config.as_dict()}
    run = RunDirectory.create(out, config.name, contents, identity=config.identity)
    recorded = RunConfig.from_dict(run.config, code=(type(config.task), type(config.model)))
    if recorded != config:
        raise InputError(f"{run.path} holds another configuration: expected the one that its name was made from")
    return run


def finish_run(
    run: RunDirectory,
    config: RunConfig,
    model: nn.Module,
    device: torch.device,
    *,
    evaluation_instances: int | None,
    execution: Execution = PLAIN,
    watch: Watcher | None = None,
    trackers: Sequence[Tracker] = (),
) -> None:
    """Train what is left of a run, evaluate the model and write `result.json`."""
    num_instances = config.task.evaluation_instances if evaluation_instances is None else evaluation_instances
    group = join_group(device)
    how_to_go_on = f"checkpoints are in {run.path}; run the same command again to go on, with any number of processes"
    with (
        group.name_lost_process(how_to_go_on),
        use_deterministic_algorithms(execution.deterministic),
        heed_signals() as request,
        contextlib.ExitStack() as locks,
    ):
        if group.lead(lambda: _begin(run, num_instances, locks)):
            _log.info("%s is finished already", run.path)
            run.drop_previous_checkpoint()  # a kill right after the result leaves it behind
            return
        trainer = Trainer(
            model,
            config.task,
            config.training,
            device,
            compile=execution.compile,
            compile_steps=execution.compile_steps,
            group=group,
            shard=execution.shard,
        )
        _train_and_evaluate(run, config, trainer, request, num_instances, watch, trackers)


def _train_and_evaluate(
    run: RunDirectory,
    config: RunConfig,
    trainer: Trainer,
    request: StopRequest,
    num_instances: int,
    watch: Watcher | None,
    trackers: Sequence[Tracker],
) -> None:
    group = trainer.group
    clock, interval = restore(run, trainer)
    group.lead(lambda: _prepare(run, config.task, trainer, interval, num_instances))
    with track(trackers if group.is_leader else (), run, trainer.step) as tracking:
        with request.deferred():
            fit(
                trainer,
                run=run,
                clock=clock,
                interval=interval,
                request=request,
                watch=watch,
                watch_rows=tracking.add,
                **intervals(config.training.steps, config.task.training_evaluations),
            )
        if group.any(request.is_made):
            kept = f"the trained model is in {run.path}; run the same command again to evaluate it"
            raise StoppedError(f"stopped by {request.name} after the last step; {kept}", request.exit_code)
        result = _evaluate(trainer, config, clock, num_instances)
        group.lead(lambda: _end(run, result))
        tracking.finish(result)


def _begin(run: RunDirectory, num_instances: int, locks: contextlib.ExitStack) -> bool:
    """Lock a run and say whether it is finished. One that was put where nobody can change it needs no lock."""
    if not os.access(run.path, os.W_OK) and is_up_to_date(run, num_instances):
        return True
    locks.enter_context(run.lock())
    return is_up_to_date(run, num_instances)


def _prepare(run: RunDirectory, task: Task, trainer: Trainer, interval: Interval | None, num_instances: int) -> None:
    """Write what is known before the first step; rows of metrics that will be written again are dropped."""
    if run.finished:
        _log.warning("%s: evaluating again, on %d instances per split", run.path, num_instances)
        return
    run.write_json("split.json", describe_split(task))
    for name, content in task.artifacts().items():
        run.write_bytes(name, content)
    record_environment(run, trainer.device, trainer.step, trainer.group.size)
    run.rewind_metrics(trainer.step if interval is None else interval["first_step"])


def _evaluate(trainer: Trainer, config: RunConfig, clock: Clock, num_instances: int) -> ResultFile | None:
    """The result of a run. Only the leader has it; the others take part if each has a part of the model."""
    if not (trainer.group.is_leader or trainer.is_sharded):
        return None
    evaluation = evaluate_predictor(
        trainer.model,
        config.task,
        num_instances=num_instances,
        references=trainer.group.is_leader,
        device=trainer.device,
    )
    return summarise(config, trainer.model, evaluation, clock, num_instances) if trainer.group.is_leader else None


def _end(run: RunDirectory, result: ResultFile | None) -> None:
    assert result is not None
    run.write_json("result.json", result)
    run.drop_previous_checkpoint()


def restore(run: RunDirectory, trainer: Trainer) -> tuple[Clock, Interval | None]:
    """Load the last good checkpoint into a trainer, if there is one.

    Returns the clock that goes on from there, and the logging interval that the checkpoint cut short, if any.
    """
    tensors, info = _share_checkpoint(run, trainer.group)
    if tensors is None or info is None:
        return Clock(), None
    check_step(run, info, trainer.config.steps)
    trainer.load_state({name: tensor.to(trainer.device) for name, tensor in tensors.items()}, info["step"])
    clock = Clock()
    resumed = Clock(**{name: info.get(name, 0) for name in clock.state()})  # type: ignore[arg-type]
    return resumed, info.get("interval")


def _share_checkpoint(run: RunDirectory, group: Group) -> tuple[dict[str, Tensor] | None, CheckpointInfo | None]:
    """The checkpoint that the leader reads, in every process."""
    found: dict[str, Tensor] = {}

    def load() -> CheckpointInfo | None:
        checkpoint = run.load_checkpoint(fall_back=True)
        if checkpoint is None:
            if run.finished:
                raise InputError(f"{run.path} has a result but no checkpoint: delete it to train the run again")
            return None
        tensors, info = checkpoint
        found.update(tensors)
        if not run.finished:
            _log.info("%s resumes at step %d", run.path, info["step"])
        return info

    info = group.lead(load)
    return group.share_tensors(found if group.is_leader else None), info


def check_step(run: RunDirectory, info: CheckpointInfo, steps: int) -> None:
    """Require the step of a checkpoint to be one that its run has."""
    if not 0 <= info["step"] <= steps:
        raise InputError(f"{run.path} has a checkpoint of step {info['step']}: expected one from 0 to {steps}")
    first = info.get("interval", {"first_step": 0})["first_step"]
    if not 0 <= first <= info["step"]:
        raise InputError(f"{run.path} has a logging interval from step {first}: expected one from 0 to {info['step']}")
