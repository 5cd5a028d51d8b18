"""Fuzz every verb that reads a run directory, in one process: `python tests/faults/fuzz.py --seconds 3600 --log fuzz.jsonl`.

Each case damages one or two files of a small probed run, and calls a verb on it as the command line would. A case fails if
the verb ends in anything but exit code 0 or 2 (1 for a training that diverges), if it takes too long, or if `evaluate` gives
other scores than those of the undamaged run. Failures are written to the log as JSON lines with the seed that repeats them.
"""

from __future__ import annotations

import argparse
import contextlib
import faulthandler
import io
import json
import os
import random
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections import Counter
from pathlib import Path
from typing import Any

import torch

from mutations import damage
from recombine.cli.main import run as run_verb

SIZES = ["--num-examples", "4", "--embedding-dim", "8", "--kqv-dim", "8", "--mlp-dim", "8", "--num-heads", "2"]
TASK = [
    "fuzzy-logic",
    *SIZES,
    "--num-layers",
    "1",
    "--steps",
    "20",
    "--batch-size",
    "4",
    "--evaluation-instances",
    "40",
    "-q",
]
CPU_SECONDS, PATIENCE = 30, 1_800  # for one verb: of the processor, and of the clock where other work has priority


class TooLongError(Exception):
    """A verb that did not end in time."""


def call(argv: list[str]) -> tuple[int | None, str, str, str]:
    """Exit code, standard output and error of a verb, and the traceback of an exception that it let through."""
    out, err, trace = io.StringIO(), io.StringIO(), ""
    code: int | None = None

    def stop(number: int, *_: Any) -> None:
        is_clock = number == signal.SIGALRM
        raise TooLongError(
            f"more than {PATIENCE} s of the clock" if is_clock else f"more than {CPU_SECONDS} s of CPU time"
        )

    signal.signal(signal.SIGALRM, stop)
    signal.signal(signal.SIGPROF, stop)
    signal.alarm(PATIENCE)
    signal.setitimer(signal.ITIMER_PROF, CPU_SECONDS)
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            code = run_verb(argv)
    except BaseException:
        trace = traceback.format_exc()
    finally:
        signal.alarm(0)
        signal.setitimer(signal.ITIMER_PROF, 0)
    return code, out.getvalue(), err.getvalue(), trace


def train_once(out: Path) -> Path:
    """A finished run."""
    code, said, err, trace = call(["train", *TASK, "--out", str(out)])
    assert code == 0, err + trace
    return Path(said.strip())


def make_runs(root: Path) -> dict[str, bytes]:
    """The files of a finished, probed and diagnosed run."""
    run = train_once(root)
    for verb in (["probe", "--num-instances", "30", "--no-tsne", "-q"], ["diagnose", "-q"]):
        code, _, err, trace = call([verb[0], str(run), *verb[1:]])
        assert code == 0, err + trace
    return {path.name: path.read_bytes() for path in run.iterdir()} | {"": run.name.encode()}


def verbs(run: Path, scratch: Path) -> dict[str, list[str]]:
    return {
        "evaluate": ["evaluate", str(run), "--num-instances", "20", "--json"],
        "report": ["report", str(run), "-o", str(scratch / "report.html"), "--figures", str(scratch / "figures")],
        "diagnose": ["diagnose", str(run), "--num-instances", "30", "-q"],
        "probe": ["probe", str(run), "--num-instances", "30", "--no-tsne", "-q"],
        "train": ["train", *TASK, "--out", str(run.parent)],
        "runs": ["runs", str(run.parent)],
        "compare": ["compare", str(run), str(run)],
        "leaderboard": ["leaderboard", str(run.parent), "-o", str(scratch / "leaderboard.html")],
        "activations": ["probe", "--activations", str(run / "probe.npz"), "--no-tsne", "-q"],
    }


def scores_of(shown: str) -> Any:
    return json.loads(shown)["scores"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--log", type=Path, default=Path("fuzz.jsonl"))
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    faulthandler.enable()
    base = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    with tempfile.TemporaryDirectory(dir=base) as folder, open(arguments.log, "a") as log:
        failures = fuzz(Path(folder), arguments, log)
    sys.exit(1 if failures else 0)


def fuzz(root: Path, arguments: argparse.Namespace, log: Any) -> int:
    """Damage files until the time is over; returns how many cases failed."""
    files = make_runs(root / "pristine")
    name = files.pop("").decode()
    run = root / "runs" / name
    expected = None
    counts: Counter[str] = Counter()
    seen: Counter[str] = Counter()
    started = time.monotonic()
    case = arguments.seed
    while time.monotonic() - started < arguments.seconds:
        case += 1
        draw = random.Random(case)
        shutil.rmtree(root / "runs", ignore_errors=True)
        run.mkdir(parents=True)
        verb = draw.choice(list(verbs(run, root))) if expected is not None else "evaluate"
        damaged = draw.sample(sorted(files), draw.choice((1, 1, 1, 2))) if expected is not None else []
        if verb == "activations":
            damaged = ["probe.npz"]
        dropped: list[str] = (
            [] if draw.random() < 0.7 or expected is None else draw.sample(sorted(files), draw.randrange(1, 3))
        )
        for each, content in files.items():
            if each not in dropped:
                (run / each).write_bytes(damage(content, draw) if each in damaged else content)
        code, out, err, trace = call(verbs(run, root)[verb])
        counts[f"{verb} {code}"] += 1
        trouble = trace.strip().splitlines()[-1] if trace else ""
        if not trace and code not in (0, 2) and not (code == 1 and verb == "train"):
            trouble = f"exit code {code}: {err[-300:]}"
        elif (
            not trace
            and code == 2
            and len(err.strip().splitlines()) != 1
            and verb not in ("train", "probe", "diagnose", "runs", "leaderboard")
        ):
            trouble = f"{len(err.strip().splitlines())} lines of error: {err[:500]}"
        elif code == 0 and verb == "evaluate":
            if expected is None:
                expected = scores_of(out)
            elif scores_of(out) != expected and "config.json" not in damaged:
                trouble = "other scores, exit code 0"
        if trouble:
            place = next((line.strip() for line in reversed(trace.splitlines()) if "recombine/" in line), "")
            key = f"{verb} {type_of(trouble)} {place}"
            seen[key] += 1
            if seen[key] <= 3:
                print(
                    json.dumps(
                        {
                            "case": case,
                            "verb": verb,
                            "damaged": damaged,
                            "dropped": dropped,
                            "trouble": trouble[:400],
                            "place": place,
                        }
                    ),
                    file=log,
                    flush=True,
                )
        if case % 200 == 0:
            print(
                f"{case - arguments.seed} cases, {sum(seen.values())} failures of {len(seen)} kinds",
                file=sys.stderr,
                flush=True,
            )
    took = round(time.monotonic() - started)
    summary = {"cases": case - arguments.seed, "seconds": took, "outcomes": counts, "failures": seen}
    print(json.dumps(summary), file=log, flush=True)
    return sum(seen.values())


def type_of(trouble: str) -> str:
    return trouble.split(":")[0][:40]


if __name__ == "__main__":
    main()
