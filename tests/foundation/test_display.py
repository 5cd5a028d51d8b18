"""Tables keep numbers, and printing cuts neither numbers nor names; progress is silent for two seconds, then lines or bars."""

import io
import json
import sys

import pytest
from rich.console import Console

from recombine.foundation.display import (
    Cell,
    Column,
    Display,
    Table,
    format_duration,
    format_value,
    measure_progress,
    print_table,
    show_progress,
    track,
)

TABLE = Table(
    title="Scores",
    columns=(
        "attention",
        "a very long name of a column",
        Column(name="loss", format="scientific"),
        "numbers",
        "covered",
    ),
    rows=(
        ("softmax", Cell(value=0.5, low=0.25, high=0.75, values=(0.4, 0.6)), 1e-5, {"R²": Cell(value=0.125)}, True),
        ("hyla_no_nonlinearity_no_rms_head", Cell(value=0.5656, error=0.0105), float("nan"), None, False),
    ),
    note="in brackets: 95 % intervals",
)


def test_numbers_stay_numbers_in_json():
    first, second = json.loads(json.dumps(TABLE.as_dicts(), allow_nan=False))
    assert first["a very long name of a column"] == {"value": 0.5, "low": 0.25, "high": 0.75, "values": [0.4, 0.6]}
    assert first["numbers"] == {"R²": {"value": 0.125}}
    assert (first["loss"], second["loss"], second["covered"]) == (1e-5, None, False)


@pytest.mark.parametrize(
    ("value", "column", "text"),
    [
        (0.5, Column(name=""), "0.500"),
        (1e-5, Column(name=""), "1.0e−05"),
        (-0.25, Column(name="", digits=1), "−0.2"),
        (0.25, Column(name="", format="percent"), "25%"),
        (0.01, Column(name="", format="plain"), "0.01"),
        (0.01, Column(name="", format="fixed", digits=1), "0.0"),
        (Cell(value=69), Column(name=""), "69"),
        (Cell(value=0.5, low=0.25, high=0.75), Column(name=""), "0.500 (0.250 … 0.750)"),
        (Cell(value=0.5656, error=0.0105), Column(name=""), "0.566 ± 0.011"),
        (True, Column(name=""), "yes"),
        (None, Column(name=""), ""),
    ],
)
def test_how_values_are_written(value, column, text):
    assert format_value(value, column) == text


def printed(width: int, *, terminal: bool) -> str:
    return printed_table(TABLE, width, terminal=terminal)


def printed_table(table: Table, width: int, *, terminal: bool) -> str:
    output = io.StringIO()
    print_table(table, Console(file=output, width=width, force_terminal=terminal, color_system=None))
    return output.getvalue()


@pytest.mark.parametrize(("width", "terminal"), [(40, True), (60, False), (200, True), (200, False)])
def test_nothing_is_cut(width, terminal):
    text = printed(width, terminal=terminal)
    for row in TABLE.as_text():
        for value in row:
            assert value in text
    assert all(name in text for name in TABLE.names)
    assert "…" not in text.replace("0.250 … 0.750", "")


@pytest.mark.parametrize(("width", "terminal", "shown"), [(100, True, True), (40, True, False), (40, False, True)])
def test_optional_columns_are_left_out_of_narrow_terminals(width, terminal, shown):
    columns = ("run", Column(name="what was trained", optional=True), "score")
    table = Table(title="runs", columns=columns, rows=(("a", "a network with a long name", 0.5),), note="a note")
    text = " ".join(printed_table(table, width, terminal=terminal).split())
    assert ("a network with a long name" in text) is shown
    assert ("A wider terminal also shows: what was trained" in text) is not shown
    assert "0.500" in text
    assert "run: a" not in text  # not stacked


def test_durations():
    texts = ["3 s", "10 min", "3 h 20 min", "4.6 days"]
    assert [format_duration(seconds) for seconds in (3.0, 600.0, 12_000.0, 400_000.0)] == texts


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
    assert lines == ["work: 2/10 (20 %)  8 s left"]  # the next line is due after ten seconds
    lines = lines_of(capsys, 100, 10.0)
    assert lines[0] == "work: 1/100 (1 %)  16 min left"
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
        assert meter.time_left == ""
    assert capsys.readouterr().err == ""


def test_work_that_is_resumed_is_timed_from_where_it_began(capsys):
    now = FakeTime()
    with show_progress(display=Display(now)), measure_progress("steps", done=None) as meter:
        meter.update(500, 1000, "loss 1")
        now.time += 10
        meter.update(600, 1000, "loss 0.5")
    assert capsys.readouterr().err == "steps: 600/1000 (60 %)  loss 0.5  40 s left\n"
