"""SIGKILL at any moment loses nothing: a run that was killed often ends with the bits of one that was never disturbed."""

import os
import random
import time
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from forked import in_fork, kill_self
from recombine.foundation import files
from recombine.training.directory import RunDirectory
from recovery import Stopwatch, differences, record, recover
from small_runs import FAMILIES, check_often, final_state, leftovers, train

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")


@pytest.fixture(autouse=True)
def _often(monkeypatch):
    check_often(monkeypatch)


def find_run(out: Path) -> RunDirectory:
    (path,) = out.iterdir()
    return RunDirectory(path)


def compare_states(expected: dict[str, Any], run: RunDirectory) -> list[str]:
    """What of a run is not as it would be without a fault."""
    return differences(final_state(run), expected)


def kill_at_random(fault: str, family: str, tmp_path: Path, num_kills: int) -> None:
    config = FAMILIES[family]
    started = time.monotonic()
    undisturbed = final_state(train(config, tmp_path / "undisturbed"))
    seconds = time.monotonic() - started
    draw = random.Random(family)

    def work(out: Path) -> None:
        train(config, out)

    killed, tries, out = 0, 0, tmp_path / "disturbed-0"
    recovered = 0  # kills after which a process has come to its end
    while killed < num_kills:
        tries += 1
        assert tries < 20 * num_kills, "too fast to be killed"
        stopwatch = Stopwatch()
        code = in_fork(partial(work, out), kill_after=draw.uniform(0, seconds))
        assert code in (0, -9)
        killed += code == -9
        seconds *= 1.1 if code == -9 else 0.7  # a machine may be busier now than it was before
        if code == 0:
            assert differences(final_state(find_run(out)), undisturbed) == []
            if killed > recovered:
                record(fault, family, tried=killed - recovered, times=stopwatch.read())
            recovered, out = killed, tmp_path / f"disturbed-{tries}"
    call_again, find_lost = partial(train, config, out), partial(compare_states, undisturbed)
    recover(fault, family, call_again, find_lost, tried=killed - recovered)
    assert [name for name in leftovers(find_run(out)) if not name.endswith(".tmp")] == []


@pytest.mark.parametrize("family", ["fuzzy_logic", pytest.param("language", marks=pytest.mark.slow)])
def test_a_few_kills_at_random(family, tmp_path):
    kill_at_random("a few random kills", family, tmp_path, 4)


@pytest.mark.slow
@pytest.mark.parametrize("family", FAMILIES)
def test_fifty_kills_at_random(family, tmp_path):
    kill_at_random("random kills", family, tmp_path, 50)


class Countdown:
    """Kills the process at the n-th operation on files: before it, after it, or with half of the bytes written."""

    def __init__(self, number: int) -> None:
        self.left = number

    def reached(self) -> bool:
        self.left -= 1
        return self.left < 0

    def install(self) -> None:
        for name in ("fsync", "replace", "link"):
            operation = getattr(os, name)

            def counted(*arguments, operation=operation, **options):
                if self.reached():
                    kill_self()
                done = operation(*arguments, **options)
                if self.reached():
                    kill_self()
                return done

            setattr(os, name, counted)
        files.open = self.open  # type: ignore[attr-defined]

    def open(self, path, mode):
        file = open(path, mode)  # noqa: SIM115
        countdown = self

        class Halved:
            def __enter__(self):
                return self

            def __exit__(self, *error):
                file.close()

            def __getattr__(self, name):
                return getattr(file, name)

            def write(self, content):
                if countdown.reached():
                    file.write(content[: len(content) // 2])
                    file.flush()
                    kill_self()
                return file.write(content)

        return Halved()


# with a checkpoint every two steps: the first, one that keeps the first, one that replaces what was kept, and the last
STEPS_OF_EVERY_KIND = 8


def kill_at_operations(fault: str, tmp_path: Path, numbers) -> int:
    """How many of the numbers are operations of a run; after each kill the run is resumed and compared."""
    config = FAMILIES["fuzzy_logic"]
    config = replace(config, training=replace(config.training, steps=STEPS_OF_EVERY_KIND))
    undisturbed = final_state(train(config, tmp_path / "undisturbed"))
    for count, number in enumerate(numbers):
        out = tmp_path / str(number)

        def work(out=out, number=number):
            Countdown(number).install()
            train(config, out)

        code = in_fork(work)
        assert code in (0, -9)
        if code == 0:
            return count
        recover(fault, f"operation {number}", partial(train, config, out), partial(compare_states, undisturbed))
        assert [name for name in leftovers(find_run(out)) if not name.endswith(".tmp")] == []
    return len(numbers)


def test_kills_at_some_operations_on_files(tmp_path):
    assert kill_at_operations("kills at some operations", tmp_path, (0, 7, 26, 43)) == 4


@pytest.mark.slow
def test_kills_at_every_operation_on_files(tmp_path):
    """Every write, fsync, rename and link of a run, from the first to the last."""
    assert kill_at_operations("kills at every operation", tmp_path, range(10_000)) > 100
