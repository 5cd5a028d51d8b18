"""The SRAVEN solver and what it is given: arrays, empty batches, chunks, and errors in one line."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from recombine.foundation.errors import InputError
from recombine.tasks.sraven import solver as sraven_search
from recombine.tasks.sraven import solver as sraven_solver
from recombine.tasks.sraven.solver import solve
from sraven_samples import sample


def test_batch_is_solved_as_one_by_one_and_in_chunks(monkeypatch):
    grids = torch.cat([sample(40, 4, 4, seed=6), torch.zeros(5, 3, 3, 4, dtype=torch.long)])
    whole = solve(grids, 4)
    singles = [solve(grid[None], 4) for grid in grids]
    monkeypatch.setattr(sraven_solver, "MAX_TABLE", 7 * 8 * 4**3)
    monkeypatch.setattr(sraven_search, "MAX_FRONTIER", 50)
    chunks = solve(grids, 4)
    for name in ("num_answers", "best", "probability", "answers", "answer_probabilities"):
        torch.testing.assert_close(getattr(chunks, name), getattr(whole, name))
        torch.testing.assert_close(torch.cat([getattr(single, name) for single in singles]), getattr(whole, name))
    assert torch.equal(chunks.instance, whole.instance)
    assert torch.equal(whole.instance, torch.repeat_interleave(whole.num_answers))


def test_rows_are_grouped_also_when_their_numbers_are_huge():
    table = torch.tensor([[2, 1 << 61, 5], [0, 7, 1 << 62], [2, 1 << 61, 5], [2, 3, 5], [0, 7, 9]])
    group, rows = sraven_search.group_rows(*table.unbind(dim=1))
    expected, expected_group = table.unique(dim=0, return_inverse=True)
    assert torch.equal(table[rows], expected)
    assert torch.equal(group, expected_group)


def test_last_panel_is_ignored_and_arrays_are_welcome():
    grids = sample(64, 3, seed=7)
    spoiled = grids.clone()
    spoiled[:, -1, -1] = -99
    expected = solve(grids)
    for given_grids in (spoiled, spoiled.numpy(), grids.numpy().astype(np.uint8), grids.to(torch.int16)):
        solution = solve(given_grids)
        assert torch.equal(solution.best, expected.best)
        assert torch.equal(solution.probability, expected.probability)
    truth = grids[:, -1, -1]
    assert torch.equal(expected.probability_of(truth.numpy()), expected.probability_of(truth))


def test_no_puzzles_have_no_answers():
    solution = solve(torch.zeros(0, 3, 3, 4, dtype=torch.long))
    assert solution.best.shape == (0, 4)
    assert solution.answers.shape == (0, 4)
    assert solution.num_answers.shape == solution.probability.shape == solution.instance.shape == (0,)


GRIDS = torch.zeros(2, 3, 3, 2, dtype=torch.long)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"grids": GRIDS[0]}, r"grids have shape \(3, 3, 2\): expected \(batch, row, column, feature\)"),
        ({"grids": GRIDS[:, :2]}, r"grids have shape \(2, 2, 3, 2\): .* as many rows as columns"),
        ({"grids": GRIDS[..., :0]}, r"grids have shape \(2, 3, 3, 0\)"),
        ({"grids": GRIDS[:, :1, :1]}, "grid size is 1: expected at least 2"),
        ({"grids": GRIDS.float()}, "grids hold torch.float32: expected whole numbers"),
        ({"grids": GRIDS.bool().numpy()}, "grids hold torch.bool: expected whole numbers"),
        ({"grids": GRIDS + 8}, "grids hold values from 8 to 8: expected 0 to 7"),
        ({"grids": GRIDS - 1}, "grids hold values from -1 to -1: expected 0 to 7"),
        ({"grids": GRIDS, "num_values": 2}, "num_values is 2: expected a whole number of at least 3"),
        ({"grids": GRIDS, "num_values": True}, "num_values is True: expected a whole number"),
        ({"grids": GRIDS.new_zeros(1, 5, 5, 2), "num_values": 4}, "num_values is 4: expected .* at least 5"),
        ({"grids": GRIDS.new_zeros(1, 3, 3, 32), "num_values": 3}, "32 features .* expected at most 31"),
        ({"grids": GRIDS, "multisets": [(0, 8)]}, r"unknown rule 8 in multiset \(0, 8\): .* 7 \(distribute three\)"),
        ({"grids": GRIDS, "multisets": [(0, 1, 2)]}, r"multiset \(0, 1, 2\) has 3 rules: expected 2"),
        ({"grids": GRIDS, "multisets": [(0, "x")]}, r"multiset is \(0, 'x'\): expected 2 rule numbers"),
        ({"grids": GRIDS, "multisets": []}, "0 multisets, 0 different: expected at least one"),
        ({"grids": GRIDS, "multisets": [(0, 1), (1, 0)]}, "2 multisets, 1 different: .* without duplicates"),
        ({"grids": GRIDS, "weights": [1.0]}, "1 weights without multisets"),
        ({"grids": GRIDS, "multisets": [(0, 1)], "weights": [1.0, 2.0]}, "2 weights for a list of 1 multisets"),
        ({"grids": GRIDS, "multisets": {(0, 1)}, "weights": [1.0]}, "1 weights for a set of 1 multisets"),
        ({"grids": GRIDS, "multisets": [(0, 1)], "weights": [-1.0]}, "weight is -1.0: expected a finite number"),
        ({"grids": GRIDS, "multisets": [(0, 1)], "weights": [math.nan]}, "weight is nan: expected a finite number"),
        ({"grids": GRIDS, "multisets": [(0, 1)], "weights": [0.0]}, "all 1 weights are 0"),
    ],
)
def test_bad_input_is_named_in_one_line(arguments, message):
    with pytest.raises(InputError, match=message) as caught:
        solve(**arguments)
    assert "\n" not in str(caught.value)


def test_answers_of_the_wrong_shape_are_refused():
    with pytest.raises(InputError, match=r"answers have shape \(3, 2\): expected \(2, 2\)"):
        solve(GRIDS).probability_of(GRIDS[0, 0])
