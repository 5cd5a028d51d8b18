"""Train runs as jobs of SLURM, through submitit: one array job, an element per run.

SLURM gives each element as many CPUs as it has threads, and sets no OMP_NUM_THREADS; the worker sets its number of threads.
At the time limit, or when it is preempted, an element is put back into the queue and continues from its last checkpoint. One
that dies otherwise is sent again once. Jobs are queried by `squeue` alone, so that no accounting is needed.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from recombine.foundation.errors import InputError, check_positive, import_extra
from recombine.foundation.imports import safe_path
from recombine.sweeps.engine import CONNECT_TIMEOUT, LOST_RETRIES, Engine, Job, Outcome, count_threads, lost_outcome
from recombine.sweeps.local import train_job

FOLDER = ".submitit"  # in the sweep's folder: the files and logs of submitit
POLL_SECONDS = 0.5
QUEUE_SECONDS = 5.0  # between two calls of squeue
SQUEUE_TIMEOUT = 600.0  # how long squeue may fail before the sweep gives up
ARRAY_SIZE = 1000  # SLURM's default limit is 1001
MAX_TIMEOUTS = 1000  # how often an element may reach its time limit: a run may be any number of limits long


class TrainJob:
    """What submitit sends: it trains a job, and if it is interrupted, asks to be started again with the same job."""

    def __call__(self, job: Job) -> Outcome:
        return train_job(job)

    def checkpoint(self, job: Job) -> Any:
        from submitit.helpers import DelayedSubmission

        return DelayedSubmission(self, job)


class SlurmEngine(Engine):
    """Array jobs of SLURM."""

    name = "slurm"

    def __init__(
        self,
        *,
        jobs: int | None,
        threads: int,
        gpus: int = 0,
        partition: str | None = None,
        time_limit: int = 1440,
    ) -> None:
        check_positive(threads=threads, time_limit=time_limit, **({} if jobs is None else {"jobs": jobs}))
        self.submitit = import_extra("submitit", extra="slurm", user="engine 'slurm'")
        self.jobs, self.threads, self.gpus = jobs, threads, gpus
        self.partition, self.time_limit = partition, time_limit
        check_answers()

    def describe(self) -> str:
        limit = "" if self.jobs is None else f", at most {self.jobs} at a time"
        return f"elements of a SLURM array{limit}, each with {count_threads(self.threads)}"

    def train(self, jobs: Sequence[Job]) -> Iterator[Outcome]:
        unsent, lost = list(jobs), Counter[str]()
        sent: dict[Any, Job] = {}
        queue = Queue()
        try:
            while unsent or sent:
                sent.update(self._submit(unsent))
                unsent.clear()
                dead = queue.find_dead(sent)
                for element in list(sent):
                    has_result = element.paths.result_pickle.exists()
                    if not has_result and element.job_id not in dead:
                        continue
                    job = sent.pop(element)
                    if has_result:
                        outcome: Outcome = element.result()
                    else:
                        lost[job.key] += 1
                        if lost[job.key] <= LOST_RETRIES:
                            unsent.append(job)
                            continue
                        outcome = lost_outcome(job.key, f"job {element.job_id} died")
                    yield outcome
                time.sleep(POLL_SECONDS)
        finally:
            for element in sent:
                element.cancel(check=False)

    def _submit(self, jobs: Sequence[Job]) -> dict[Any, Job]:
        """Send jobs, as arrays of at most `ARRAY_SIZE` elements."""
        if not jobs:
            return {}
        executor = self.submitit.AutoExecutor(
            Path(jobs[0].out) / FOLDER, cluster="slurm", slurm_max_num_timeout=MAX_TIMEOUTS
        )
        executor.update_parameters(
            name="recombine", cpus_per_task=self.threads, gpus_per_node=self.gpus, timeout_min=self.time_limit
        )
        options = {"partition": self.partition, "array_parallelism": self.jobs or ARRAY_SIZE}
        executor.update_parameters(**{f"slurm_{name}": value for name, value in options.items() if value})
        sent: dict[Any, Job] = {}
        for first in range(0, len(jobs), ARRAY_SIZE):
            part = jobs[first : first + ARRAY_SIZE]
            try:
                with safe_path():  # which SLURM passes on to the jobs
                    elements = executor.map_array(TrainJob(), part)
            except self.submitit.core.utils.FailedJobError as error:
                lines = [line for line in str(error).splitlines() if line.strip()]
                raise InputError(f"SLURM does not accept the jobs: {lines[-1] if lines else error}") from None
            sent |= dict(zip(elements, part, strict=True))
        return sent


class Queue:
    """The jobs that SLURM has not ended yet, polled every few seconds."""

    def __init__(self) -> None:
        self.last_query = self.last_answer = time.monotonic()
        self.missing: set[str] = set()

    def find_dead(self, elements: Iterable[Any]) -> set[str]:
        """Numbers of the elements that two answers in a row did not have: a result may become visible late."""
        known = self._query()
        if known is None:
            return set()
        missing = {element.job_id for element in elements} - known
        dead, self.missing = missing & self.missing, missing
        return dead

    def _query(self) -> set[str] | None:
        """All jobs of this user that have not ended; None if the last query was seconds ago or has no answer."""
        if time.monotonic() - self.last_query < QUEUE_SECONDS:
            return None
        self.last_query = time.monotonic()
        command = ["squeue", "--noheader", "--array", "--format", "%i", "--user", str(os.getuid())]
        try:
            shown = subprocess.run(command, capture_output=True, text=True, check=True, timeout=CONNECT_TIMEOUT)
        except (OSError, subprocess.SubprocessError):
            if time.monotonic() - self.last_answer > SQUEUE_TIMEOUT:
                raise InputError(
                    f"SLURM has not answered squeue for {SQUEUE_TIMEOUT:g} seconds: run the sweep again when it does"
                ) from None
            return None
        self.last_answer = time.monotonic()
        return set(shown.stdout.split())


def check_answers() -> None:
    """Require a SLURM whose controller answers within a time limit."""
    if shutil.which("sbatch") is None:
        raise InputError("there is no SLURM here: expected sbatch on the path")
    try:
        shown = subprocess.run(
            ["scontrol", "ping"], capture_output=True, text=True, timeout=CONNECT_TIMEOUT, check=False
        )
        lines = [line for line in f"{shown.stdout}\n{shown.stderr}".splitlines() if line.strip()]
        text = lines[-1].strip() if lines else "no answer"  # the last line is the conclusion
        answers = shown.returncode == 0 and "is UP" in shown.stdout
    except subprocess.TimeoutExpired:
        text, answers = "no answer", False
    if not answers:
        raise InputError(f"SLURM does not answer ({text}): expected an answer within {CONNECT_TIMEOUT:g} seconds")
