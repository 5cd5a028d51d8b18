"""Each verdict from a constructed case, with its evidence; and from a run."""

import pytest

from recombine.diagnose import ADVICE, Decodability, diagnose, read_decodability
from recombine.errors import InputError

COVERED = {"covered": True, "connected": True, "coverage": {"0": 2, "1": 1}}
READ = Decodability(site="residual.1", metric="f1", trained=0.95, held_out=0.9, baseline=0.2)
UNREAD = Decodability(site="residual.1", metric="f1", trained=0.95, held_out=0.3, baseline=0.2)


def scores(trained: float, held_out: float, *, ceiling: float = 1.0, chance: float = 0.0, width: float = 0.01):
    def one(value):
        return {"value": value, "low": value - width, "high": value + width, "chance": chance, "ceiling": ceiling}

    return {"test": {"accuracy": one(trained)}, "ood": {"accuracy": one(held_out)}}


@pytest.mark.parametrize(
    ("verdict", "given", "certificate", "decodability"),
    [
        ("solved", scores(0.98, 0.97), COVERED, UNREAD),
        ("solved", scores(0.92, 0.87), COVERED, None),
        ("not learned", scores(0.5, 0.45), COVERED, READ),
        ("not learned", scores(0.3, 0.3, ceiling=0.5), COVERED, READ),
        ("uncovered", scores(0.98, 0.2), {**COVERED, "covered": False, "coverage": {"0": 2, "1": 0}}, READ),
        ("uncovered", scores(0.98, 0.2), {**COVERED, "connected": False}, READ),
        ("solved", scores(0.98, 0.97), {**COVERED, "connected": False}, READ),
        ("ambiguous", scores(0.89, 0.9, ceiling=0.92), COVERED, READ),
        ("ambiguous", scores(0.1, 0.1, ceiling=0.1, chance=0.1), COVERED, READ),
        ("solved", scores(0.85, 0.8, ceiling=0.92), COVERED, READ),
        ("inferred but unused", scores(0.97, 0.4), COVERED, READ),
        ("not inferred", scores(0.97, 0.4), COVERED, UNREAD),
        (
            "not inferred",
            scores(0.97, 0.4),
            COVERED,
            Decodability(site="x", metric="f1", trained=1.0, held_out=1.0, baseline=1.0),
        ),
    ],
)
def test_verdicts(verdict, given, certificate, decodability):
    found = diagnose(given, certificate, decodability)
    assert found.verdict == verdict
    assert found.advice == ADVICE[verdict]
    assert found.sentence.endswith(".")
    assert found.evidence["metric"] == "accuracy"
    assert found.as_dict()["thresholds"]["learned"] == 0.8


def test_sentences_carry_the_numbers():
    assert diagnose(scores(0.98, 0.2), {**COVERED, "covered": False, "coverage": {"7": 0}}, None).sentence == (
        "The split cannot show recombination: module 7 was never trained."
    )
    assert diagnose(scores(0.97, 0.4), COVERED, READ).sentence == (
        "It infers modules but does not use them: 0.40 on held-out compositions against 0.97 on trained ones, yet a linear "
        "decoder of residual.1 has F1 0.90 there (0.95 on trained ones, 0.20 without information)."
    )


def test_a_wide_interval_tells_its_alternatives():
    assert diagnose(scores(0.82, 0.8, width=0.001), COVERED, READ).alternatives == ()
    assert diagnose(scores(0.82, 0.8, width=0.05), COVERED, READ).alternatives == ("inferred but unused", "not learned")


def test_scores_are_placed_between_chance_and_ceiling():
    """Half right is nothing where chance is a half."""
    assert diagnose(scores(0.95, 0.55, chance=0.5), COVERED, READ).verdict == "inferred but unused"
    assert diagnose(scores(0.55, 0.55, chance=0.5), COVERED, READ).verdict == "not learned"


def test_what_cannot_be_diagnosed():
    with pytest.raises(InputError, match="no score on 'ood'"):
        diagnose({"test": scores(1.0, 1.0)["test"]}, COVERED, READ)
    with pytest.raises(InputError, match="nothing was decoded: expected a probe"):
        diagnose(scores(0.97, 0.4), COVERED, None)
    with pytest.raises(InputError, match="unknown metric 'r2': expected one of accuracy"):
        diagnose(scores(0.9, 0.9), COVERED, READ, metric="r2")
    bare = scores(0.9, 0.9)
    bare["ood"]["accuracy"]["ceiling"] = None
    with pytest.raises(InputError, match="lacks its value, chance or ceiling"):
        diagnose(bare, COVERED, READ)


def test_decodability_comes_from_the_best_site_with_the_hardest_baseline():
    beside = {"majority": {"f1": 0.0}, "control": {"f1": 0.2}, "untrained": {"f1": 0.3}}
    probe = {"best_site": "codes.1", "decoders": {"codes.1": {"id": {"f1": 0.9}, "ood": {"f1": 0.8, **beside}}}}
    found = read_decodability(probe)
    assert found == Decodability(site="codes.1", metric="f1", trained=0.9, held_out=0.8, baseline=0.3)
    assert found.informed == pytest.approx(5 / 7)
    assert read_decodability({}) is None
    assert read_decodability({"best_site": "codes.1", "decoders": {"codes.1": {"id": {"f1": 0.9}}}}) is None
