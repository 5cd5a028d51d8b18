"""The six supports: their counts, what they promise, and what cannot exist."""

from math import comb
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from recombine.compositions import all_sets, order_by_hash
from recombine.foundation.errors import InputError
from recombine.tasks.modular.supports import split_support

PAPER: dict[str, Any] = {"num_modules": 16, "num_active": 3, "held_out": 0.25, "seed": 0}


@pytest.mark.parametrize(
    ("support", "num_train", "num_held_out", "covered", "connected"),
    [
        ("random", 522, 174, True, True),
        ("equal", 522, 174, True, True),
        ("disconnected", 184, 512, True, False),
        ("non_compositional", 575, 121, False, False),
        ("popular_modules", 522, 174, True, True),
        ("unpopular_modules", 522, 174, True, True),
    ],
)
@pytest.mark.parametrize("seed", [0, 1])
def test_counts_and_promises_at_the_papers_size(support, num_train, num_held_out, covered, connected, seed):
    split = split_support(support, **{**PAPER, "seed": seed})
    certificate = split.certificate
    assert (certificate.num_train, certificate.num_ood) == (num_train, num_held_out)
    assert certificate.num_train + certificate.num_ood == 696
    assert certificate.overlap == 0
    assert set(split.train + split.ood) == set(all_sets(16, (1, 2, 3)))
    assert (certificate.min_coverage > 0, certificate.connected) == (covered, connected)
    assert set(certificate.coverage) == set(range(16))


@settings(max_examples=25, deadline=None)
@given(
    num_modules=st.integers(4, 9), num_active=st.integers(2, 3), held_out=st.floats(0.1, 0.6), seed=st.integers(0, 99)
)
def test_equal_balances_usage_to_within_one(num_modules, num_active, held_out, seed):
    split = split_support("equal", num_modules=num_modules, num_active=num_active, held_out=held_out, seed=seed)
    random = split_support("random", num_modules=num_modules, num_active=num_active, held_out=held_out, seed=seed)
    usage = split.certificate.coverage.values()
    assert max(usage) - min(usage) <= 1
    assert len(split.train) == len(random.train)
    everything = all_sets(num_modules, range(1, num_active + 1))
    start = order_by_hash(everything, seed=seed, redraw=split.redraws)[-len(split.train) :]
    assert sorted(map(len, split.train)) == sorted(map(len, start))  # modules are exchanged, never dropped
    assert split.certificate.connected
    assert random.certificate.connected


def test_disconnected_trains_within_two_groups_of_equal_size():
    split = split_support("disconnected", **PAPER)
    assert split.certificate.num_components == 2
    group = {module for composition in split.train if 0 in composition for module in composition}
    assert len(group) == 8
    assert all(group.issuperset(each) or group.isdisjoint(each) for each in split.train)
    assert all(group & {*each} and {*each} - group for each in split.ood)


def test_non_compositional_leaves_out_one_module():
    split = split_support("non_compositional", **PAPER)
    (left_out,) = [module for module, count in split.certificate.coverage.items() if count == 0]
    assert all(left_out in composition for composition in split.ood)
    assert len(split.ood) == 1 + 15 + comb(15, 2)


@pytest.mark.parametrize("support", ["disconnected", "non_compositional"])
def test_what_must_be_held_out_is_so_whatever_the_fraction(support):
    splits = [split_support(support, **{**PAPER, "held_out": held_out}) for held_out in (0.25, 0.0, 0.1, 0.995, 1.0)]
    assert all(split == splits[0] for split in splits)


@pytest.mark.parametrize("held_out", [0.2, 0.333, 0.5, 0.8])
def test_the_others_hold_out_as_many_as_a_random_support(held_out):
    supports = ("random", "popular_modules", "unpopular_modules")
    assert len({len(split_support(each, **{**PAPER, "held_out": held_out}).train) for each in supports}) == 1


def test_unpopular_modules_hold_out_the_last_module_even_if_that_is_more():
    split = split_support("unpopular_modules", **{**PAPER, "held_out": 0.1})
    assert set(all_sets(15, (1, 2, 3))) < set(split.train)
    assert (len(split.train), len(split.ood)) == (575 + 1, 120)
    assert len(split_support("popular_modules", **{**PAPER, "held_out": 0.1}).train) == 627


def test_popular_modules_train_whatever_has_one_of_the_first_six():
    split = split_support("popular_modules", **PAPER)
    popular = [each for each in split.train if each[0] < 6]
    assert len(popular) == 521
    assert all(each[0] >= 6 for each in split.ood)


def test_unpopular_modules_have_a_core_of_fourteen_and_one_lone_link():
    split = split_support("unpopular_modules", **PAPER)
    assert set(all_sets(14, (1, 2, 3))) <= set(split.train)
    coverage = split.certificate.coverage
    assert coverage[15] == 1
    assert 1 < coverage[14] < min(coverage[module] for module in range(14))


@pytest.mark.parametrize(
    ("support", "change", "message"),
    [
        ("random", {"num_active": 1}, "expected at least 2 and at most"),
        ("random", {"held_out": 0.99}, "expected at least 8, the fewest that can cover and connect 16 modules"),
        ("equal", {"held_out": 0.0}, "held-out fraction is 0.0"),
        ("equal", {"num_modules": 20, "most_active": 9}, "20 modules, 1 to 9 at once, make 263,949 compositions"),
        ("disconnected", {"num_modules": 10**6, "num_active": 10**5}, "expected at most 200,000; use fewer modules"),
        ("disconnected", {"num_modules": 3}, "disconnected of 3 modules: expected at least 4"),
        ("popular_modules", {"held_out": 0.0}, "held-out fraction is 0.0: expected a number strictly between 0 and 1"),
        ("unpopular_modules", {"held_out": 0.001}, "held-out fraction is 0.001 of 696 compositions"),
        ("popular_modules", {"held_out": 0.995}, "4 training compositions: expected at least 121"),
        ("unpopular_modules", {"held_out": 0.995}, "4 training compositions of 16 modules: expected at least 17"),
    ],
)
def test_what_cannot_exist_is_refused(support, change, message):
    with pytest.raises(InputError, match=message):
        split_support(support, **{**PAPER, **change})
