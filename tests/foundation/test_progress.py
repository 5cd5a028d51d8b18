"""Progress: silent for two seconds, then a bar or lines with an estimate."""

import io
import sys
from typing import Any

import pytest
import torch

import recombine
from recombine.cli.main import run as run_verb
from recombine.foundation import progress
from recombine.foundation.progress import Display, format_seconds, measure_progress, show_progress, track
from recombine.tasks.modular.hyperteacher import Hyperteacher
from recombine.training.config import TrainingConfig


class FakeTime:
    """A clock that goes on when it is told to."""

    def __init__(self) -> None:
        self.time = 100.0

    def __call__(self) -> float:
        return self.time


def lines_of(capsys, count, seconds, total=None):
    now = FakeTime()
    with show_progress(display=Display(now)):
        for _ in track(range(count), "work", total):
            now.time += seconds
    return capsys.readouterr().err.splitlines()


def test_short_work_is_silent(capsys):
    assert lines_of(capsys, 10, 0.15) == []


def test_lines_say_how_far_and_how_long(capsys):
    lines = lines_of(capsys, 10, 1.0)
    assert lines == ["work: 2/10 (20 %)  0:00:08 left"]  # the next line is due after ten seconds
    lines = lines_of(capsys, 100, 10.0)
    assert lines[0] == "work: 1/100 (1 %)  0:16:30 left"
    assert len(lines) == 5 + (1000 - 50) // 60  # every ten seconds in the first minute, then every minute


@pytest.mark.parametrize("is_terminal", [False, True])
def test_work_goes_on_where_its_progress_cannot_be_written(is_terminal, monkeypatch):
    """The disk of a log is full, or the terminal was closed."""

    class Full(io.StringIO):
        def write(self, text: str) -> int:
            raise OSError(28, "No space left on device")

        def isatty(self) -> bool:
            return is_terminal

    monkeypatch.setattr(sys, "stderr", Full())
    now = FakeTime()
    with show_progress(display=Display(now)):
        for _ in track(range(5), "work"):
            now.time += 10.0


def test_nothing_is_shown_unless_turned_on(capsys):
    assert list(track(range(3), "work")) == [0, 1, 2]
    with show_progress(), show_progress(False), measure_progress("work", 2) as meter:
        meter.update(1)
        assert meter.elapsed == 0.0
        assert meter.seconds_left is None
    assert capsys.readouterr().err == ""


def test_work_that_is_resumed_is_timed_from_where_it_began(capsys):
    now = FakeTime()
    with show_progress(display=Display(now)), measure_progress("steps", done=None) as meter:
        meter.update(500, 1000, "loss 1")
        now.time += 10
        meter.update(600, 1000, "loss 0.5")
    assert capsys.readouterr().err == "steps: 600/1000 (60 %)  loss 0.5  0:00:40 left\n"


def test_slow_steps_are_shown_before_the_next_row_of_metrics(tmp_path, capsys, monkeypatch):
    """A row comes after ten steps of a minute each; lines come sooner."""
    now = FakeTime()
    monkeypatch.setattr("recombine.training.run.time.monotonic", now)
    monkeypatch.setattr(progress, "_display", Display(now))

    class Slow(torch.nn.Linear):
        def forward(self, inputs):
            now.time += 60 * self.training
            return super().forward(inputs)

    task = Hyperteacher(num_modules=4, num_active=2, support="random")
    module = Slow(task.input_dim, task.output_dim)
    recombine.benchmark(module, task, training=TrainingConfig(steps=20, batch_size=4), evaluation_instances=20)
    lines = [line for line in capsys.readouterr().err.splitlines() if line.startswith("Slow: ")]
    assert lines[0] == "Slow: 1/20 (5 %)  0:19:00 left"
    assert lines[9].startswith("Slow: 10/20 (50 %)  loss ")
    assert "steps/s" not in lines[9]  # the first steps are not timed
    assert len(lines) == 20


def test_a_terminal_gets_bars(monkeypatch):
    terminal: Any = io.StringIO()
    terminal.isatty = lambda: True
    monkeypatch.setattr(sys, "stderr", terminal)
    now = FakeTime()
    display = Display(now)
    with show_progress(display=display):
        for i in track(range(3), "outer"):
            now.time += 3
            for _ in track(range(2), "inner"):
                now.time += 3 * (i == 1)
    shown = terminal.getvalue()
    assert "outer" in shown
    assert "inner" in shown
    assert "3/3" in shown
    assert "inner" not in shown.rsplit("outer", 1)[-1]  # bars within others go away


@pytest.mark.parametrize(("flags", "shown"), [([], True), (["--json"], False), (["--quiet"], False)])
def test_verbs_show_progress(tmp_path, monkeypatch, capsys, flags, shown):
    monkeypatch.setattr(progress, "SILENT_SECONDS", -1.0)
    monkeypatch.setattr(progress, "_display", None)
    out = str(tmp_path / "instances.parquet")
    assert run_verb(["export", "fuzzy-logic", "--scale", "tiny", "--num-instances", "1500", "-o", out, *flags]) == 0
    assert ("fuzzy_logic ood: 1000/1500 (67 %)" in capsys.readouterr().err) == shown
    assert progress._display is None or shown


def test_times_are_written_plainly():
    assert [format_seconds(seconds) for seconds in (0.0, 61.4, 3723.0)] == ["0:00:00", "0:01:01", "1:02:03"]
