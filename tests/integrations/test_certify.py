"""Certificates of other people's splits: known traps, files of every kind, and splits of one's own."""

import contextlib
import itertools
import json

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyarrow import csv, parquet

from recombine.cli.main import run
from recombine.foundation.errors import InputError
from recombine.integrations.certify import Groups, certify, hash_rows, make_splits, write_splits

SHAPES, COLOURS = ["disc", "ring", "star", "bar"], ["red", "teal", "blue", "gold"]
ALL = list(itertools.product(SHAPES, COLOURS))


def build(train, test, **columns):
    rows = [*train, *test]
    table = {"shape": [shape for shape, _ in rows], "colour": [colour for _, colour in rows]}
    return pa.table({**table, **columns, "split": ["train"] * len(train) + ["test"] * len(test)})


def certify_pairs(table, **options):
    return certify(table, composition=["shape", "colour"], **options)


def test_a_split_that_tests_recombination():
    held_out = [("disc", "red"), ("ring", "teal")]
    certificate = certify_pairs(build([pair for pair in ALL if pair not in held_out], held_out))
    assert certificate.passes
    assert certificate.verdict == "test: this split tests recombination."
    (part,) = certificate.held_out
    assert (part.levels, part.trained_pairs, part.num_valid, part.num_shared_rows) == ({1: 2}, 0.0, 2, 0)
    assert len(certificate.groups) == 1


def test_a_value_that_is_never_trained():
    held_out = [pair for pair in ALL if pair[1] == "teal"]
    certificate = certify_pairs(build([pair for pair in ALL if pair not in held_out], held_out))
    assert not certificate.passes
    assert certificate.verdict == (
        "test: this split does not test recombination: 4 held-out compositions contain `colour=teal`, which is never trained."
    )


def test_pairs_in_both_parts_after_normalising():
    held_out = [("Disc", " red"), ("ring", "teal")]
    train = [pair for pair in ALL if pair != ("ring", "teal")]
    (part,) = certify_pairs(build(train, held_out)).held_out
    assert (part.num_trained, part.num_trained_exactly, part.num_valid) == (1, 0, 1)
    assert (part.num_shared_rows, part.num_shared_rows_exactly) == (1, 0)


def test_halves_that_training_never_connects():
    train = [pair for pair in ALL if (pair[0] in SHAPES[:2]) == (pair[1] in COLOURS[:2])]
    certificate = certify_pairs(build(train, [("disc", "gold")]))
    assert certificate.held_out[0].num_unconnected == 1
    assert "training falls into 2 groups of values" in certificate.verdict
    assert certificate.groups[1] == ("shape=disc", "shape=ring", "colour=red", "colour=teal")


def test_a_level_is_the_number_of_values_to_change():
    train = [("a", "x", "1"), ("a", "y", "2"), ("b", "x", "2")]
    test = [("b", "y", "1"), ("a", "x", "2")]
    names = ["shape", "colour", "size"]
    columns = {name: [row[i] for row in train + test] for i, name in enumerate(names)}
    table = pa.table({**columns, "split": ["train"] * 3 + ["test"] * 2})
    (part,) = certify(table, composition=names).held_out
    assert part.levels == {1: 1, 2: 1}
    assert part.trained_pairs == pytest.approx(3 / 6)


@pytest.mark.parametrize("kind", ["csv", "parquet", "jsonl", "folder", "hugging face", "pandas", "dictionary"])
def test_tables_of_every_kind(kind, tmp_path):
    table = build(ALL[:-1], ALL[-1:], number=list(range(len(ALL))))
    expected = certify_pairs(table)
    if kind == "csv":
        csv.write_csv(table, source := tmp_path / "table.csv")
    elif kind == "parquet":
        parquet.write_table(table, source := tmp_path / "table.parquet")
    elif kind == "jsonl":
        source = tmp_path / "table.jsonl"
        source.write_text("\n".join(json.dumps(row) for row in table.to_pylist()))
    elif kind == "folder":  # train.csv and test.csv without a column for the split
        source = tmp_path
        for split in ("train", "test"):
            rows = table.filter(pa.compute.equal(table["split"], split)).drop_columns(["split"])
            csv.write_csv(rows, tmp_path / f"{split}.csv")
    elif kind == "hugging face":
        datasets = pytest.importorskip("datasets")
        saved = datasets.DatasetDict(
            {
                split: datasets.Dataset(table.filter(pa.compute.equal(table["split"], split)).drop_columns(["split"]))
                for split in ("train", "test")
            }
        )
        saved.save_to_disk(source := tmp_path / "saved")
    elif kind == "pandas":
        source = table.to_pandas()
    else:
        source = {split: table.filter(pa.compute.equal(table["split"], split)) for split in ("train", "test")}
    found = certify_pairs(source)
    assert found.sha256 == expected.sha256
    assert found.as_dict() == expected.as_dict()


def test_the_hash_does_not_depend_on_the_order_of_rows():
    table = build(ALL[:-2], ALL[-2:])
    shuffled = table.take(np.random.default_rng(0).permutation(len(table)))
    assert certify_pairs(shuffled).sha256 == certify_pairs(table).sha256
    assert certify_pairs(build(ALL[:-1], ALL[-1:])).sha256 != certify_pairs(table).sha256


@given(st.lists(st.tuples(st.text(max_size=9), st.text(max_size=9)), min_size=1, max_size=40))
@settings(max_examples=50, deadline=None)
def test_rows_have_equal_hashes_where_they_are_equal(rows):
    table = pa.table({"a": [a for a, _ in rows], "b": [b for _, b in rows]})
    exact, _ = hash_rows(table)
    for i, j in itertools.combinations(range(len(rows)), 2):
        assert (exact[i] == exact[j]) == (rows[i] == rows[j])
    assert (hash_rows(table.slice(len(rows) // 2))[0] == exact[len(rows) // 2 :]).all()


@given(st.sets(st.tuples(*[st.sampled_from("abcd")] * 3), min_size=8), st.integers(0, 5), st.integers(1, 4))
@settings(max_examples=50, deadline=None)
def test_splits_of_ones_own_cover_and_connect(compositions, seed, num_folds):
    whole = Groups(compositions)
    if num_folds == 1 and len(make_splits(compositions, held_out=1e-9, seed=seed)) == 1:
        with contextlib.suppress(InputError):  # a sparse table needs all its compositions
            make_splits(compositions, held_out=0.2, seed=seed)
        return
    folds = make_splits(compositions, held_out=0.2, seed=seed, num_folds=num_folds)
    assert len(folds) == num_folds
    assert sum(map(len, folds)) == len(set().union(*folds)), "a composition is held out once"
    for held_out in folds:
        trained = Groups(compositions - held_out)
        assert trained.parent.keys() == whole.parent.keys()
        assert len(set(trained.number().values())) == len(set(whole.number().values()))
    assert folds == make_splits(sorted(compositions, reverse=True), held_out=0.2, seed=seed, num_folds=num_folds)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"composition": ["form"]}, "no column 'form': expected one of shape, colour, split"),
        (
            {"composition": ["shape"], "split": "part"},
            "no column 'part': expected the column that says what is trained",
        ),
        ({"composition": ["shape", "shape"]}, "expected 1 to 12 different columns"),
        ({"composition": ["shape"], "train": "tain"}, "tain"),
    ],
)
def test_wrong_input_is_named(options, message):
    with pytest.raises(InputError, match=message):
        certify(build(ALL[:-1], ALL[-1:]), **options)
    with pytest.raises(InputError, match="expected a table or a folder of tables"):
        certify("nowhere.csv", composition=["a"])


def test_a_written_split_passes_its_own_certificate(tmp_path, capsys):
    source = tmp_path / "table.csv"
    csv.write_csv(build(ALL[:-4], ALL[-4:], number=list(range(len(ALL)))), source)
    run(
        [
            "certify",
            str(source),
            "--composition",
            "shape",
            "colour",
            "--make",
            "0.25",
            "-o",
            str(tmp_path / "new.parquet"),
        ]
    )
    better = certify_pairs(tmp_path / "new.parquet")
    assert better.passes
    assert better.held_out[0].num_compositions == 4
    folds = make_splits(ALL, held_out=0.25, num_folds=4)
    write_splits(source, ["shape", "colour"], folds, tmp_path / "folds.csv")
    rows = csv.read_csv(tmp_path / "folds.csv").to_pylist()
    assert {(row["shape"], row["colour"]) for row in rows if str(row["fold"]) == "2"} == folds[2]
    assert run(["certify", str(source), "--composition", "shape", "--make", "0.25"]) == 2
    assert "belong together" in capsys.readouterr().err
