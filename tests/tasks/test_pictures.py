"""Pictures: the colours of a sequence are the values of the instance, and what the network answers is framed."""

import re
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest

from recombine.tasks import TASKS
from recombine.tasks.base import Task
from recombine.tasks.view import COLOUR_SCALES, FLOOR, WIDTH, Panel, TokenView, draw_tokens, mix_colours, write_picture
from recombine.training.config import default_run

SVG = "{http://www.w3.org/2000/svg}"


def read_cells(group):
    """The fill of each cell of a panel, by row and column."""
    cells: dict[tuple[int, int], str | None] = {}
    for path in group.findall(f"{SVG}path"):
        for column, row in re.findall(r"M(\d+) (\d+)h1v1h-1z", path.get("d")):
            assert cells.setdefault((int(row), int(column)), path.get("fill")) == path.get("fill")
    return cells


@pytest.mark.parametrize("name", ["fuzzy_logic", "hyperteacher", "in_context", "sequence_teacher"])
def test_the_answers_are_drawn_and_framed(name, tmp_path):
    task: Any = default_run(name, "tiny").task
    batch = task.sample("ood", 0, batch_size=1)
    write_picture(tmp_path / "a.svg", task.picture(batch, 0))
    root = ElementTree.parse(tmp_path / "a.svg").getroot()
    groups = [group for group in root.iter(f"{SVG}g") if group.get("class") == "cells"]
    (frame,) = (box for box in root.iter(f"{SVG}rect") if box.get("class") == "frame")
    length = int(batch.info["length"][0]) if "length" in batch.info else task.sequence_length
    answers = read_cells(groups[-1])
    num_rows = max(row for row, _ in answers) + 1
    assert sorted(answers) == [(row, column) for row in range(num_rows) for column in range(length)]
    first, num_asked = (round(float(frame.get(side)) * length / WIDTH) for side in ("x", "width"))
    assert first + num_asked == length
    targets = batch.targets[0].reshape(-1, num_rows)[:length][-num_asked:].numpy()
    shown = [answers[row, column] for column in range(first, length) for row in range(num_rows)]
    largest, smallest = targets.flatten().argmax(), targets.flatten().argmin()
    assert targets.max() == targets.min() or shown[largest] != shown[smallest]
    assert task.describe(tuple(batch.latents[0].tolist())).split(" + ")[0] in root.get("aria-label")
    if name == "sequence_teacher":  # where trained lengths end
        (divider,) = {path.get("d") for path in root.iter(f"{SVG}path") if path.get("class") == "divider"}
        assert divider.startswith(f"M{WIDTH * task.max_length / length:g} ")


@pytest.mark.parametrize("lowest", [0.0, -2.0])
def test_colours_are_the_values(lowest):
    values = np.linspace(lowest, 2.0, 12).reshape(3, 4)
    drawn = str(draw_tokens(TokenView("a < b", [Panel("c", values)], [("d", 4)])))
    assert "a &lt; b" in drawn
    cells = read_cells(
        ElementTree.fromstring(drawn.replace("<svg", f'<svg xmlns="{SVG[1:-1]}"')).find(f".//{SVG}g/{SVG}g")
    )
    colours = COLOUR_SCALES["light"]["diverging"] if lowest else (FLOOR, *COLOUR_SCALES["light"]["ramp"])
    assert (cells[0, 0], cells[2, 3]) == (colours[0], colours[-1])
    for (row, column), fill in cells.items():
        exact = mix_colours(colours, (values[row, column] - lowest) / (2 - lowest))
        assert all(abs(int(fill[i : i + 2], 16) - int(exact[i : i + 2], 16)) <= 8 for i in (1, 3, 5))


def test_every_family_but_language_has_a_picture():
    drawn = [name for name, task in TASKS.items() if task.picture is not Task.picture or task.view is not Task.view]
    assert set(TASKS) - set(drawn) == {"language"}
