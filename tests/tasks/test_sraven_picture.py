"""Drawings of SRAVEN puzzles: every level of every channel shows, and the file is what its name says."""

import itertools

import numpy as np
import pytest
import torch
from matplotlib.image import imread

from recombine.foundation.errors import InputError
from recombine.tasks.sraven.picture import draw_puzzle
from recombine.tasks.sraven.task import SRaven
from recombine.tasks.view import SHAPES

GRID = torch.tensor([[[0, 0, 0, 0]] * 3, [[1, 2, 3, 0]] * 3, [[4, 5, 6, 7]] * 3])


def draw(path, grid, num_values=8):
    draw_puzzle(grid, num_values, path)
    return imread(path)


def test_same_puzzle_same_picture(tmp_path):
    for suffix in ("png", "svg"):
        for name in ("a", "b"):
            draw_puzzle(GRID, 8, tmp_path / f"{name}.{suffix}")
        assert (tmp_path / f"a.{suffix}").read_bytes() == (tmp_path / f"b.{suffix}").read_bytes()
    assert (tmp_path / "a.svg").read_text().startswith("<?xml")
    assert imread(tmp_path / "a.png").shape[0] > 500


@pytest.mark.parametrize("feature", range(5))
def test_every_value_of_a_feature_looks_different(tmp_path, feature):
    """The eight visible panels have the eight values of one feature: each two differ in many pixels."""
    grid = torch.full((9, 5), 3)
    grid[:8, feature] = torch.arange(8)
    picture = draw(tmp_path / "puzzle.png", grid.view(3, 3, 5))
    starts = [round((0.15 + place) * 225) for place in range(3)]  # 225 pixels a panel, after a margin
    panels = [picture[y : y + 200, x : x + 200] for y in starts for x in starts]
    for one, other in itertools.combinations(panels, 2):
        assert (np.abs(one - other).max(axis=-1) > 0.08).sum() > 100


def test_the_last_panel_is_not_given_away(tmp_path):
    other = GRID.clone()
    other[-1, -1] = 0
    assert np.array_equal(draw(tmp_path / "a.png", GRID), draw(tmp_path / "b.png", other))


def test_shapes_differ():
    for one, other in itertools.combinations(SHAPES, 2):
        assert one.shape != other.shape or not np.allclose(one, other)
    assert len(SHAPES) == 16


@pytest.mark.parametrize(("num_features", "num_values", "grid_size"), [(2, 8, 3), (6, 5, 3), (4, 16, 3), (4, 4, 2)])
def test_task_draws_answers_beside_the_puzzle(tmp_path, num_features, num_values, grid_size):
    task = SRaven(num_features=num_features, num_values=num_values, grid_size=grid_size)
    batch = task.sample("test", 0, batch_size=20)
    row = int(task.solve(batch.info["grids"]).num_answers.argmax())
    task.draw(batch, row, tmp_path / "with.png")
    draw_puzzle(batch.info["grids"][row], num_values, tmp_path / "without.png")
    wide, narrow = imread(tmp_path / "with.png"), imread(tmp_path / "without.png")
    assert wide.shape[0] == narrow.shape[0]
    assert wide.shape[1] > narrow.shape[1] + 150
    assert np.abs(wide[:100, :100] - narrow[:100, :100]).mean() < 0.01  # but for rounding of edges


def test_bad_input(tmp_path):
    with pytest.raises(InputError, match=r"unknown picture format '.gif': expected one of .png, .svg"):
        draw_puzzle(GRID, 8, tmp_path / "puzzle.gif")
    with pytest.raises(InputError, match="num_values is 17: expected at most 16"):
        draw_puzzle(GRID, 17, tmp_path / "puzzle.png")
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "file").touch()
    with pytest.raises(InputError, match=r"cannot write .*: expected a file in a writable folder"):
        draw_puzzle(GRID, 8, tmp_path / "file" / "puzzle.png")
