"""Verbs on a small run, called in this process with limits: exit code, output, and no traceback."""

from __future__ import annotations

import contextlib
import io
import signal
import traceback
from pathlib import Path
from typing import Any, NamedTuple

from recombine.cli.main import run as run_verb
from small_runs import SIZES

TASK = ["fuzzy-logic", *SIZES, "--num-layers", "1", "--steps", "20", "--batch-size", "4"]
TASK += ["--evaluation-instances", "40", "-q"]
CPU_SECONDS, MAX_SECONDS = 30, 1_800  # for one verb: of the processor, and of the clock where other work has priority


class Answer(NamedTuple):
    """What a verb that let no exception through printed."""

    code: int
    out: str
    err: str


def call(argv: list[str]) -> Answer:
    """Call a verb, which must end in time and with exit code 0 or 2; a complaint of exit code 2 is one line."""
    out, err = io.StringIO(), io.StringIO()

    def stop(number: int, *_: Any) -> None:
        raise TimeoutError(f"{argv} took more than {CPU_SECONDS} s of CPU time or {MAX_SECONDS} s")

    signal.signal(signal.SIGALRM, stop)
    signal.signal(signal.SIGPROF, stop)
    signal.alarm(MAX_SECONDS)
    signal.setitimer(signal.ITIMER_PROF, CPU_SECONDS)
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            code = run_verb(argv)
    except BaseException:
        raise AssertionError(f"{argv}: {traceback.format_exc()}") from None
    finally:
        signal.alarm(0)
        signal.setitimer(signal.ITIMER_PROF, 0)
    said = err.getvalue()
    complaints = [line for line in said.splitlines() if line.startswith("recombine: ")]
    assert code in (0, 2), f"{argv} ended with {code}: {said}"
    assert len(complaints) == (1 if code == 2 else 0), f"{argv}: {said}"
    return Answer(code, out.getvalue(), said)


def refuse(argv: list[str]) -> str:
    """The line that a verb ends with."""
    answer = call(argv)
    assert answer.code == 2, answer.out
    return answer.err


def train_once(out: Path, *flags: str) -> Path:
    """A finished run."""
    return Path(call(["train", *TASK, *flags, "--out", str(out)]).out.strip())


def verbs(run: Path, scratch: Path) -> dict[str, list[str]]:
    """Every verb that reads a run directory."""
    return {
        "evaluate": ["evaluate", str(run), "--num-instances", "20", "--json"],
        "report": ["report", str(run), "-o", str(scratch / "report.html"), "--no-gallery"],
        "diagnose": ["diagnose", str(run), "--num-instances", "30", "-q"],
        "probe": ["probe", str(run), "--num-instances", "30", "--no-tsne", "-q"],
        "train": ["train", *TASK, "--out", str(run.parent)],
        "runs": ["runs", str(run.parent), "--json"],
        "compare": ["compare", str(run), str(run)],
        "leaderboard": ["leaderboard", str(run.parent), "-o", str(scratch / "leaderboard.html")],
    }
