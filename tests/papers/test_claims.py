"""Claims: their numbers, verdicts and bounds, over intervals and over seeds."""

from typing import Any

import pytest

from recombine.foundation.errors import InputError
from recombine.sweeps import Record
from recombine.tasks.base import Metric
from recombine.tasks.modular.hyperteacher import Hyperteacher
from recombine.training.config import default_run
from recombine.training.intervals import SeedScore, score_values
from recombine_papers import (
    Computes,
    Correlates,
    Difference,
    Exceeds,
    Gap,
    Lead,
    Level,
    PaperExperiment,
    Reads,
    Untested,
)
from recombine_papers.base import Finished
from recombine_papers.claims import (
    SeedRange,
    Undecided,
    chance_of_lead,
    correct_leads,
    decide,
    holm,
    judge_seeds,
    widen_for_all,
    with_excess,
)
from recombine_papers.hypernetwork import fuzzy_logic, language
from stored_runs import NARROW, WIDE, Widths, build_world, stored_run

CONFIG = default_run("hyperteacher", "tiny")
WORDS: Any = {"text": "?", "source": "?"}
READS = Reads(**WORDS, of={"width": 1}, quantity="log10_error", high=-3.0, per_seed=True)
HIGHER = Exceeds(**WORDS, of={"width": 2}, than={"width": 1}, quantity="log10_error", by=1.0, per_seed=True)


def decide_on(claim, **world):
    return decide(claim, Widths(), Finished(tuple(stored_run(*parts) for parts in build_world(**world))))


@pytest.mark.parametrize(
    ("claim", "verdict", "value"),
    [
        (Lead(**WORDS, better=WIDE, worse=NARROW, by=0.1), "seen", 0.4),
        (Lead(**WORDS, better=WIDE, worse=NARROW, by=0.5), "smaller than claimed", 0.4),
        (Lead(**WORDS, better=NARROW, worse=NARROW, by=0.1), "not seen", 0.0),
        (Lead(**WORDS, better=NARROW, worse=WIDE, by=0.1), "not reached at our size", -0.4),
        (Lead(**WORDS, better=WIDE, worse={"width": 64}, by=0.1), "not run", None),
        (Lead(**WORDS, better=WIDE, worse=NARROW, by=0.1, paired=False), "seen", 0.4),
        (Lead(**WORDS, better=WIDE, worse={"width": 64}, by=0.1, paired=False), "not run", None),
        (Difference(**WORDS, first=WIDE, second=NARROW, high=0.05), "not reached at our size", 0.4),
        (Difference(**WORDS, first=WIDE, second=NARROW, low=-0.5, high=0.5), "seen", 0.4),
        (Level(**WORDS, of=WIDE, low=0.9), "seen", 0.9),
        (Level(**WORDS, of=WIDE, high=0.8), "not reached at our size", 0.9),
        (Level(**WORDS, of=WIDE, split="test", low=0.9, high=0.96), "seen", 0.95),
        (Gap(**WORDS, of=NARROW, by=0.1), "seen", 0.45),
        (Gap(**WORDS, of=WIDE, by=0.1), "smaller than claimed", 0.05),
        (Gap(**WORDS, of=WIDE, by=0.1, at_most=True), "seen", 0.05),
        (Gap(**WORDS, of=NARROW, by=0.1, at_most=True), "not reached at our size", 0.45),
        (Reads(**WORDS, of=WIDE, quantity="z", low=0.5), "seen", 0.8),
        (Reads(**WORDS, of=NARROW, quantity="z", low=0.5), "not reached at our size", 0.3),
        (Reads(**WORDS, of=NARROW, quantity="other", low=0.5), "not run", None),
        (Exceeds(**WORDS, of=WIDE, quantity="z", over="before", by=0.1), "seen", 0.7),
        (Exceeds(**WORDS, of=WIDE, than=NARROW, quantity="z", by=0.1), "seen", 0.5),
        (Exceeds(**WORDS, of=NARROW, than=WIDE, quantity="z", by=0.1), "not reached at our size", -0.5),
        (Correlates(**WORDS, quantity="z", by=0.7), "seen", 1.0),
        (Untested(**WORDS, of={"width": 9}, needs="weeks"), "not run", None),
    ],
)
def test_verdicts(claim, verdict, value):
    def measure(record):
        return {"z": 0.8 if record.settings["width"] == 512 else 0.3, "before": 0.1}

    decided, number = decide_on(claim, measured=measure)
    assert decided == verdict
    assert (None if number is None else number.value) == (None if value is None else pytest.approx(value))


def test_a_lead_in_a_loss_is_a_lower_number(monkeypatch):
    monkeypatch.setattr(Hyperteacher, "metric_info", {"r2_pooled": Metric(title="loss", higher_is_better=False)})
    verdict, number = decide_on(Lead(**WORDS, better=NARROW, worse=WIDE, by=0.1))
    assert (verdict, number.value) == ("seen", pytest.approx(0.4))


def test_a_claim_may_have_another_metric_than_the_experiment(monkeypatch):
    monkeypatch.setattr(Widths, "metric", "unknown")
    for claim in (
        Lead(**WORDS, better=WIDE, worse=NARROW, by=0.1, metric="r2_pooled"),
        Difference(**WORDS, first=WIDE, second=NARROW, low=0.3, metric="r2_pooled"),
        Level(**WORDS, of=WIDE, low=0.4, metric="r2_pooled"),
        Lead(**WORDS, better=WIDE, worse=NARROW, by=0.1, metric="r2_pooled", paired=False),
    ):
        assert decide_on(claim)[0] == "seen"


def test_the_interval_decides_too():
    lead = Lead(**WORDS, better=WIDE, worse=NARROW, by=0.1)
    assert lead.judge(SeedScore(value=0.2, low=-0.1, high=0.5, values=(0.2, 0.2))) == "seen in part"
    assert score_values([1.0, 2.0, 3.0]).high == pytest.approx(2 + 4.303 * 1 / 3**0.5, abs=1e-3)
    with pytest.raises(InputError, match="no values to average"):
        score_values([])


class Numbers(PaperExperiment):
    """An experiment that measures one number."""

    name, question, metric = "numbers", "?", "r2"
    quantities = ("z",)

    def records(self, scale):
        return []


def test_a_claim_about_a_number_that_is_not_measured_is_an_error(monkeypatch):
    monkeypatch.setattr(Numbers, "claims", (Reads(**WORDS, of=WIDE, quantity="z", low=0.5),))
    assert Numbers().claims
    for claim in (
        Reads(**WORDS, of=WIDE, quantity="y", low=0.5),
        Reads(**WORDS, of=WIDE, quantity="z", largest_of=("y",), low=0.5),
        Exceeds(**WORDS, of=WIDE, quantity="z", over="y", by=0.1),
        Correlates(**WORDS, quantity="y", by=0.1),
    ):
        monkeypatch.setattr(Numbers, "claims", (claim,))
        with pytest.raises(InputError, match="unknown quantity in the claims of 'numbers' 'y': expected one of z"):
            Numbers()


def build(*rows, test=0.99, ood=0.95):
    """One run per row: width, seed and measured numbers."""
    runs = (
        stored_run(
            Record(settings={"width": width}, config=CONFIG).with_seed(seed), {"test": test, "ood": ood}, numbers
        )
        for width, seed, numbers in rows
    )
    return Finished(tuple(runs))


def errors(width, *values):
    return [(width, seed, {"log10_error": value}) for seed, value in enumerate(values)]


def test_one_seed_that_is_far_off_moves_neither_the_number_nor_the_verdict():
    verdict, number = decide(READS, Widths(), build(*errors(1, -3.6, -16.6, -4.0)))
    assert verdict == "seen"
    assert number == SeedRange(value=-4.0, low=-16.6, high=-3.6, values=(-3.6, -16.6, -4.0))


@pytest.mark.parametrize(
    ("values", "verdict"),
    [
        ((-4.0, -5.0, -3.0), "seen"),
        ((-4.0, -5.0, -2.9), "seen in part"),
        ((-4.0, -2.0), "seen in part"),
        ((-1.9, -10.8, -1.8), "not seen"),
        ((-1.0, -2.0, -2.9), "refuted"),
        ((-9.0,), "preliminary"),
        ((-1.0,), "preliminary"),
    ],
)
def test_the_verdict_counts_seeds(values, verdict):
    assert READS.judge(decide(READS, Widths(), build(*errors(1, *values)))[1]) == verdict
    computed = Computes(**WORDS, quantity="error", high=-3.0, per_seed=True)
    assert decide(computed, Widths(), Finished((), {"error": values}))[0] == verdict


def test_half_of_the_seeds_is_enough_for_a_part():
    assert [judge_seeds(within, 4) for within in range(5)] == ["refuted", "not seen", *["seen in part"] * 2, "seen"]


def test_a_difference_is_between_equal_seeds_and_counts_them():
    world = build(*errors(1, -4.0, -5.0, -16.0), *errors(2, -2.0, -4.5, -3.0))
    verdict, number = decide(HIGHER, Widths(), world)
    assert (verdict, number) == ("seen in part", SeedRange(value=2.0, low=0.5, high=13.0, values=(2.0, 0.5, 13.0)))
    assert HIGHER.count_within(number) == 2
    assert decide(HIGHER, Widths(), build(*errors(1, -4.0), *errors(2, -3.5)))[0] == "preliminary"
    assert decide(HIGHER, Widths(), build(*errors(1, -4.0)))[0] == "not run"
    assert decide(HIGHER, Widths(), build(*errors(1, -4.0), (2, 1, {"log10_error": 0.0})))[0] == "not run"
    # a difference of the right sign is not refuted
    assert HIGHER.judge(SeedRange(value=0.2, low=-0.1, high=0.5, values=(-0.1, 0.2, 0.5))) == "not seen"
    assert HIGHER.judge(SeedRange(value=-0.2, low=-0.5, high=-0.1, values=(-0.5, -0.2, -0.1))) == "refuted"


def test_the_largest_of_several_numbers_decides_and_all_are_needed():
    fields: Any = {"quantity": "error_100", "largest_of": ("error_10",), "high": -3.0, "per_seed": True}
    claim = Reads(**WORDS, of={"width": 1}, **fields)
    good, bad = {"error_10": 1e-4, "error_100": 1e-6}, {"error_10": 1e-2, "error_100": 1e-6}
    assert decide(claim, Widths(), build((1, 0, good), (1, 1, good)))[0] == "seen"
    verdict, number = decide(claim, Widths(), build((1, 0, good), (1, 1, bad)))
    assert (verdict, number.values) == ("seen in part", pytest.approx((-4.0, -2.0)))
    assert decide(claim, Widths(), build((1, 0, {"error_100": 1e-6})))[0] == "not run"
    assert decide(claim, Widths(), build((1, 0, {"error_10": 0.0, "error_100": 0.0}), (1, 1, good)))[0] == "seen"


def test_exact_numbers_have_no_seeds_to_count():
    claim = Computes(**WORDS, quantity="error", high=-3.0, exact=True)
    verdict, number = decide(claim, Widths(), Finished((), {"error": (-4.0,) * 3}))
    assert (verdict, number.num_seeds) == ("seen", 1)


@pytest.mark.parametrize(
    ("test", "ood", "verdict"), [(0.98, 0.95, "seen"), (0.98, 0.5, "not reached at our size"), (0.9, 0.85, "not run")]
)
def test_a_score_decides_only_where_trained_compositions_are_fitted(test, ood, verdict):
    claim = Level(**WORDS, of={"width": 1}, low=0.9, fitted=0.97)
    found, number = decide(claim, Widths(), build(*errors(1, 0.0, 0.0, 0.0), test=test, ood=ood))
    assert (found, number.value) == (verdict, pytest.approx(ood))
    assert isinstance(number, Undecided) == (verdict == "not run")
    if isinstance(number, Undecided):
        assert number.reason == "trained compositions are not fitted (0.900)"
    assert decide(claim, Widths(), build(*errors(2, 0.0)))[0] == "not run"


LEAD = Lead(**WORDS, better=WIDE, worse=NARROW, by=0.05)


@pytest.mark.parametrize(
    ("claim", "value"),
    [
        (LEAD, 0.4),
        (LEAD, -0.4),
        (Level(**WORDS, of=WIDE, low=0.9), 0.95),
        (Level(**WORDS, of=WIDE, low=0.9), 0.1),
        (Reads(**WORDS, of=WIDE, quantity="z", low=0.5), 0.99),
    ],
)
def test_one_seed_decides_nothing(claim, value):
    one = SeedScore(value=value, low=value - 0.01, high=value + 0.01, values=(value,))
    assert claim.judge(one) == "preliminary"
    assert Computes(**WORDS, quantity="n", low=0.9, exact=True).judge(one) in ("seen", "refuted")


@pytest.mark.parametrize(
    ("low", "high", "lead", "close"),
    [
        (0.01, 0.04, "smaller than claimed", "seen"),
        (0.06, 0.10, "seen", "refuted"),
        (0.01, 0.11, "seen", "not seen"),
        (-0.02, 0.16, "seen in part", "not seen"),
        (-0.02, 0.04, "not seen", "seen"),
        (-0.08, -0.06, "refuted", "refuted"),
    ],
)
def test_no_number_is_both_a_lead_and_close(low, high, lead, close):
    number = SeedScore(value=(low + high) / 2, low=low, high=high, values=((low + high) / 2,) * 3)
    about_equal = Difference(**WORDS, first=WIDE, second=NARROW, low=-0.05, high=0.05)
    assert (LEAD.judge(number), about_equal.judge(number)) == (lead, close)
    assert (fuzzy_logic.CLOSE, language.CLOSE) == (fuzzy_logic.LEAD, language.LEAD)


@pytest.mark.parametrize(
    ("scale", "smaller", "verdict"),
    [
        ("paper", {}, "refuted"),
        ("paper", {"width": 16}, "not reached at our size"),
        ("tiny", {}, "not reached at our size"),
    ],
)
def test_only_runs_of_the_papers_size_refute(monkeypatch, scale, smaller, verdict):
    monkeypatch.setattr(Widths, "smaller", smaller)
    runs = (stored_run(record, {"test": 0.95, "ood": 0.3}) for record in Widths().records(scale))
    claim = Level(**WORDS, of=NARROW, low=0.9)
    assert decide(claim, Widths(), Finished(tuple(runs)))[0] == verdict


def test_the_excess_is_the_lead_on_held_out_minus_that_on_trained_compositions():
    scores = {  # by width and seed: trained, held out
        (512, 0): (0.95, 0.90),
        (16, 0): (0.85, 0.60),
        (512, 1): (0.97, 0.88),
        (16, 1): (0.83, 0.50),
    }
    runs = []
    for record in Widths().records("tiny"):
        trained, held_out = scores[record.settings["width"], record.seed]
        runs.append(stored_run(record, {"test": trained, "ood": held_out}))
    finished = Finished(tuple(runs))
    excess, lead = with_excess(Lead(**WORDS, better=WIDE, worse=NARROW, by=0.1))
    leads = lead.split_lead(Widths(), finished)
    assert leads.held_out.values == pytest.approx((0.30, 0.38))
    assert leads.trained.values == pytest.approx((0.10, 0.14))
    assert leads.excess.values == pytest.approx((0.20, 0.24))
    assert (leads.excess.low, leads.excess.high) == pytest.approx(
        (0.22 - 12.706 * 0.02, 0.22 + 12.706 * 0.02), abs=1e-4
    )
    verdict, number = decide(excess, Widths(), finished)
    assert (verdict, number) == ("seen in part", leads.excess)
    assert (excess.known, lead.known) == (True, None)
    assert excess.bound == "excess of at least 0.1"


def test_leads_of_a_paper_are_tested_together():
    assert holm([0.01, 0.04, 0.03]) == pytest.approx([0.03, 0.06, 0.06])
    assert holm([]) == []
    number = score_values([0.1, 0.2, 0.3])  # t = 0.2 / (0.1 / sqrt(3)) = 3.46, two degrees of freedom
    assert chance_of_lead(number) == pytest.approx(0.0742, abs=1e-4)
    lead, other = Lead(**WORDS, better=WIDE, worse=NARROW, by=0.1), Lead(**WORDS, better=WIDE, worse=NARROW, by=0.2)
    alone, both = (
        correct_leads(claims, [("seen", score_values([0.3, 0.4, 0.5]))] * len(claims))
        for claims in ([lead], [lead, other])
    )
    for leads, chance in ((alone, 0.0202), (both, 0.0404)):
        assert {verdict for verdict, _ in leads} == {"seen"}
        assert [number for _, number in leads] == pytest.approx([chance] * len(leads), abs=1e-4)
    failed = correct_leads([lead, READS], [("seen", number), ("seen", number)])
    assert failed == [("seen in part", pytest.approx(0.0742, abs=1e-4)), ("seen", None)]


def test_the_interval_of_the_best_of_several_holds_for_all():
    number = score_values([0.1, 0.2, 0.3])
    wide = widen_for_all(number, 9)  # Student's quantile at 1 - 0.025 / 9, two degrees of freedom
    assert wide.high - wide.value == pytest.approx(13.36 * 0.1 / 3**0.5, rel=1e-3)
    assert widen_for_all(number, 1).high == pytest.approx(number.high)
