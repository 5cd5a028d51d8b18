"""Train many configurations through an engine; each ends as a run directory or as a failure that is kept there."""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from recombine.engines.base import Engine, Job, Outcome, describe_for_worker
from recombine.engines.choose import split_cores
from recombine.engines.local import LocalEngine
from recombine.engines.worker import record_failure
from recombine.errors import InputError, check_positive
from recombine.files import replace_file
from recombine.run import RunConfig, resolve_device
from recombine.store import RunDirectory
from recombine.train import DivergedError


def train_runs(
    configs: Mapping[str, RunConfig],
    *,
    jobs: int,
    out: Path | str = "runs",
    device: str = "auto",
    done: Callable[[str, RunDirectory], None] | None = None,
) -> dict[str, RunDirectory]:
    """Train labelled configurations, `jobs` at a time, as `train_run` would; the cores are divided evenly among them.

    `done` is called with each run when it ends. The first run that fails stops the others, which keep their checkpoints, and
    its error is raised here.
    """
    check_positive(jobs=jobs)
    engine = LocalEngine(jobs=jobs, threads=split_cores(len(configs), jobs=jobs)[1])
    labels = {config.directory_name: label for label, config in configs.items()}
    finished: dict[str, RunDirectory] = {}
    for outcome in train_all(list(configs.values()), engine, out=out, device=device):
        raise_failure(outcome)
        finished[outcome.key] = RunDirectory.open(outcome.path)
        if done is not None:
            done(labels[outcome.key], finished[outcome.key])
    return {label: finished[config.directory_name] for label, config in configs.items()}


def train_all(
    configs: Sequence[RunConfig], engine: Engine, *, out: Path | str, device: str = "auto"
) -> Iterator[Outcome]:
    """Train configurations; yields each as it ends. Those with one hash are trained once. Closing stops the rest."""
    if engine.name == "local":
        resolve_device(device)  # elsewhere, the worker knows which devices there are
    folder = Path(out).absolute()
    sent = {config.directory_name: describe_for_worker(config) for config in configs}
    with_mark = Mark(folder)
    try:
        jobs = {
            key: Job(
                key=key,
                config=config,
                code=code,
                out=str(folder),
                device=device,
                threads=engine.threads,
                mark=with_mark.name,
            )
            for key, (config, code) in sent.items()
        }
        outcomes = engine.train(list(jobs.values())) if jobs else iter(())
        for outcome in outcomes:
            if outcome.kind == "folder":
                raise InputError(outcome.error)
            if outcome.kind == "lost":
                record_failure(jobs[outcome.key], outcome)
            yield outcome
    finally:
        with_mark.remove()


def raise_failure(outcome: Outcome) -> None:
    """Raise the error of a run that failed, as it was raised where it was trained."""
    if outcome.kind is None:
        return
    if outcome.kind == "diverged":
        raise DivergedError(outcome.error)
    if outcome.kind == "error":
        raise RuntimeError(outcome.details or outcome.error)
    raise InputError(outcome.error)


class Mark:
    """A file with a random name in the folder of a sweep, by which workers recognise it."""

    def __init__(self, folder: Path) -> None:
        self.name = f".shared-{secrets.token_hex(8)}"
        self.path = folder / self.name
        try:
            folder.mkdir(parents=True, exist_ok=True)
            replace_file(self.path, str(os.getpid()).encode())
        except OSError as error:
            raise InputError(f"cannot write to {folder}: {error.strerror}; expected a writable folder") from None

    def remove(self) -> None:
        self.path.unlink(missing_ok=True)
