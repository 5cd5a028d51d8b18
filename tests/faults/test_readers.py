"""Files that others made, read by `score`, `probe --activations` and `sweep status`: one line, never a wrong number."""

import io
import json
import os
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fuzz import call
from mutations import NASTY_SHAPES, NASTY_TEXTS
from recombine.foundation.errors import InputError
from recombine.inside.collect import load_activations
from recombine.integrations.exchange.predictions import read_predictions

HASH = "0123456789ab"
ROWS = np.array([f"ood-{row}-of-3-{HASH}" for row in range(3)])


def save(path: Path, **arrays) -> Path:
    np.savez(path, **arrays)
    return path


def test_a_row_that_claims_to_be_one_of_very_many(tmp_path):
    """The missing ones are counted, not listed: a list would take all memory."""
    path = tmp_path / "predictions.csv"
    path.write_text(f"row_id,answer\nood-0-of-999999999999-{HASH},0.5\n")
    with pytest.raises(InputError, match=f"999999999998 of .* the first is ood-1-of-999999999999-{HASH}"):
        read_predictions(path)


MISFITS = [
    (ROWS, np.zeros((2, 1)), r"answer of shape \(2, 1\) and row_id of shape \(3,\)"),
    (ROWS, np.zeros((4, 1)), r"answer of shape \(4, 1\)"),  # which of them would belong to the rows?
    (ROWS, np.array(1.0), r"answer of shape \(\)"),
    (ROWS[0], np.zeros(1), r"row_id of shape \(\)"),
    (ROWS[None], np.zeros((1, 3)), r"row_id of shape \(1, 3\)"),
    (ROWS, np.zeros((3, 1), complex), "does not hold numbers"),
    (ROWS, np.zeros((3, 1), "datetime64[s]"), "does not hold numbers"),
    (ROWS, np.zeros((3, 1), [("a", "f4")]), "does not hold numbers"),
]


@pytest.mark.parametrize(("rows", "answers", "message"), MISFITS)
def test_predictions_that_do_not_fit_their_rows(rows, answers, message, tmp_path):
    with pytest.raises(InputError, match=message):
        read_predictions(save(tmp_path / "predictions.npz", row_id=rows, answer=answers))


@pytest.mark.parametrize("answer", [str(10**400), "{}", "[[1], 2]"])
def test_answers_beyond_any_number(answer, tmp_path):
    path = tmp_path / "predictions.jsonl"
    path.write_text("".join(f'{{"row_id": "{row}", "answer": {answer}}}\n' for row in ROWS))
    with pytest.raises(InputError, match="does not hold numbers"):
        read_predictions(path)


def test_extended_precision_is_read(tmp_path):
    path = save(tmp_path / "predictions.npz", row_id=ROWS, answer=np.ones((3, 1), np.longdouble))
    assert read_predictions(path).values["ood"].dtype == np.float64


@pytest.mark.parametrize("suffix", ["csv", "jsonl", "parquet", "npz"])
def test_a_pipe_instead_of_predictions(suffix, tmp_path):
    os.mkfifo(tmp_path / f"pipe.{suffix}")
    with pytest.raises(InputError, match="it is not a regular file"):
        read_predictions(tmp_path / f"pipe.{suffix}")


def test_members_of_an_archive_that_are_no_arrays(tmp_path):
    """NumPy gives their bytes: the text 123 would be the predictions 49, 50 and 51."""
    rows = io.BytesIO()
    np.save(rows, ROWS)
    with zipfile.ZipFile(tmp_path / "predictions.npz", "w") as archive:
        archive.writestr("row_id.npy", rows.getvalue())
        archive.writestr("answer", b"123")
    with pytest.raises(InputError, match="a member that is not an array"):
        read_predictions(tmp_path / "predictions.npz")


ACTIVATIONS = {
    "activations": np.ones((4, 2)),
    "labels": np.array([0, 1, 0, 1]),
    "split": np.array(["fit", "fit", "id", "ood"]),
}
DOUBTFUL = [
    ("activations", np.ones((4, 2), complex), "of complex128: expected"),
    ("activations", np.full((4, 2), 1e300), "infinite values in 4 of 4 rows"),
    ("labels", np.array([0, 1, 0, 10**15]), "a table of 4 rows and 1,000,000,000,000,001 classes takes"),
    ("labels", np.ones((4, 2), complex), "of complex128: expected"),
    ("target", np.ones(4, complex), "target of complex128"),
]


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize(("name", "values", "message"), DOUBTFUL)
def test_activations_that_are_no_real_numbers(name, values, message, tmp_path):
    with pytest.raises(InputError, match=message):
        load_activations(save(tmp_path / "activations.npz", **{**ACTIVATIONS, name: values}))


PLANNED: dict[str, Any] = {"run": "a-1", "settings": {"x": 1}, "searched": [], "seed": 0, "steps": 10}
PLANNED |= {"metric": "r2", "higher_is_better": True}
PLAN: dict[str, Any] = {"format": "recombine-sweep", "format_version": 1, "source": "here", "runs": [PLANNED]}
RESULT: dict[str, Any] = {
    "seconds": 1.0,
    "scores": {"test": {"r2": {"value": 0.5, "low": 0.4, "high": 0.6}}},
    "metrics": {"r2": {"title": "R²", "higher_is_better": True}},
}


STRANGE: tuple[Any, ...] = (None, "x", "\ud800", {}, [], -1, 1.5, float("inf"), 10**400)


def status_of(folder: Path, plan=PLAN, **files) -> tuple[int | None, str]:
    """Exit code and standard error of `sweep status` for a folder with one run."""
    (folder / "a-1").mkdir(parents=True, exist_ok=True)
    (folder / "sweep.json").write_text(json.dumps(plan))
    for name, value in files.items():
        (folder / "a-1" / name.replace("_", ".")).write_text(json.dumps(value) + "\n")
    answers = [call(["sweep", "status", str(folder), *flags]) for flags in ([], ["--json"])]
    for code, _, err, trace in answers:
        assert not trace, f"{plan} {files}: {trace}"
        assert code in (0, 2)
        assert len(err.splitlines()) == (1 if code == 2 else 0)
    return answers[0][0], answers[0][2]


@pytest.mark.parametrize("key", PLANNED)
def test_any_value_in_the_plan_of_a_sweep(key, tmp_path):
    for value in (*NASTY_TEXTS, *NASTY_SHAPES, *STRANGE):
        status_of(tmp_path, PLAN | {"runs": [PLANNED | {key: value}]})


def test_any_value_in_the_files_of_a_sweep(tmp_path):
    assert status_of(tmp_path) == (0, "")
    assert status_of(tmp_path, result_json=RESULT) == (0, "")
    damages = [RESULT | {key: value} for key in RESULT for value in (*STRANGE, *NASTY_SHAPES)]
    damages += [RESULT | {"scores": {"test": {"r2": {"value": value}}}} for value in STRANGE]
    for number, result in enumerate(damages):
        status_of(tmp_path / f"result-{number}", result_json=result)
    for number, value in enumerate(STRANGE):
        status_of(tmp_path / f"progress-{number}", metrics_jsonl={"step": value, "seconds": value})
        status_of(tmp_path / f"failure-{number}", failure_json={"error": value})
