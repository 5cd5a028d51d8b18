"""Splits are stable for ever, cover every module, and refuse what they cannot keep."""

import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from recombine.compositions import (
    CompositionSplit,
    all_multisets,
    all_sets,
    count_components,
    order_by_hash,
    split_compositions,
)
from recombine.foundation.errors import InputError


def test_every_seed_covers_all_twelve_terms():
    redraws = []
    for seed in range(100):
        certificate = split_compositions(all_sets(12, 2), held_out=0.7, seed=seed).certificate
        assert (certificate.num_train, certificate.num_ood, certificate.overlap) == (20, 46, 0)
        assert len(certificate.coverage) == 12
        assert certificate.min_coverage >= 1
        redraws.append(certificate.redraws)
    assert 5 <= sum(redraw > 0 for redraw in redraws) <= 30  # otherwise the repair would never have run


GOLDEN = "960fe3a322f4b19eaf62ef9610a2101fe9be928b764e4344278e645486b03e31"


def test_golden_hash():
    split = split_compositions(
        all_sets(12, 2), held_out=0.7, seed=0, unknown=tuple((a + 12, b + 12) for a, b in all_sets(4, 2))
    )
    assert split.certificate.sha256 == GOLDEN


def test_the_hash_is_the_same_in_another_process():
    code = "from recombine import FuzzyLogic; print(FuzzyLogic().split.certificate.sha256)"
    environment = {"PYTHONHASHSEED": "12345", "OMP_NUM_THREADS": "1"}
    printed = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=environment)
    assert printed.stdout.strip() == GOLDEN


def test_the_order_does_not_depend_on_the_order_given():
    compositions = all_multisets(5, 3)
    assert order_by_hash(compositions, seed=3) == order_by_hash(reversed(compositions), seed=3)
    assert order_by_hash(compositions, seed=3) != order_by_hash(compositions, seed=4)


@given(
    num_modules=st.integers(2, 9),
    size=st.integers(1, 3),
    multisets=st.booleans(),
    held_out=st.floats(0.01, 0.99),
    seed=st.integers(0, 2**31),
)
def test_a_split_keeps_its_promises_or_is_refused(num_modules, size, multisets, held_out, seed):
    compositions = all_multisets(num_modules, size) if multisets else all_sets(num_modules, min(size, num_modules))
    try:
        split = split_compositions(compositions, held_out=held_out, seed=seed)
    except InputError as error:
        assert "held-out fraction" in str(error)  # noqa: PT017
        return
    assert sorted(split.train + split.ood) == sorted(compositions)
    assert not set(split.train) & set(split.ood)
    assert {module for composition in split.train for module in composition} == set(range(num_modules))
    assert split.certificate.overlap == 0


def test_connected_components():
    assert count_components([(0, 1), (1, 2), (2, 0), (3, 4), (4, 5), (3, 5)], range(6)) == 2
    assert count_components([(0, 1), (1, 2), (2, 3), (3, 4), (4, 5), (0, 5)], range(6)) == 1
    assert count_components([(0, 0)], range(2)) == 2


def test_a_certificate_tells_what_is_wrong():
    """It reads the compositions, not the intentions."""
    certificate = CompositionSplit(train=((0, 1), (2, 3)), ood=((0, 1), (1, 4))).certificate
    assert certificate.overlap == 1
    assert certificate.min_coverage == 0
    assert certificate.coverage[4] == 0
    assert not certificate.connected
    assert certificate.num_components == 3


@pytest.mark.parametrize(
    ("compositions", "message"),
    [
        ([(0, 1), (0, 1), (1, 2), (0, 2)], r"composition \(0, 1\) is listed twice: expected different ones"),
        ([(0, 1), (1, 0), (1, 2), (0, 2)], r"composition \(1, 0\): expected a sorted tuple of module numbers"),
        ([(0, 1), ()], r"composition \(\): expected a sorted tuple"),
        ([(0, "x")], "expected a sorted tuple of module numbers"),
        ([(True, 2)], "expected a sorted tuple of module numbers"),
        ([], "there are no compositions: expected at least one"),
    ],
)
def test_lists_that_could_train_what_they_hold_out(compositions, message, unchecked):
    with pytest.raises(InputError, match=message):
        split_compositions(compositions, held_out=0.25, seed=0)


@pytest.mark.parametrize(
    ("held_out", "seed", "message"),
    [
        *((held_out, 0, "strictly between 0 and 1") for held_out in (0.0, 1.0, -0.1, 1.5, float("nan"), "x", None)),
        *((0.5, seed, "expected a whole number") for seed in ("x", None)),
        (0.94, 0, "leaves 4 training compositions: expected at least 6"),
        (0.01, 0, "which is none"),
        # six training pairs can cover twelve modules only as a perfect matching: one draw in nine thousand
        (60 / 66, 0, "in 3 draws none covered all 12 modules"),
    ],
)
def test_impossible_splits_are_errors(held_out, seed, message, monkeypatch, unchecked):
    monkeypatch.setattr("recombine.compositions.MAX_REDRAWS", 3)
    with pytest.raises(InputError, match=message):
        split_compositions(all_sets(12, 2), held_out=held_out, seed=seed)
    with pytest.raises(InputError, match="expected both to be at least 1"):
        all_sets(0, 2)
