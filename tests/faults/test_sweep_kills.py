"""SIGKILL at any moment of a sweep loses nothing: its runs end with the bits of runs that were trained one by one."""

import os
import random
import time
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from forked import in_fork
from recombine.sweeps.local import LocalEngine
from recombine.sweeps.plan import make_plan
from recombine.sweeps.run import run_sweep
from recombine.training.directory import RunDirectory
from recombine.training.run import train_run
from recovery import Stopwatch, differences, record, recover
from small_runs import FAMILIES, final_state

pytestmark = [pytest.mark.slow, pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")]
STEPS, NUM_KILLS = 400, 50
FAULT = "kills of a sweep"
FAMILY = FAMILIES["hyperteacher"]  # whose final evaluation takes least time
CONFIGS = [
    replace(FAMILY, task=replace(FAMILY.task, seed=seed), training=replace(FAMILY.training, steps=STEPS))
    for seed in range(3)
]


def sweep(out: Path) -> Any:
    plan = make_plan(CONFIGS, "killed")
    return run_sweep(plan, LocalEngine(jobs=2, threads=1), out=out, device="cpu")


def states(out: Path) -> dict[str, Any]:
    return {config.directory_name: final_state(RunDirectory(out / config.directory_name)) for config in CONFIGS}


def work(out: Path) -> None:
    sweep(out)


def test_kills_of_a_sweep(tmp_path):
    for config in CONFIGS:
        train_run(config, out=tmp_path / "undisturbed", device="cpu")
    undisturbed = states(tmp_path / "undisturbed")
    started = time.monotonic()
    assert in_fork(partial(work, tmp_path / "timed")) == 0
    seconds = time.monotonic() - started
    draw = random.Random(0)
    killed, tries, out = 0, 0, tmp_path / "disturbed-0"
    recovered = 0  # kills after which a sweep has come to its end
    while killed < NUM_KILLS:
        tries += 1
        assert tries < 10 * NUM_KILLS, "too fast to be killed"
        stopwatch = Stopwatch()
        code = in_fork(partial(work, out), kill_after=draw.uniform(0, seconds))
        assert code in (0, -9)
        killed += code == -9
        if code == 0:
            assert differences(states(out), undisturbed) == []
            if killed > recovered:
                record(FAULT, "3 runs", tried=killed - recovered, times=stopwatch.read())
            recovered, out = killed, tmp_path / f"disturbed-{tries}"
    find_lost = lambda _: differences(states(out), undisturbed)  # noqa: E731
    status = recover(FAULT, "3 runs", partial(sweep, out), find_lost, tried=killed - recovered)
    assert status.count("finished") == len(CONFIGS)
