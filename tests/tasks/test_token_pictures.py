"""Pictures of sequences: the values that are drawn are those of the instance, with what is asked framed."""

import numpy as np
import pytest

from recombine.foundation.errors import InputError
from recombine.tasks import TASKS
from recombine.tasks.base import Task
from recombine.training.config import default_run

SEQUENCES = ("fuzzy_logic", "hyperteacher", "in_context", "sequence_teacher")


def draw(name, path, monkeypatch):
    """The task, its first held-out instance, and the figure that was drawn of it."""
    task = default_run(name, "tiny").task
    batch = task.sample("ood", 0, batch_size=1)
    figures = []
    monkeypatch.setattr("recombine.tasks.view.save_figure", lambda figure, path: figures.append(figure))
    task.draw(batch, 0, path)
    return task, batch, figures[0]


@pytest.mark.parametrize("name", SEQUENCES)
def test_the_answers_are_drawn_and_framed(name, tmp_path, monkeypatch):
    task, batch, figure = draw(name, tmp_path / "a.png", monkeypatch)
    answers = next(axes for axes in figure.axes if axes.patches)
    assert sum(bool(axes.patches) for axes in figure.axes) == 1
    length = int(batch.info["length"][0]) if "length" in batch.info else task.sequence_length
    drawn = np.asarray(answers.images[0].get_array())
    frame = answers.patches[0]
    asked = range(round(frame.get_x() + 0.5), round(frame.get_x() + 0.5 + frame.get_width()))
    assert asked.stop == drawn.shape[1] == (len(batch.inputs[0]) if name != "sequence_teacher" else length)
    targets = batch.targets[0].reshape(-1, drawn.shape[0])[: drawn.shape[1]]
    np.testing.assert_allclose(drawn[:, asked.start :], targets[-len(asked) :].T, rtol=1e-6)
    modules = task.describe(tuple(batch.latents[0].tolist()))
    title = figure.get_suptitle().replace("\n", " ")
    assert modules.split(" + ")[0] in title


def test_longer_sequences_show_where_training_ends(tmp_path, monkeypatch):
    task, _, figure = draw("sequence_teacher", tmp_path / "a.png", monkeypatch)
    lines = [line.get_xdata()[0] for axes in figure.axes for line in axes.lines if len(axes.images)]
    assert set(lines) == {task.max_length - 0.5}


def test_png_svg_and_nothing_else(tmp_path):
    task = default_run("in_context", "tiny").task
    batch = task.sample("ood", 0, batch_size=1)
    for suffix in ("png", "svg"):
        for number in range(2):
            task.draw(batch, 0, tmp_path / f"{number}.{suffix}")
        assert (tmp_path / f"0.{suffix}").read_bytes() == (tmp_path / f"1.{suffix}").read_bytes()
    with pytest.raises(InputError, match=r"unknown picture format '\.gif'"):
        task.draw(batch, 0, tmp_path / "a.gif")


def test_every_family_with_a_card_has_a_picture():
    assert [name for name, task in TASKS.items() if task.draw is Task.draw] == ["language"]
