"""Pictures of SRAVEN puzzles: every level of every feature shows, and the last panel is not given away."""

import pytest
import torch

from recombine.foundation.errors import InputError
from recombine.tasks.sraven.picture import draw_grid
from recombine.tasks.sraven.task import SRaven

GRID = torch.tensor([[[0, 0, 0, 0]] * 3, [[1, 2, 3, 0]] * 3, [[4, 5, 6, 7]] * 3])


def list_panels(picture):
    """What is drawn in each panel, without its place."""
    return [panel.partition(">")[2] for panel in str(picture).split('<g transform="translate')[1:]]


@pytest.mark.parametrize("feature", range(5))
def test_every_value_of_a_feature_looks_different(feature):
    """The eight visible panels have the eight values of one feature."""
    grid = torch.full((9, 5), 3)
    grid[:8, feature] = torch.arange(8)
    panels = list_panels(draw_grid(grid.view(3, 3, 5).tolist(), 8))
    assert len(panels) == len(set(panels)) == 9


def test_the_last_panel_is_not_given_away():
    other = GRID.clone()
    other[-1, -1] = 0
    assert draw_grid(GRID.tolist(), 8) == draw_grid(other.tolist(), 8)
    with pytest.raises(InputError, match="num_values is 17: expected at most 16"):
        draw_grid(GRID.tolist(), 17)


@pytest.mark.parametrize(("num_features", "num_values", "grid_size"), [(2, 8, 3), (6, 5, 3), (4, 16, 3), (4, 4, 2)])
def test_answers_are_drawn_beside_the_puzzle(num_features, num_values, grid_size):
    task = SRaven(num_features=num_features, num_values=num_values, grid_size=grid_size)
    batch = task.sample("test", 0, batch_size=20)
    num_answers = task.solve(batch.info["grids"]).num_answers
    row = int(num_answers.argmax())
    picture = str(task.picture(batch, row))
    assert picture.count("answer") - picture.count("answers") == picture.count('class="panel good"')
    assert picture.count("also fits") + picture.count("answer,") == min(3, int(num_answers[row]))
    assert picture.count('class="panel') == grid_size**2 + min(3, int(num_answers[row])) + num_features * num_values
