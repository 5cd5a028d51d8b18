"""Claims without training: computed, stored with their version, judged on the card."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from recombine.cli.main import run as run_verb
from recombine.foundation.errors import InputError
from recombine_papers import EXPERIMENTS, Calculation, Computes, Untested
from recombine_papers.base import Finished
from recombine_papers.card import build_card, list_statements
from recombine_papers.claims import log10_of
from recombine_papers.experiment import share_with_interval
from recombine_papers.pages import count_claims, describe_interval, format_index, format_page
from recombine_papers.stored import numbers_path, read_numbers, write_numbers

ROOT = Path(__file__).parents[2]
CALCULATIONS = [name for name, experiment in EXPERIMENTS.items() if isinstance(experiment, Calculation)]
# logarithms of differences that are rounding, and depend on the processor
ROUNDED = ("log10_difference", "log10_mixture", "rotation", "permutation", "identified", "execution")


class Squares(Calculation):
    name = "squares"
    question = "Are squares small?"
    claims = (
        Computes(text="squares are small", where="of seeds", source="us", quantity="square", high=100.0),
        Computes(text="squares are small", where="of more", source="us", quantity="more", high=100.0),
        Untested(text="squares are beautiful", source="us", needs="an eye"),
    )
    calls = 0

    def compute(self, seed):
        type(self).calls += 1
        return {"square": float(seed**2), "more": 1_000.0 + seed}


@pytest.fixture(autouse=True)
def no_calls(monkeypatch):
    monkeypatch.setattr(Squares, "calls", 0)


def test_numbers_are_computed_once_per_version_and_judged(tmp_path, monkeypatch):
    rows = build_card([Squares()], tmp_path)
    assert [row.verdict for row in rows] == ["not run"] * 3
    assert write_numbers(tmp_path, Squares())
    assert not write_numbers(tmp_path, Squares())
    assert Squares.calls == 3
    rows = build_card([Squares()], tmp_path)
    assert [row.verdict for row in rows] == ["seen", "refuted", "not run"]
    assert rows[0].number is not None
    assert rows[0].number.values == (0.0, 1.0, 4.0)
    assert [statement.verdict for statement in list_statements(rows)] == ["seen in some settings", "not run"]
    assert (
        count_claims(list_statements(rows)) == "1 theorem or count, run in 2 settings: 1 seen in some settings. "
        "Of 2 rows that were run, 0 are blind and 2 known."
    )
    page = format_page(rows, tmp_path)
    assert "`recombine reproduce squares`" in page
    assert "| squares are beautiful (us) | not run | – | needs an eye |" in page
    assert "| `squares.json` | none | 0, 1, 2 |" in format_index([Squares()], tmp_path)
    monkeypatch.setattr(Squares, "version", 2)  # what another version computed is not used
    assert build_card([Squares()], tmp_path)[0].verdict == "not run"
    assert write_numbers(tmp_path, Squares())


def test_only_what_is_known_to_be_exact_is_called_so(tmp_path, monkeypatch):
    monkeypatch.setattr(Squares, "compute", lambda self, seed: {"square": 7.0, "more": 90.0 + 8 * seed})
    write_numbers(tmp_path, Squares())
    same, varied, _ = build_card([Squares()], tmp_path)
    assert (same.verdict, describe_interval(same)) == ("seen", "3 seeds")  # an estimate, though all seeds agree
    assert describe_interval(varied) == "3 seeds, 2 of them within the bound"
    monkeypatch.setattr(Squares, "claims", (replace(Squares.claims[0], exact=True), *Squares.claims[1:]))
    (exact, *_) = build_card([Squares()], tmp_path)
    assert (exact.verdict, describe_interval(exact)) == ("seen", "exact")


@pytest.mark.parametrize(
    ("compute", "message"),
    [
        (lambda self, seed: {"square": float("nan")}, "computes a number that is not finite: square"),
        (lambda self, seed: {f"square_{seed}": 1.0}, "computes different numbers per seed"),
        (lambda self, seed: {}, "computes different numbers per seed"),
        (
            lambda self, seed: {"square": 1.0},
            "unknown quantity in the claims of 'squares' 'more': expected one of square",
        ),
    ],
)
def test_a_calculation_from_outside_that_goes_wrong(compute, message, monkeypatch):
    monkeypatch.setattr(Squares, "compute", compute)
    with pytest.raises(InputError, match=message):
        Squares().complete(Finished(()))


def test_numbers_without_those_that_a_claim_needs_are_computed_again(tmp_path, monkeypatch):
    write_numbers(tmp_path, Squares())
    monkeypatch.setattr(Squares, "claims", (Computes(text="cubes", source="us", quantity="cube"),))
    assert read_numbers(tmp_path, Squares()) is None
    monkeypatch.undo()
    assert read_numbers(tmp_path, Squares()) is not None
    monkeypatch.setattr(Squares, "num_seeds", 2)
    assert read_numbers(tmp_path, Squares()) is None


WITHOUT_ENVIRONMENT = '{"version": 1, "computed": {}, "seconds": 1.0, "finished": "2026-01-01", "environment": {}}'


@pytest.mark.parametrize("text", ["{", "[]", '{"version": 1}', WITHOUT_ENVIRONMENT])
def test_a_damaged_file_is_refused(tmp_path, text):
    numbers_path(tmp_path, Squares()).write_text(text)
    with pytest.raises(
        InputError, match=r"squares.json cannot be read .*expected numbers that `reproduce claims` wrote"
    ):
        build_card([Squares()], tmp_path)


def test_the_interval_of_a_share():
    none = share_with_interval("x", 0.0, 12_288)
    assert list(none.values()) == pytest.approx([0.0, 0.0, 3.125e-4], rel=1e-3)
    numbers = share_with_interval("x", 0.5, 100)
    assert list(numbers.values()) == pytest.approx([0.5, 0.4038, 0.5962], abs=1e-4)  # as in tables of Wilson's interval


def test_the_logarithm_of_nothing():
    assert log10_of(0.0) == -18
    assert log10_of(0.01) == pytest.approx(-2)


@pytest.mark.parametrize("name", CALCULATIONS)
def test_stored_numbers_are_what_the_code_computes(name):
    """The first seed of every calculation, from scratch."""
    stored = json.loads((ROOT / "results" / f"{name}.json").read_text())
    experiment: Any = EXPERIMENTS[name]
    for quantity, value in experiment.compute(0).items():
        rounding = quantity.startswith(ROUNDED)
        assert value == pytest.approx(stored["computed"][quantity][0], abs=1.0 if rounding and value < -9 else 1e-3)


def test_the_command(tmp_path, capsys, monkeypatch):
    monkeypatch.setitem(EXPERIMENTS, "squares", Squares())
    assert run_verb(["reproduce", "squares", "--json"]) == 0
    value = json.loads(capsys.readouterr().out)
    assert value["computed"]["square"] == [0.0, 1.0, 4.0]
    assert [row["verdict"] for row in value["tables"]["Claims"]] == ["seen", "refuted", "not run"]
    assert run_verb(["reproduce", "squares", "--seeds", "1", "--steps", "5"]) == 2
    assert "experiment 'squares' does not train: expected neither --steps nor --seeds" in capsys.readouterr().err
