"""A run: from its configuration to `result.json`.

The hash of the configuration names the run directory. A finished run is not trained again, and a killed one is resumed from
its last checkpoint. A finished run is evaluated again if the number of instances or the version of the evaluation differs.
"""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import FrameType
from typing import ClassVar, cast

import torch
from torch import Tensor, nn

from recombine.foundation.display import Meter, measure_progress, show_progress
from recombine.foundation.errors import InputError, check_positive
from recombine.models.base import version_of
from recombine.models.transformer import count_parameters
from recombine.tasks.base import Task
from recombine.training.config import TRAINING_VERSION, RunConfig
from recombine.training.directory import RunDirectory, hash_config, hash_source, record_environment
from recombine.training.loop import SINGLE_PROCESS, Clock, Group, Progress, Trainer, Watcher, choose_intervals, fit
from recombine.training.schema import CertificateDict, CheckpointInfo, MetricsRow, ResultFile
from recombine.training.score import (
    EVALUATION_VERSION,
    describe_metrics,
    describe_splits,
    score,
    scores_as_dict,
)

_log = logging.getLogger(__name__)

COPIES_IN_TRAINING = 4  # parameters, gradients and two moments
LAUNCHER_VARIABLES = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT")


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

    A finished run is returned unchanged, unless it was evaluated with another number of instances or another version of the
    evaluation. Three arguments are not part of the configuration, because they change results by rounding only: `compile`
    trains under torch.compile, `shard` keeps a part of the model in each process (FSDP2), and `deterministic` uses only
    algorithms that give the same bits in every run.
    Under `torchrun`, all processes call this function and train one model together; the first one reads and writes files.
    """
    num_instances = check_evaluation_instances(config.task, evaluation_instances)
    config = config.prepare()
    if num_processes() == 1 and (finished := find_finished(config, Path(out), num_instances)):
        return finished  # needs no device
    torch_device = resolve_device(device)
    config.task.check_batch_size(config.training.batch_size)
    model = config.build_model(copies=COPIES_IN_TRAINING)  # invalid sizes are errors before anything is written
    group = join_group(torch_device)
    run = RunDirectory(Path(group.run_on_leader(lambda: str(open_directory(config, Path(out)).path))))
    with use_deterministic_algorithms() if deterministic else contextlib.nullcontext():
        finish_run(
            run,
            config,
            model,
            torch_device,
            num_instances,
            compile=compile,
            shard=shard,
            watch=watch,
            trackers=trackers,
        )
    return run


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
    _log.info("%s is already finished", run.path)
    run.drop_previous_checkpoint()  # remains after a kill right after the result
    return run


def is_up_to_date(run: RunDirectory, num_instances: int) -> bool:
    """Whether a run is finished, and was evaluated by this version on this number of instances per split."""
    if not run.finished:
        return False
    result = run.read_json("result.json")
    version = result.get("versions", {}).get("evaluation")
    return (version, result.get("evaluation_instances")) == (EVALUATION_VERSION, num_instances)


def finish_run(
    run: RunDirectory,
    config: RunConfig,
    model: nn.Module,
    device: torch.device,
    num_instances: int,
    *,
    compile: bool = False,
    shard: bool = False,
    watch: Watcher | None = None,
    trackers: Sequence[Tracker] = (),
) -> None:
    """Train a run from its last checkpoint to the last step, evaluate the model and write `result.json`."""
    group = join_group(device)
    advice = f"checkpoints are in {run.path}; run the same command again to go on, with any number of processes"
    with contextlib.ExitStack() as stack:
        stack.enter_context(group.name_lost_process(advice))
        request = stack.enter_context(handle_stop_signals())
        if group.run_on_leader(lambda: lock(run, num_instances, stack)):
            _log.info("%s is already finished", run.path)
            run.drop_previous_checkpoint()
            return
        trainer = Trainer(model, config.task, config.training, device, compile=compile, group=group, shard=shard)
        train_and_evaluate(run, config, trainer, request, num_instances, watch, trackers)


def lock(run: RunDirectory, num_instances: int, stack: contextlib.ExitStack) -> bool:
    """Lock a run unless it is finished; returns whether it is."""
    if not is_up_to_date(run, num_instances):
        stack.enter_context(run.lock())
    return is_up_to_date(run, num_instances)


def train_and_evaluate(
    run: RunDirectory,
    config: RunConfig,
    trainer: Trainer,
    request: StopRequest,
    num_instances: int,
    watch: Watcher | None,
    trackers: Sequence[Tracker],
) -> None:
    """Restore the last checkpoint, train, evaluate, and write the result."""
    group, steps = trainer.group, config.training.steps
    clock = restore(run, trainer)
    group.run_on_leader(lambda: write_description(run, config, trainer, num_instances))
    with contextlib.closing(Tracking(trackers if group.is_leader else (), run, trainer.step)) as tracking:
        with request.deferred():
            intervals = choose_intervals(steps, config.task.training_evaluations)
            fit(
                trainer,
                intervals,
                run=run,
                clock=clock,
                should_stop=lambda: request.is_made,
                watch=watch,
                watch_rows=lambda row: tracking.call("add", row),
            )
        if trainer.step < steps:
            where = f"at step {trainer.step} of {steps}; its checkpoint is in {run.path}; run the same command again to go on"
            raise StoppedError(f"stopped by {request.name} {where}", request.exit_code)
        if group.any(request.is_made):
            advice = f"the trained model is in {run.path}; run the same command again to evaluate it"
            raise StoppedError(f"stopped by {request.name} after the last step; {advice}", request.exit_code)
        result = summarise(config, trainer, clock, num_instances)
        group.run_on_leader(lambda: write_result(run, result))
        if result is not None:
            tracking.call("finish", result)


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
    certificate = cast(CertificateDict, task.split.certificate.as_dict())
    compositions = {
        split: [list(composition) for composition in task.split.compositions(split)]
        for split in task.splits
        if split != "test"  # the same as `train`
    }
    run.write_json("split.json", {"certificate": certificate, "compositions": compositions})
    for name, content in task.artifacts().items():
        run.write_bytes(name, content)
    record_environment(run, trainer.device, trainer.step, trainer.group.size)
    run.rewind_metrics(trainer.step)


def write_result(run: RunDirectory, result: ResultFile | None) -> None:
    """Finish a run."""
    assert result is not None
    run.write_json("result.json", result)
    run.drop_previous_checkpoint()


def summarise(config: RunConfig, trainer: Trainer, clock: Clock, num_instances: int) -> ResultFile | None:
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
        "evaluation_source_sha256": hash_source(),
        "metrics": describe_metrics(config.task, scores.values()),
        "splits": describe_splits(config.task),
        "scores": scores_as_dict(scores),
        "composition_sums": {
            split: {name: [list(sums) for sums in metric.sums] for name, metric in metrics.items()}
            for split, metrics in scores.items()
        },
        "baselines": scores.baselines,
    }


def num_processes() -> int:
    """Number of processes that a launcher such as `torchrun` started; 1 without one."""
    is_launched = all(name in os.environ for name in LAUNCHER_VARIABLES)
    return read_number("WORLD_SIZE") if is_launched else 1


def is_follower() -> bool:
    """Whether this process leaves files and messages to the leader."""
    return num_processes() > 1 and read_number("RANK") > 0


def read_number(name: str, default: int | None = None, *, least: int = 0) -> int:
    """A whole number from an environment variable."""
    text = os.environ.get(name, str(default))
    if not text.isdigit() or int(text) < least:
        raise InputError(f"{name} is {text!r}: expected a whole number")
    return int(text)


def join_group(device: torch.device) -> Group:
    """The processes that train together: those of the launcher, or this one alone."""
    if num_processes() == 1:
        return SINGLE_PROCESS
    from recombine.training.processes import join_processes

    return join_processes(device.type)


def leave_group() -> None:
    """Close the connections to the other processes, if there are any."""
    if num_processes() > 1:
        from recombine.training.processes import disconnect

        disconnect()


def resolve_device(device: str) -> torch.device:
    """The device with a name; `auto` is CUDA where torch finds it, otherwise the CPU.

    Under `torchrun` each process on a machine uses the CUDA device with its local rank.
    """
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    if device == "cuda" and num_processes() > 1:
        device = f"cuda:{read_number('LOCAL_RANK')}"
    try:
        torch.empty(0, device=device)
        torch_device = torch.device(device)
    except (RuntimeError, AssertionError):
        raise InputError(
            f"device {device!r} is not available: expected auto, cpu, or an accelerator that torch finds"
        ) from None
    if torch_device.type == "mps":
        _log.warning("device mps is untested: compare a short run with --device cpu before you rely on it")
    return torch_device


@contextlib.contextmanager
def use_deterministic_algorithms() -> Iterator[None]:
    """Let torch use only algorithms that give the same bits in every run, or raise an error where it has none."""
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # without it, cuBLAS is not deterministic
    before = torch.are_deterministic_algorithms_enabled()
    torch.use_deterministic_algorithms(True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(before)


STOP_SIGNALS = ("SIGINT", "SIGTERM", "SIGHUP")  # Windows has no SIGHUP


class StoppedError(KeyboardInterrupt):
    """A signal stopped the training. Not an `Exception`, so that it is not reported as a failure of the run."""

    def __init__(self, message: str, exit_code: int = 130) -> None:
        super().__init__(message)
        self.exit_code = exit_code


class StopRequest:
    """A signal to stop. The first one lets the training save a checkpoint at the next step; a second one stops at once."""

    def __init__(self) -> None:
        self.signal: signal.Signals | None = None
        self.is_deferred = False  # while a checkpoint at the next step is possible

    @property
    def is_made(self) -> bool:
        return self.signal is not None

    @property
    def name(self) -> str:
        return "a signal to another process" if self.signal is None else self.signal.name

    @property
    def exit_code(self) -> int:
        """The exit code that shells report for a process ended by the signal."""
        return 128 + (signal.SIGTERM if self.signal is None else self.signal)

    def receive(self, number: int, frame: FrameType | None) -> None:
        """The handler of the signals."""
        is_second = self.is_made
        self.signal = signal.Signals(number)
        if is_second or not self.is_deferred:
            raise StoppedError(f"stopped by {self.name}", self.exit_code)

    @contextlib.contextmanager
    def deferred(self) -> Iterator[None]:
        """Only record a first signal in this block, which checks `is_made` at every step."""
        self.is_deferred = True
        try:
            yield
        finally:
            self.is_deferred = False


@contextlib.contextmanager
def handle_stop_signals() -> Iterator[StopRequest]:
    """Receive signals in a `StopRequest`, in the main thread only.

    A signal that is already handled or ignored (`nohup`, the handler of a scheduler) is left alone. So is a SIGINT that is set
    to its default: whoever does that, such as the parent of a worker, wants the process to end at once.
    """
    request = StopRequest()
    names = STOP_SIGNALS if threading.current_thread() is threading.main_thread() else ()
    before = {number: signal.getsignal(number) for name in names if (number := getattr(signal, name, None))}
    untouched: dict[signal.Signals, object] = {signal.SIGINT: signal.default_int_handler}
    handled = [number for number, handler in before.items() if handler is untouched.get(number, signal.SIG_DFL)]
    for number in handled:
        signal.signal(number, request.receive)
    try:
        yield request
    finally:
        for number in handled:
            signal.signal(number, before[number])


class Tracker(ABC):
    """An experiment tracker: receives the rows of `metrics.jsonl` and the result. `recombine.integrations.trackers` has some."""

    name: ClassVar[str]

    @abstractmethod
    def start(self, run: RunDirectory, step: int) -> None:
        """Start or continue the record of a run; rows after `step` will be added again."""

    @abstractmethod
    def add(self, row: MetricsRow) -> None:
        """Record a row of `metrics.jsonl`."""

    @abstractmethod
    def finish(self, result: ResultFile) -> None:
        """Record the result of a finished run."""

    @abstractmethod
    def close(self) -> None:
        """Close the record, whether the run is finished or not."""


class Tracking:
    """The trackers of a run; one that fails is dropped with a warning, because the run does not depend on it."""

    def __init__(self, trackers: Sequence[Tracker], run: RunDirectory, step: int) -> None:
        for tracker in trackers:
            tracker.start(run, step)
        self.trackers = list(trackers)

    def call(self, method: str, *arguments: object) -> None:
        """Call a method of every tracker."""
        for tracker in list(self.trackers):
            try:
                getattr(tracker, method)(*arguments)
            except Exception as error:  # any error of the tracker's package
                _log.warning("%s failed and is left out: %s", tracker.name, str(error).split("\n")[0])
                self.trackers.remove(tracker)

    def close(self) -> None:
        self.call("close")


SECONDS_BETWEEN_UPDATES = 1.0  # of the progress bar, within a logging interval


class TrainingBar:
    """A watcher for `train_run` or `benchmark` that shows the steps, the loss, the speed and the remaining time."""

    def __init__(self, meter: Meter) -> None:
        self.meter, self.last = meter, 0.0

    def __call__(self, progress: Progress) -> None:
        speed = progress.steps_per_second  # 0 in the first steps, which are not timed
        shown = f"  {speed:.1f} steps/s" if speed >= 1 else f"  {speed:.2g} steps/s" if speed else ""
        self.meter.update(progress.step, progress.steps, f"loss {progress.loss:.4g}{shown}")

    def before_step(self, step: int, steps: int) -> None:
        """Update within a logging interval too: with slow steps, the next row of metrics may be an hour away."""
        if (now := time.monotonic()) - self.last >= SECONDS_BETWEEN_UPDATES:
            self.last = now
            self.meter.update(step, steps, self.meter.note)


@contextlib.contextmanager
def progress_bar(label: str, *, quiet: bool = False) -> Iterator[TrainingBar | None]:
    """Show the progress of a training on standard error; with `quiet`, nothing is shown and the watcher is None."""
    if quiet:
        with show_progress(False):
            yield None
        return
    with show_progress(), measure_progress(label, done=None) as meter:
        yield TrainingBar(meter)
