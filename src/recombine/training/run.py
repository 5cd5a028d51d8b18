"""Train and evaluate a configuration in its run directory.

The hash of the configuration names the directory, so a finished run is not trained twice and a killed one is resumed. A
finished run that was evaluated in another way than now asked for is evaluated again from its checkpoint.

What a run directory records besides numbers of training: the environment, the split, the result.

Experiment trackers: they are given the rows of `metrics.jsonl` and the result, and nothing depends on them.

`recombine.integrations.trackers` has adapters for TensorBoard, Weights & Biases and MLflow. A tracker that fails while the
run goes on is left out with a warning.

The progress of a training, on standard error.
"""

from __future__ import annotations

import contextlib
import logging
import os
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, cast

import torch
from torch import Tensor, nn

from recombine.foundation.errors import InputError, check_positive
from recombine.foundation.progress import Meter, measure_progress, show_progress
from recombine.models.base import check_size
from recombine.models.registry import version_of
from recombine.models.transformer import count_parameters
from recombine.tasks.base import Task
from recombine.training.config import TRAINING_VERSION, RunConfig
from recombine.training.devices import resolve_device, use_deterministic_algorithms
from recombine.training.directory import RunDirectory, describe_environment, hash_source
from recombine.training.loop import Clock, Trainer, Watcher, fit, intervals
from recombine.training.loop import Progress as TrainingProgress
from recombine.training.processes import Group, join_group
from recombine.training.schema import (
    CertificateDict,
    CheckpointInfo,
    EnvironmentFile,
    Json,
    MetricsRow,
    ResultFile,
    SplitFile,
    Stretch,
)
from recombine.training.score import (
    EVALUATION_VERSION,
    Evaluation,
    describe_metrics,
    describe_splits,
    evaluate_predictor,
    scores_as_dict,
)
from recombine.training.signals import StoppedError, StopRequest, heed_signals

_log = logging.getLogger(__name__)


def is_up_to_date(run: RunDirectory, num_instances: int) -> bool:
    """Whether a run is finished, and evaluated by this version on this number of instances per split."""
    if not run.finished:
        return False
    result = run.read_json("result.json")
    version = result.get("versions", {}).get("evaluation")
    return (version, result.get("evaluation_instances")) == (EVALUATION_VERSION, num_instances)


def record_environment(run: RunDirectory, device: torch.device, step: int, num_processes: int = 1) -> None:
    """Write the environment; one in which earlier steps were trained is kept, and the difference is logged."""
    current = describe_environment(device, num_processes)
    history: list[Stretch] = []
    if step > 0 and (run.path / "environment.json").exists():
        stored = cast(EnvironmentFile, run.read_json("environment.json"))
        previous = stored.pop("previous", [])  # type: ignore[misc]
        history = [stretch for stretch in (*previous, stored) if stretch.get("first_step", 0) < step]
    latest: Stretch = {**current, "first_step": step}
    if history:
        changes = describe_changes(cast(Json, history[-1]), cast(Json, current))
        if changes:
            _log.warning("%s resumes at step %d in another environment: %s", run.path, step, changes)
        else:
            latest = history.pop()
    run.write_json("environment.json", {**latest, "previous": history})


def describe_changes(before: Json, after: Json) -> str:
    """What differs between two environments, in one line."""
    changed = [name for name in after if before.get(name) != after[name]]
    return ", ".join(f"{name} {_shorten(before.get(name))} → {_shorten(after[name])}" for name in changed)


def _shorten(value: object) -> str:
    text = str(value)
    return text if len(text) <= 24 else f"{text[:12]}…"


def describe_split(task: Task) -> SplitFile:
    """The certificate and the compositions; those of `test` are those of `train`."""
    return {
        "certificate": cast(CertificateDict, task.split.certificate.as_dict()),
        "compositions": {
            split: [list(composition) for composition in task.split.compositions(split)]
            for split in task.splits
            if split != "test"
        },
    }


def summarise(
    config: RunConfig, model: nn.Module, evaluation: Evaluation, clock: Clock, num_instances: int
) -> ResultFile:
    """What `result.json` holds."""
    scores = evaluation.scores
    return {
        "task": config.task.name,
        "model": config.model.kind,
        "label": config.model.label,
        "num_parameters": count_parameters(model),
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
        "evaluation_source_sha256": hash_source(),
        "metrics": describe_metrics(config.task, scores.values()),
        "splits": describe_splits(config.task),
        "scores": scores_as_dict(scores),
        "composition_sums": {
            split: {name: [list(sums) for sums in metric.sums] for name, metric in metrics.items()}
            for split, metrics in scores.items()
        },
        "baselines": evaluation.baselines,
    }


class Tracker(ABC):
    """What a tracker must be able to do."""

    name: ClassVar[str]

    @abstractmethod
    def start(self, run: RunDirectory, step: int) -> None:
        """Begin, or go on with, the record of a run; rows after `step` will come again."""

    @abstractmethod
    def add(self, row: MetricsRow) -> None:
        """Take a row of `metrics.jsonl`."""

    @abstractmethod
    def finish(self, result: ResultFile) -> None:
        """Take the result of a finished run."""

    @abstractmethod
    def close(self) -> None:
        """End, whether the run is finished or not."""


class Tracking:
    """The trackers of a run that have not failed."""

    def __init__(self, trackers: Sequence[Tracker]) -> None:
        self.trackers = list(trackers)

    def add(self, row: MetricsRow) -> None:
        self._each(lambda tracker: tracker.add(row))

    def finish(self, result: ResultFile | None) -> None:
        if result is not None:
            self._each(lambda tracker: tracker.finish(result))

    def close(self) -> None:
        self._each(lambda tracker: tracker.close())

    def _each(self, act: Callable[[Tracker], None]) -> None:
        for tracker in list(self.trackers):
            try:
                act(tracker)
            except Exception as error:  # anything that the tracker's package may raise; the run does not need it
                _log.warning("%s failed and is left out: %s", tracker.name, str(error).split("\n")[0])
                self.trackers.remove(tracker)


@contextlib.contextmanager
def track(trackers: Sequence[Tracker], run: RunDirectory, step: int) -> Iterator[Tracking]:
    """Start trackers, and close them at the end."""
    for tracker in trackers:
        tracker.start(run, step)
    tracking = Tracking(trackers)
    try:
        yield tracking
    finally:
        tracking.close()


COPIES_IN_TRAINING = 4  # parameters, gradients and two moments


@dataclass(frozen=True, kw_only=True)
class Execution:
    """How a run is computed. None of it is part of the configuration: it changes results by rounding only."""

    compile: bool = False
    """Train under torch.compile."""
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
    shard: bool = False,
    deterministic: bool = False,
    watch: Watcher | None = None,
    trackers: Sequence[Tracker] = (),
) -> RunDirectory:
    """Train a configuration in its run directory, from the last checkpoint if there is one, and evaluate it.

    A finished run stays as it is, unless it was evaluated with another number of instances or another version of the
    evaluation. `compile`, `shard` and `deterministic` (see `Execution`) are not part of the configuration.
    Under `torchrun`, all processes call this function and train one model together; the first one reads and writes files.
    """
    check_evaluation_instances(evaluation_instances)
    torch_device = resolve_device(device)
    config = config.prepare()
    execution = Execution(compile=compile, shard=shard, deterministic=deterministic)
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
    clock = restore(run, trainer)
    group.lead(lambda: _prepare(run, config.task, trainer, num_instances))
    with track(trackers if group.is_leader else (), run, trainer.step) as tracking:
        with request.deferred():
            fit(
                trainer,
                run=run,
                clock=clock,
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


def _prepare(run: RunDirectory, task: Task, trainer: Trainer, num_instances: int) -> None:
    """Write what is known before the first step; rows of metrics that will be written again are dropped."""
    if run.finished:
        _log.warning("%s: evaluating again, on %d instances per split", run.path, num_instances)
        return
    run.write_json("split.json", describe_split(task))
    for name, content in task.artifacts().items():
        run.write_bytes(name, content)
    record_environment(run, trainer.device, trainer.step, trainer.group.size)
    run.rewind_metrics(trainer.step)


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


def restore(run: RunDirectory, trainer: Trainer) -> Clock:
    """Load the last good checkpoint into a trainer, if there is one; returns the clock that goes on from there."""
    tensors, info = _share_checkpoint(run, trainer.group)
    if tensors is None or info is None:
        return Clock()
    check_step(run, info, trainer.config.steps)
    trainer.load_state({name: tensor.to(trainer.device) for name, tensor in tensors.items()}, info["step"])
    return Clock(**{name: info.get(name, 0) for name in Clock().state()})  # type: ignore[arg-type]


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
    if "interval" in info:
        raise InputError(
            f"{run.path} was stopped by an earlier version in the middle of a logging interval: expected a checkpoint of this "
            "version; delete the folder to train the run again"
        )


PULSE_SECONDS = 1.0  # between two updates within a logging interval


class TrainingBar:
    """A watcher for `train_run` or `benchmark` that shows the steps, the loss, the speed and the remaining time."""

    def __init__(self, meter: Meter) -> None:
        self.meter, self.last = meter, 0.0

    def __call__(self, progress: TrainingProgress) -> None:
        speed = progress.steps_per_second  # 0 in the first steps, which are not timed
        shown = f"  {speed:.1f} steps/s" if speed >= 1 else f"  {speed:.2g} steps/s" if speed else ""
        self.meter.update(progress.step, progress.steps, f"loss {progress.loss:.4g}{shown}")

    def pulse(self, step: int, steps: int) -> None:
        """Called before every step: with slow steps, the next row of metrics may be an hour away."""
        if (now := time.monotonic()) - self.last >= PULSE_SECONDS:
            self.last = now
            self.meter.update(step, steps, self.meter.note)


@contextmanager
def progress_bar(label: str, *, quiet: bool = False) -> Iterator[TrainingBar | None]:
    """Show the progress of a training inside a `with` block; with `quiet`, nothing is shown and there is no watcher."""
    if quiet:
        with show_progress(False):
            yield None
        return
    with show_progress(), measure_progress(label, done=None) as meter:
        yield TrainingBar(meter)
