"""The same configuration gives the same bits, run after run, with the same number of threads; another seed gives others."""

from dataclasses import replace

import pytest
import torch

from small_runs import FAMILIES, final_state, train


@pytest.mark.parametrize("num_threads", [1, 2])
@pytest.mark.parametrize(
    "family",
    [pytest.param(name, marks=[pytest.mark.slow] if name in ("language", "sraven") else []) for name in FAMILIES],
)
def test_the_same_configuration_gives_the_same_bits(family, num_threads, tmp_path):
    before = torch.get_num_threads()
    torch.set_num_threads(num_threads)
    try:
        first, second = (final_state(train(FAMILIES[family], tmp_path / name)) for name in ("first", "second"))
    finally:
        torch.set_num_threads(before)
    assert first == second


def test_another_seed_gives_other_bits(tmp_path):
    config = FAMILIES["fuzzy_logic"]
    other = replace(config, task=replace(config.task, seed=1))
    first, second = (final_state(train(each, tmp_path)) for each in (config, other))
    assert first["tensors"] != second["tensors"]
    assert first["split"] != second["split"]
