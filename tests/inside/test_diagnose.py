"""Each verdict from a constructed case, with its evidence; and from a run."""

import math
from dataclasses import replace
from typing import Any

import pytest

from recombine.foundation.errors import InputError
from recombine.inside.verdict import (
    ADVICE,
    Decodability,
    diagnose,
    read_decodability,
)

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
        # half right is nothing where chance is a half
        ("inferred but unused", scores(0.95, 0.55, chance=0.5), COVERED, READ),
        ("not learned", scores(0.55, 0.55, chance=0.5), COVERED, READ),
        ("not inferred", scores(0.97, 0.4), COVERED, UNREAD),
        ("not inferred", scores(0.97, 0.4), COVERED, replace(READ, held_out=0.8, baseline=0.8)),
        # the input states the modules, so an untrained network shows them too
        ("inferred but unused", scores(0.97, 0.4), COVERED, replace(READ, held_out=1.0, baseline=1.0)),
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
        "It infers modules but does not use them: 0.40 on held-out compositions against 0.97 on seen ones, yet a linear "
        "decoder (site residual.1) reaches F1 0.90 on held-out ones (0.95 on seen ones, 0.20 for an uninformed decoder)."
    )


def test_sentences_call_splits_as_the_task_does():
    titles = {"test": "trained lengths", "ood": "longer sequences"}
    found = diagnose(scores(0.98, 0.97), COVERED, READ, splits=titles)
    assert found.sentence == "It generalises: 0.97 on longer sequences against 0.98 on trained lengths."
    assert found.evidence["splits"] == {"trained": "trained lengths", "held_out": "longer sequences"}
    assert "−0.30 on trained lengths" in diagnose(scores(-0.3, -0.3), COVERED, READ, splits=titles).sentence


def test_a_wide_interval_tells_its_alternatives():
    assert diagnose(scores(0.82, 0.8, width=0.001), COVERED, READ).alternatives == ()
    assert diagnose(scores(0.82, 0.8, width=0.05), COVERED, READ).alternatives == ("inferred but unused", "not learned")


@pytest.mark.parametrize(
    ("given", "certificate", "decodability", "message"),
    [
        ({"test": scores(1.0, 1.0)["test"]}, COVERED, READ, "no score on 'ood'"),
        (scores(0.97, 0.4), COVERED, None, "nothing was decoded: expected a probe"),
        (scores(0.97, 0.4), COVERED, replace(READ, held_out=math.nan), "nothing was decoded"),
        (
            {**scores(0.9, 0.9), "ood": {"r2": scores(0.9, 0.9)["ood"]["accuracy"]}},
            COVERED,
            READ,
            "unknown metric on ood 'accuracy': expected one of r2",
        ),
        (scores(0.9, 0.9), {}, READ, "covered in the certificate is None: expected true or false"),
    ],
)
def test_what_cannot_be_diagnosed(given, certificate, decodability, message):
    with pytest.raises(InputError, match=message):
        diagnose(given, certificate, decodability)


@pytest.mark.parametrize("key", ["value", "chance", "ceiling"])
@pytest.mark.parametrize("number", [None, math.nan, math.inf, "missing"])
def test_a_score_that_is_not_known_is_named(key, number):
    given = scores(0.9, 0.9)
    if number == "missing":
        del given["ood"]["accuracy"][key]
    else:
        given["ood"]["accuracy"][key] = number
    with pytest.raises(InputError, match=f"the score on 'ood' cannot be placed because its {key} is (None|nan|inf)"):
        diagnose(given, COVERED, READ)


@pytest.mark.parametrize("number", [None, math.nan])
def test_without_an_interval_there_are_no_alternatives(number):
    given = scores(0.82, 0.8)
    for split in ("test", "ood"):
        given[split]["accuracy"] |= {"low": number, "high": number}
    found = diagnose(given, COVERED, READ)
    assert (found.verdict, found.alternatives) == ("solved", ())
    assert found.evidence["trained"]["low"] == 0.82


def make_numbers(decoders: Any) -> Any:
    return {"best_site": "codes.1", "decoders": decoders}


@pytest.mark.parametrize(
    ("verdict", "trained", "held_out", "placed"),
    [("ambiguous", -3.0, -2.9, 1.0), ("not learned", -3.5, -2.9, 0.0), ("not inferred", -3.0, -400.0, 1.0)],
)
def test_a_ceiling_below_chance_leaves_nothing_to_learn(verdict, trained, held_out, placed):
    """A score as good as the ceiling is all there is; a worse one is not, however large the scale."""
    given = scores(trained, held_out, chance=-2.0, ceiling=-3.0, width=0.0)
    found = diagnose(given, COVERED, UNREAD)
    assert found.verdict == verdict
    assert found.evidence["trained"]["placed"] == placed


@pytest.mark.parametrize(
    ("verdict", "trained", "held_out", "ceiling", "decodability"),
    [
        ("solved", 0.05, 0.06, 0.0, None),
        ("not learned", 1.5, 0.0, 0.0, READ),
        ("not learned", 3.0, 3.0, 0.0, READ),
        ("inferred but unused", 0.05, 1.8, 0.0, READ),
        ("ambiguous", 0.5, 0.52, 0.5, None),
    ],
)
def test_less_can_be_better(verdict, trained, held_out, ceiling, decodability):
    """A squared error: chance 2, the ceiling below it."""
    given = scores(trained, held_out, chance=2.0, ceiling=ceiling)
    found = diagnose(given, COVERED, decodability, higher_is_better=False)
    assert found.verdict == verdict
    assert found.evidence["higher_is_better"] is False
    assert found.evidence["trained"]["placed"] == pytest.approx((2 - trained) / (2 - ceiling))


def test_decodability_comes_from_the_best_site_with_the_hardest_baseline():
    beside = {"majority": {"f1": 0.0}, "control": {"f1": 0.2}, "untrained": {"f1": 0.3}}
    found = read_decodability(make_numbers({"codes.1": {"id": {"f1": 0.9}, "ood": {"f1": 0.8, **beside}}}))
    assert found == Decodability(site="codes.1", metric="f1", trained=0.9, held_out=0.8, baseline=0.3)
    assert found.informed == pytest.approx(5 / 7)
    assert read_decodability(make_numbers({}) | {"best_site": None}) is None
    assert read_decodability(make_numbers({"codes.1": {"id": {"f1": 0.9}}})) is None
    assert read_decodability(make_numbers({"codes.1": {"id": {"f1": 0.9}, "ood": {"f1": None}}})) is None
