"""How many evaluation puzzles occur in training."""

from itertools import pairwise

import pytest

from recombine.tasks.sraven.generator import tabulate_overlap
from recombine.tasks.sraven.task import SRaven

SMALL = SRaven(num_features=2, num_values=5)


def test_puzzles_that_occur_in_training_are_counted():
    """The share by the definition: tuples of all visible values, looked up in a set."""
    table = tabulate_overlap(SMALL, 100)
    assert [row[0] for row in table.rows] == [1_600, 6_400, 25_600]

    def visible(batch):
        return [tuple(grid[:-1].flatten().tolist()) for grid in batch.info["grids"].flatten(1, 2)]

    drawn = [puzzle for i in range(4) for puzzle in visible(SMALL.sample("train", i, batch_size=8_192))]
    training = set(drawn[:25_600])
    for column, split in ((1, "test"), (2, "ood")):
        shares = [row[column] for row in table.rows]
        seen = [puzzle in training for puzzle in visible(SMALL.sample(split, 0, batch_size=100))]
        assert all(low <= high for low, high in pairwise(shares))
        assert shares[-1] == pytest.approx(sum(seen) / 100)
