"""Tables keep numbers, and printing cuts neither numbers nor names."""

import io
import json

import pytest
from rich.console import Console

from recombine.cli.layout import print_table
from recombine.foundation.tables import Cell, Column, Table, format_number, format_value

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


def test_missing_numbers_are_empty():
    assert format_number(None) == format_number(float("nan")) == ""


def printed(width: int, *, terminal: bool) -> str:
    output = io.StringIO()
    print_table(Console(file=output, width=width, force_terminal=terminal, color_system=None), TABLE)
    return output.getvalue()


@pytest.mark.parametrize(("width", "terminal"), [(40, True), (60, False), (200, True), (200, False)])
def test_nothing_is_cut(width, terminal):
    text = printed(width, terminal=terminal)
    for row in TABLE.as_text():
        for value in row:
            assert value in text
    assert all(name in text for name in TABLE.names)
    assert "…" not in text.replace("0.250 … 0.750", "")


def test_narrow_terminals_get_a_block_per_row():
    lines = printed(70, terminal=True).splitlines()
    assert "attention  softmax" in lines[1]
    assert sum("attention" in line for line in lines) == 2
    assert sum("attention" in line for line in printed(70, terminal=False).splitlines()) == 1


@pytest.mark.parametrize(("width", "terminal", "shown"), [(100, True, True), (40, True, False), (40, False, True)])
def test_optional_columns_are_left_out_of_narrow_terminals(width, terminal, shown):
    columns = ("run", Column(name="what was trained", optional=True), "score")
    table = Table(title="runs", columns=columns, rows=(("a", "a network with a long name", 0.5),), note="a note")
    stream = io.StringIO()
    print_table(Console(file=stream, width=width, force_terminal=terminal, color_system=None), table)
    text = " ".join(stream.getvalue().split())
    assert ("a network with a long name" in text) is shown
    assert ("A wider terminal also shows: what was trained" in text) is not shown
    assert "0.500" in text
    assert "run: a" not in text  # not stacked
