"""Exports, and scores of predictions that were made without this package."""

import csv
import json

import numpy as np
import pytest
import torch
from pyarrow import parquet
from torch import nn

import recombine
from recombine.cli.main import run as run_verb
from recombine.integrations.exchange.export import (
    COLUMNS,
    RowId,
    describe_columns,
    hash_export,
    make_rows,
    read_columns,
    write_table,
)
from recombine.integrations.exchange.predictions import read_predictions, score_predictions
from recombine.tasks import TASKS
from recombine.tasks.sampling import evaluation_batches
from recombine.training.score import scores_as_dict

LOGIC = recombine.FuzzyLogic(num_variables=3, num_examples=6, held_out=0.4)
RAVEN = recombine.SRaven(num_features=2, num_values=4)
NUM = 1_100  # more than one batch of the evaluation


@pytest.fixture(scope="module")
def exported(tmp_path_factory):
    path = tmp_path_factory.mktemp("export") / "rows.npz"
    write_table(make_rows(LOGIC, ["test", "ood"], NUM), path)
    return path


@pytest.fixture(scope="module")
def module():
    torch.manual_seed(1)
    return nn.Sequential(nn.Flatten(), nn.Linear(24, 8), nn.ReLU(), nn.Linear(8, 1))


def predict_with_numpy(module, inputs):
    first, last = module[1], module[3]
    weights = [part.detach().numpy() for part in (first.weight, first.bias, last.weight, last.bias)]
    hidden = np.maximum(inputs.reshape(len(inputs), -1) @ weights[0].T + weights[1], 0)
    return hidden @ weights[2].T + weights[3]


@pytest.mark.parametrize("suffix", [".npz", ".parquet", ".jsonl", ".csv"])
def test_predictions_of_numpy_get_the_scores_of_the_module(exported, module, tmp_path, suffix):
    rows = np.load(exported)
    order = np.random.default_rng(0).permutation(len(rows["row_id"]))  # any order will do
    identities, predictions = rows["row_id"][order], predict_with_numpy(module, rows["inputs"])[order]
    path = tmp_path / f"predictions{suffix}"
    if suffix == ".npz":
        np.savez(path, row_id=identities, prediction=predictions)
    elif suffix == ".parquet":
        import pandas

        pandas.DataFrame({"row_id": identities, "prediction": predictions[:, 0]}).to_parquet(path)
    elif suffix == ".jsonl":
        pairs = zip(identities.tolist(), predictions.tolist(), strict=True)
        path.write_text("".join(json.dumps({"row_id": i, "prediction": p}) + "\n" for i, p in pairs))
    else:
        with open(path, "w", newline="") as file:
            csv.writer(file).writerows([("row_id", "prediction"), *zip(identities, predictions[:, 0], strict=True)])
    found = score_predictions(LOGIC, read_predictions(path)).scores
    expected = recombine.score(module, LOGIC, splits=["test", "ood"], num_instances=NUM)
    for split, metrics in scores_as_dict(expected).items():
        for metric, score in metrics.items():
            assert scores_as_dict(found)[split][metric] == pytest.approx(score, abs=1e-5)
            assert found[split][metric].ceiling == score["ceiling"]


def test_answers_are_class_numbers(tmp_path):
    targets = {
        split: np.concatenate([b.targets for b in evaluation_batches(RAVEN, split, 40)]) for split in ("test", "ood")
    }
    targets["ood"][:10] = (targets["ood"][:10] + 1) % 4
    identities = [str(RowId(split, row, 40, hash_export(RAVEN))) for split in targets for row in range(40)]
    np.savez(tmp_path / "answers.npz", row_id=identities, answer=np.concatenate(list(targets.values())))
    scored = score_predictions(RAVEN, read_predictions(tmp_path / "answers.npz"))
    assert scored.scores["test"]["accuracy"].value == 1
    assert scored.scores["ood"]["accuracy"].value == 0.75
    assert scored.scores["ood"]["feature_accuracy"].value == 0.75
    assert scored.num_instances == {"test": 40, "ood": 40}
    assert scored.verdict.verdict == "not recombined"
    assert scored.verdict.possible == ("inferred but unused", "not inferred")
    assert "0.75 on held-out compositions against 1.00 on seen ones" in scored.verdict.sentence


def test_a_verdict_needs_both_splits(tmp_path, capsys):
    identities = [str(RowId("ood", row, 3, hash_export(LOGIC))) for row in range(3)]
    np.savez(tmp_path / "p.npz", row_id=identities, prediction=np.zeros(3))
    assert score_predictions(LOGIC, read_predictions(tmp_path / "p.npz")).verdict is None
    flags = ["--num-variables", "3", "--num-examples", "6", "--held-out", "0.4"]
    assert run_verb(["score", "fuzzy-logic", str(tmp_path / "p.npz"), *flags]) == 0
    assert "No verdict: it needs predictions for test and ood, and the file has ood." in " ".join(
        capsys.readouterr().out.split()
    )
    assert run_verb(["score", "fuzzy-logic", str(tmp_path / "p.npz"), "--json", *flags]) == 0
    value = json.loads(capsys.readouterr().out)
    assert value["verdict"] is None
    assert value["split_sha256"] == LOGIC.split.certificate.sha256
    assert set(value["scores"]["ood"]["r2"]) == {"value", "low", "high", "chance", "ceiling", "agnostic"}


def ids(num=2, split="ood", task=LOGIC):
    return [str(RowId(split, row, num, hash_export(task))) for row in range(num)]


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        (
            {"row_id": ids(3)[:2], "prediction": [0.0, 1.0]},
            "1 of 3 rows of split 'ood' are missing, the first is ood-2-of-3-",
        ),
        ({"row_id": [*ids(), ids()[0]], "prediction": [0.0] * 3}, "occurs 2 times: expected every row once"),
        ({"row_id": ids(), "prediction": [0.0, np.nan]}, r"1 of 2 rows have NaN in the column 'prediction'"),
        (
            {"row_id": ids(task=RAVEN), "prediction": [0.0, 1.0]},
            "the predictions are for rows with hash .* expected the same",
        ),
        ({"row_id": [ids()[0], ids(3)[1]], "prediction": [0.0, 1.0]}, "are of different exports"),
        (
            {"row_id": [ids(3)[2].replace("of-3", "of-2"), ids()[0]], "prediction": [0.0, 1.0]},
            "does not exist: expected a row",
        ),
        ({"row_id": ids(split="exam"), "prediction": [0.0, 1.0]}, "for split 'exam': expected one of train, test"),
        ({"row_id": ["17", "18"], "prediction": [0.0, 1.0]}, "row_id '17' is not that of an exported row"),
        (
            {"row_id": ids(), "guess": [0.0, 1.0]},
            "has the columns row_id, guess: expected row_id and one of prediction",
        ),
        ({"row_id": [], "prediction": []}, "has no rows"),
        (
            {"row_id": ids(), "prediction": [[0.0, 1.0], [1.0, 0.0]]},
            r"predictions have shape \(2, 2\): expected one number",
        ),
        ({"row_id": ids(), "prediction": ["a", "b"]}, "does not hold numbers of the same shape"),
        ({"row_id": ids(), "answer": [[0.0, 1.0], [1.0, 0.0]]}, r"answers have shape \(2,\) per row: expected \(\)"),
    ],
)
def test_a_wrong_file_gets_one_line(tmp_path, columns, message):
    np.savez(tmp_path / "p.npz", **columns)
    with pytest.raises(recombine.InputError, match=message) as error:
        score_predictions(LOGIC, read_predictions(tmp_path / "p.npz"))
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        ([[0, 4], [0, 0]], "an answer is 4: expected the number of a class, 0 to 3"),
        ([[0, 0.5], [0, 0]], "not whole numbers"),
    ],
)
def test_answers_out_of_range(tmp_path, answer, message):
    np.savez(tmp_path / "p.npz", row_id=ids(task=RAVEN), answer=answer)
    with pytest.raises(recombine.InputError, match=message):
        score_predictions(RAVEN, read_predictions(tmp_path / "p.npz"))


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("p.jsonl", '{"row_id": 1}\nnot json\n', "line 2 cannot be read"),
        ("p.jsonl", "[" * 10**5, r"line 1 cannot be read \(it is nested too deeply\)"),
        ("p.jsonl", '{"row_id": 1}\n{"id": 1}\n', "line 2 differs from the lines before it: expected the keys row_id"),
        ("p.csv", "row_id,prediction\n1\n", "row 1 has 1 cells: expected 2"),
        ("p.npz", "nothing", "cannot be read"),
        ("p.parquet", "nothing", "cannot be read"),
        ("p.txt", "nothing", "has the suffix '.txt': expected one of .parquet, .csv, .jsonl, .npz"),
        (None, "", "does not exist: expected a file of predictions"),
    ],
)
def test_unreadable_files(tmp_path, name, content, message):
    path = tmp_path / (name or "nothing.csv")
    if name:
        path.write_text(content)
    with pytest.raises(recombine.InputError, match=message):
        read_columns(path)


def test_pickled_predictions_are_refused(tmp_path):
    np.savez(tmp_path / "p.npz", row_id=np.array(ids(), dtype=object), prediction=np.zeros(2))
    with pytest.raises(recombine.InputError, match="cannot be read"):
        read_predictions(tmp_path / "p.npz")


@pytest.mark.parametrize("name", TASKS)
def test_columns_are_alike_and_documented_in_every_task(name):
    task = TASKS[name].preset("tiny").task
    table = make_rows(task, [split for split in task.splits if task.split.compositions(split)], 3)
    assert table.column_names[: len(COLUMNS)] == list(COLUMNS)
    assert all(describe_columns(task).values()), "every column is described"
    assert all(field.metadata[b"description"] for field in table.schema)
    assert "double" not in str(table.schema.field("inputs").type)
    numbers: dict[str, set[int]] = {split: set() for split in set(table["split"].to_pylist())}
    for split, number in zip(table["split"].to_pylist(), table["composition"].to_pylist(), strict=True):
        numbers[split].add(number)
    assert not numbers["train"] & numbers["ood"]
    row = table.slice(3 * 2, 1).to_pylist()[0]  # the first row of ood, after train and test
    compositions = [*task.split.train, *task.split.ood]
    assert tuple(row["modules"]) == compositions[row["composition"]]
    assert row["module_names"] == [task.describe((module,)) for module in row["modules"]]


def test_rows_are_those_of_the_evaluation(tmp_path):
    batches = list(evaluation_batches(LOGIC, "ood", NUM))
    write_table(make_rows(LOGIC, ["ood"], NUM), tmp_path / "rows.parquet")
    table = parquet.read_table(tmp_path / "rows.parquet")
    assert str(table["inputs"].type) == "list<element: list<element: float>>"
    inputs = np.array(table["inputs"].to_pylist(), dtype=np.float32)
    assert np.array_equal(inputs, torch.cat([batch.inputs for batch in batches]).numpy())
    assert table.schema.metadata[b"split_sha256"].decode() == LOGIC.split.certificate.sha256
    assert table["row_id"][NUM - 1].as_py() == f"ood-{NUM - 1}-of-{NUM}-{hash_export(LOGIC)}"


@pytest.mark.parametrize("suffix", [".csv", ".jsonl", ".npz"])
def test_other_formats_hold_the_same_numbers(tmp_path, suffix):
    table = make_rows(LOGIC, ["ood"], 4)
    write_table(table, tmp_path / f"rows{suffix}")
    found = read_columns(tmp_path / f"rows{suffix}")
    assert np.array_equal(
        np.array(found["inputs"], dtype=np.float32), np.array(table["inputs"].to_pylist(), np.float32)
    )
    assert list(found["row_id"]) == table["row_id"].to_pylist()


def test_a_blind_export_reveals_no_target(tmp_path, capsys):
    path = tmp_path / "rows.csv"
    assert run_verb(["export", "fuzzy-logic", "--blind", "--num-instances", "3", "-o", str(path), "--json"]) == 0
    assert set(json.loads(capsys.readouterr().out)["columns"]) == {"row_id", "split", "row", "inputs"}
    assert path.read_text().splitlines()[0] == "row_id,split,row,inputs"
    assert run_verb(["export", "goal-grid", "--scale", "tiny", "--blind", "-o", str(path)]) == 2
    assert "its later inputs reveal earlier answers" in capsys.readouterr().err


def test_another_seed_or_setting_is_another_export():
    others = (recombine.FuzzyLogic(num_variables=3, num_examples=7, held_out=0.4), recombine.FuzzyLogic(seed=1))
    assert len({hash_export(task) for task in (LOGIC, *others)}) == 3
    assert hash_export(recombine.FuzzyLogic()) == hash_export(recombine.FuzzyLogic(held_out=0.7))
