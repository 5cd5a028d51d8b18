"""Command lines that are almost right, and what must hold for each of them.

Verbs, flags and types come from the dataclasses that the command line itself is made of, so that a new flag is tried without
a change here. Most values fit their flag; some are absurd, of another type, or rubbish. Sizes are tiny, so that what is valid
ends within a second.
"""

from __future__ import annotations

import os
import resource
import types
import typing
from collections.abc import Callable, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any, Literal, Union, get_args, get_origin

from hypothesis import strategies as st
from jaxtyping import config as type_checks

from faults import in_fork, limit_memory
from mutations import NASTY_TEXTS
from recombine.cli import (
    bench,
    check,
    compare,
    diagnose,
    evaluate,
    export,
    generate,
    leaderboard,
    probe,
    probe_model,
    report,
    runs,
    score,
    show,
    sweep,
    sweep_status,
    tasks,
    train,
)
from recombine.cli.main import Output, main
from recombine.tasks import TASKS
from recombine.training.config import TrainingConfig, default_run
from recombine_papers.verb import ReproduceOptions

OPTIONS: dict[str, type] = {
    "tasks": tasks.TasksOptions,
    "show": show.ShowOptions,
    "check": check.CheckOptions,
    "export": export.ExportOptions,
    "score": score.ScoreOptions,
    "train": train.TrainOptions,
    "evaluate": evaluate.EvaluateOptions,
    "probe": probe.ProbeOptions,
    "probe-model": probe_model.ProbeModelOptions,
    "diagnose": diagnose.DiagnoseOptions,
    "generate": generate.GenerateOptions,
    "runs": runs.RunsOptions,
    "compare": compare.CompareOptions,
    "leaderboard": leaderboard.LeaderboardOptions,
    "report": report.ReportOptions,
    "reproduce": ReproduceOptions,
    "sweep": sweep.SweepOptions,
    "sweep status": sweep_status.StatusOptions,
    "bench": bench.BenchOptions,
}
# what keeps a valid command line small; the flags that are drawn come after these and win
SMALL = {
    "show": ["--scale", "tiny"],
    "check": ["--scale", "tiny", "--num-instances", "16", "-q"],
    "export": ["--scale", "tiny", "--num-instances", "8"],
    "score": ["--scale", "tiny"],
    "train": ["--scale", "tiny", "--steps", "2", "--batch-size", "2", "--evaluation-instances", "8", "-q"],
    "evaluate": ["--num-instances", "8"],
    "probe": ["--num-instances", "30", "--no-tsne", "-q"],
    "diagnose": ["--num-instances", "30", "-q"],
    "report": ["--no-gallery"],
    "reproduce": ["--scale", "tiny", "--dry-run"],
    "sweep": ["--dry-run"],
    "bench": ["--seconds", "0.001"],
}
# valid values of these may take as long as one asks for, or start a cluster: what is drawn for them is never both
PATIENT = {
    "steps",
    "seconds",
    "num_documents",
    "threads",
    "jobs",
    "compile",
    "dry_run",
    "estimate",
    "engine",
}
PATIENT |= {"tsne", "gallery", "address", "vocabulary"}
SECONDS, BYTES = 30, 4 * 10**9  # of the processor, and of address space beyond what the tests themselves have

INTEGERS = [*"0123", "5", "-1", str(10**9), str(2**31), str(2**63), str(10**30)]
FLOATS = ["0", "0.25", "0.5", "1", "-1", "1e-300", "1e308", "nan", "inf", str(10**400)]
WRONG = ["", "x", "1.5", "--", "-", "=", "0x10", "١", "None", *(text for text in NASTY_TEXTS if "\0" not in text)]


def values_of(declared: Any, paths: Sequence[str]) -> st.SearchStrategy[list[str]]:
    """Words that follow a flag of this type; a fifth of them do not fit."""
    fitting = _fitting(declared, paths)
    return st.one_of(*[fitting] * 4, st.sampled_from(WRONG).map(lambda text: [text]))


def _fitting(declared: Any, paths: Sequence[str]) -> st.SearchStrategy[list[str]]:
    origin, arguments = get_origin(declared), get_args(declared)
    if origin is typing.Annotated:
        return _fitting(arguments[0], paths)
    if origin in (Union, types.UnionType):
        return st.one_of(*(_fitting(choice, paths) for choice in arguments))
    if origin is Literal:
        return st.sampled_from(arguments).map(lambda choice: [str(choice)])
    if origin is tuple:
        return st.lists(_fitting(arguments[0], paths), max_size=3).map(
            lambda words: [word for part in words for word in part]
        )
    words = {int: INTEGERS, float: FLOATS, type(None): ["None"], Path: paths, bool: [""]}.get(
        declared, [*WRONG, *paths]
    )
    return st.sampled_from(list(words)).map(lambda word: [word])


def flag_of(name: str, declared: Any, paths: Sequence[str]) -> st.SearchStrategy[list[str]]:
    """A flag with its value."""
    dashed = f"--{name.replace('_', '-')}"
    if declared is bool or bool in get_args(declared):
        return st.sampled_from([[dashed], [f"--no-{dashed[2:]}"], [dashed, "x"]])
    if name in PATIENT:
        return st.sampled_from([[dashed, "0"], [dashed, "-1"], [dashed, "x"], [dashed], [dashed, "1.5"]])
    return values_of(declared, paths).map(lambda words: [dashed, *words])


def flags_of(owners: Sequence[type], paths: Sequence[str]) -> st.SearchStrategy[list[str]]:
    """Up to three flags of the owners, now and then with a word that belongs to nothing."""
    hints: dict[str, Any] = {}
    for owner in owners:
        declared = typing.get_type_hints(owner, include_extras=True)
        hints |= {field.name: declared[field.name] for field in fields(owner)}
    single = st.one_of(*(flag_of(name, hint, paths) for name, hint in sorted(hints.items(), key=lambda pair: pair[0])))
    stray = st.sampled_from([[], [], [], [], ["--help"], ["--nonsense", "1"], ["x"], ["-q", "-q"], ["--"]])
    return st.tuples(st.lists(single, max_size=3), stray).map(
        lambda drawn: [word for flag in drawn[0] for word in flag] + drawn[1]
    )


@st.composite
def command_lines(draw: Any, paths: Sequence[str], finished: Sequence[str]) -> list[str]:
    """A verb, what it is about, and flags. `paths` are all kinds of files and folders, `finished` are runs."""
    verb = draw(st.sampled_from([*OPTIONS, "train", "train", "check", "export", "show", "evaluate", "nonsense"]))
    owners, about = [OPTIONS.get(verb, Output)], []
    anything = st.sampled_from([*paths, *WRONG])
    if verb in ("show", "check", "export", "score", "train"):
        name = draw(st.sampled_from(sorted(TASKS)))
        model = draw(st.sampled_from(TASKS[name].models))
        about = [name.replace("_", "-")] if draw(st.integers(0, 9)) else [draw(anything)]
        owners.append(TASKS[name])
        if verb == "train":
            about += ["--model", model.replace("_", "-")]
            owners += [type(default_run(name, "tiny", model).model), TrainingConfig]
        elif verb == "score":
            about += draw(st.lists(anything, min_size=1, max_size=2))
    elif verb in ("evaluate", "probe", "diagnose", "generate", "runs", "report", "compare", "leaderboard"):
        count = {"compare": 2, "report": draw(st.integers(1, 2))}.get(verb, 1)
        about = [draw(st.sampled_from(finished) if draw(st.integers(0, 3)) else anything) for _ in range(count)]
    elif verb == "reproduce":
        about = [draw(st.sampled_from(["demo", "list", "claims", *WRONG]))]
    elif verb in ("sweep", "sweep status", "probe-model"):
        about = [draw(anything)]
    elif verb == "bench":
        about = [draw(st.sampled_from(["x", "", *WRONG]))]
    return [*verb.split(), *about, *SMALL.get(verb, []), *draw(flags_of(owners, paths))]


def in_limits(work: Callable[[], int | None], folder: Path) -> tuple[int, str]:
    """Exit code and standard error of a call, as users run it, in a process, a folder and limits of its own."""
    errors = folder / "errors"
    errors.unlink(missing_ok=True)

    def limited() -> int | None:
        type_checks.update("jaxtyping_disable", True)
        os.chdir(folder)
        limit_memory(BYTES)
        resource.setrlimit(resource.RLIMIT_CPU, (SECONDS + int(sum(os.times()[:2])), resource.RLIM_INFINITY))
        try:
            return work()
        except SystemExit as stop:
            return int(stop.code or 0)

    code = in_fork(limited, errors=errors)
    return code, errors.read_text(errors="replace") if errors.exists() else ""


def find_trouble(argv: list[str], folder: Path) -> str | None:
    """What is wrong with how the command line answers, or None."""
    code, said = in_limits(lambda: main(argv), folder)
    if code not in (0, 1, 2) or (code == 1 and "diverged" not in said) or "Traceback" in said:
        return f"exit code {code}: {said[-2_000:]}"
    complaints = [line for line in said.splitlines() if line.startswith("recombine: ")]
    if code == 2 and len(complaints) != 1 and len(argv) > 1:
        return f"{len(complaints)} complaints: {said[-2_000:]}"
    return None
