"""Claims about each seed, and claims with a condition: their numbers, verdicts and bounds."""

import pytest

from recombine.sweeps import Finished, Record
from recombine.training.config import default_run
from recombine_papers import EXPERIMENTS
from recombine_papers.claims import decide
from recombine_papers.measured_claims import (
    ComputesEach,
    FittedLevel,
    HigherEach,
    LargestEach,
    ReadsEach,
    SeedRange,
    Undecided,
    judge_seeds,
)
from stored_runs import stored_run

EXPERIMENT = EXPERIMENTS["scale-width"]
CONFIG = default_run("hyperteacher", "tiny")
READS = ReadsEach(text="small", source="us", of={"width": 1}, quantity="log10_error", high=-3.0)
HIGHER = HigherEach(text="larger", source="us", of={"width": 2}, than={"width": 1}, quantity="log10_error", by=1.0)


def build(*rows, test=0.99, ood=0.95):
    """One run per row: width, seed and measured numbers."""
    return Finished(
        tuple(
            stored_run(
                Record(settings={"width": width}, config=CONFIG).with_seed(seed), {"test": test, "ood": ood}, numbers
            )
            for width, seed, numbers in rows
        )
    )


def errors(width, *values):
    return [(width, seed, {"log10_error": value}) for seed, value in enumerate(values)]


def test_one_seed_that_is_far_off_moves_neither_the_number_nor_the_verdict():
    verdict, number = decide(READS, EXPERIMENT, build(*errors(1, -3.6, -16.6, -4.0)))
    assert verdict == "seen"
    assert number == SeedRange(value=-4.0, low=-16.6, high=-3.6, values=(-3.6, -16.6, -4.0))
    assert READS.bound == "at most −3 in every seed"


@pytest.mark.parametrize(
    ("values", "verdict"),
    [
        ((-4.0, -5.0, -3.0), "seen"),
        ((-4.0, -5.0, -2.9), "seen in part"),
        ((-4.0, -2.0), "seen in part"),
        ((-1.9, -10.8, -1.8), "not seen"),
        ((-1.0, -2.0, -2.9), "refuted"),
        ((-9.0,), "seen in part"),
        ((-1.0,), "not seen"),
    ],
)
def test_the_verdict_counts_seeds(values, verdict):
    assert decide(READS, EXPERIMENT, build(*errors(1, *values)))[0] == verdict


def test_half_of_the_seeds_is_enough_for_a_part():
    assert [judge_seeds(within, 4) for within in range(5)] == ["refuted", "not seen", *["seen in part"] * 2, "seen"]


def test_a_difference_is_between_equal_seeds_and_counts_them():
    world = build(*errors(1, -4.0, -5.0, -16.0), *errors(2, -2.0, -4.5, -3.0))
    verdict, number = decide(HIGHER, EXPERIMENT, world)
    assert (verdict, number) == ("seen in part", SeedRange(value=2.0, low=0.5, high=13.0, values=(2.0, 0.5, 13.0)))
    assert number is not None
    assert HIGHER.count_within(number) == 2
    assert HIGHER.bound == "difference of at least 1 in every seed"
    assert decide(HIGHER, EXPERIMENT, build(*errors(1, -4.0), *errors(2, -3.5)))[0] == "not seen"
    assert decide(HIGHER, EXPERIMENT, build(*errors(1, -4.0)))[0] == "not run"
    unpaired = build(*errors(1, -4.0), (2, 1, {"log10_error": 0.0}))
    assert decide(HIGHER, EXPERIMENT, unpaired)[0] == "not run"


def test_the_largest_of_several_numbers_decides_and_all_are_needed():
    claim = LargestEach(
        text="small", source="us", of={"width": 1}, quantity="error_100", others=("error_10",), high=-3.0
    )
    good, bad = {"error_10": 1e-4, "error_100": 1e-6}, {"error_10": 1e-2, "error_100": 1e-6}
    assert decide(claim, EXPERIMENT, build((1, 0, good), (1, 1, good)))[0] == "seen"
    verdict, number = decide(claim, EXPERIMENT, build((1, 0, good), (1, 1, bad)))
    assert verdict == "seen in part"
    assert number is not None
    assert number.values == pytest.approx((-4.0, -2.0))
    assert decide(claim, EXPERIMENT, build((1, 0, {"error_100": 1e-6})))[0] == "not run"
    assert decide(claim, EXPERIMENT, build((1, 0, {"error_10": 0.0, "error_100": 0.0}), (1, 1, good)))[0] == "seen"


@pytest.mark.parametrize(
    ("values", "verdict"), [((-4.0, -9.0, -3.5), "seen"), ((-4.0, -9.0, 0.0), "seen in part"), ((-4.0,) * 3, "seen")]
)
def test_computed_numbers_count_seeds(values, verdict):
    claim = ComputesEach(text="small", source="us", quantity="error", high=-3.0)
    found, number = decide(claim, EXPERIMENT, Finished((), {"error": values}))
    assert number is not None
    assert (found, number.value, number.num_seeds) == (verdict, -4.0, 3)
    assert decide(claim, EXPERIMENT, Finished(()))[0] == "not run"


def test_exact_numbers_have_no_seeds_to_count():
    claim = ComputesEach(text="small", source="us", quantity="error", high=-3.0, exact=True)
    verdict, number = decide(claim, EXPERIMENT, Finished((), {"error": (-4.0,) * 3}))
    assert number is not None
    assert (verdict, number.num_seeds, claim.bound) == ("seen", 1, "at most −3")


@pytest.mark.parametrize(
    ("test", "ood", "verdict"), [(0.98, 0.95, "seen"), (0.98, 0.5, "refuted"), (0.9, 0.85, "not run")]
)
def test_a_score_decides_only_where_trained_compositions_are_fitted(test, ood, verdict):
    claim = FittedLevel(text="recombines", source="us", of={"width": 1}, low=0.9, fitted=0.97)
    found, number = decide(claim, EXPERIMENT, build(*errors(1, 0.0, 0.0, 0.0), test=test, ood=ood))
    assert number is not None
    assert found == verdict
    assert number.value == pytest.approx(ood)
    assert isinstance(number, Undecided) == (verdict == "not run")
    if isinstance(number, Undecided):
        assert number.reason == "trained compositions are not fitted (0.900)"
    assert claim.bound == "at least 0.9 if at least 0.97 on trained compositions"
    assert decide(claim, EXPERIMENT, build(*errors(2, 0.0)))[0] == "not run"


def test_a_difference_of_the_right_sign_is_not_refuted():
    assert HIGHER.judge(SeedRange(value=0.2, low=-0.1, high=0.5, values=(-0.1, 0.2, 0.5))) == "not seen"
    assert HIGHER.judge(SeedRange(value=-0.2, low=-0.5, high=-0.1, values=(-0.5, -0.2, -0.1))) == "refuted"
