"""Drawings of SRAVEN puzzles: every level of every channel shows, and the file is what its name says."""

import itertools

import numpy as np
import pytest
import torch
from matplotlib.image import imread

from recombine.errors import InputError
from recombine.tasks.sraven import SRaven
from recombine.tasks.sraven_picture import SHAPES, draw_puzzle

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


def test_every_value_of_every_feature_looks_different(tmp_path):
    """Many pixels of a panel change, for each pair of neighbouring values of each feature, from a middling panel."""
    for feature in range(5):
        pictures = []
        for value in range(8):
            panel = [3, 3, 3, 3, 3]
            panel[feature] = value
            grid = torch.tensor(panel).expand(3, 3, 5)
            pictures.append(draw(tmp_path / "puzzle.png", grid))
        for one, other in itertools.combinations(pictures, 2):
            assert (np.abs(one - other).max(axis=-1) > 0.08).sum() / 8 > 100  # in each of the 8 visible panels


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
    assert np.array_equal(wide[:100, :100], narrow[:100, :100])


def test_bad_input(tmp_path):
    with pytest.raises(InputError, match=r"unknown picture format '.gif': expected one of .png, .svg"):
        draw_puzzle(GRID, 8, tmp_path / "puzzle.gif")
    with pytest.raises(InputError, match="num_values is 17: expected at most 16"):
        draw_puzzle(GRID, 17, tmp_path / "puzzle.png")
    with pytest.raises(InputError, match="cannot write .*: No such file or directory; expected a writable place"):
        draw_puzzle(GRID, 8, tmp_path / "missing" / "puzzle.png")
    assert list(tmp_path.iterdir()) == []
