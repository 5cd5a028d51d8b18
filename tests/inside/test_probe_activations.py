"""Activations from files: read as written, refused with one sentence if they cannot be used."""

import itertools

import numpy as np
import pytest

from recombine.foundation.errors import InputError
from recombine.inside.collect import load_activations
from recombine.inside.probe import probe_activations


def arrays(num_rows: int = 240) -> dict[str, np.ndarray]:
    """The ten pairs of five modules, two of them held out, carried by the activations."""
    generator = np.random.default_rng(0)
    pairs = np.array(list(itertools.combinations(range(5), 2)))
    composition = np.arange(num_rows) % len(pairs)
    labels = (pairs[composition][:, :, None] == np.arange(5)).any(axis=1).astype(float)
    return {
        "activations": labels @ generator.normal(size=(5, 10)) + 0.05 * generator.normal(size=(num_rows, 10)),
        "labels": labels,
        "split": np.where(composition >= 8, "ood", "train"),
    }


def write(path, **changes):
    values = {name: value for name, value in {**arrays(), **changes}.items() if value is not None}
    np.savez(path / "seen.npz", **values)
    return path / "seen.npz"


def test_a_file_is_probed(tmp_path):
    found = probe_activations(write(tmp_path), tsne=False)
    assert found.numbers["decoders"]["activations"]["ood"]["f1"] > 0.99
    assert found.numbers["num_compositions"] == {"fit": 8, "id": 8, "ood": 2}
    assert found.numbers["structure"]["activations"]["module"]["purity"] > 0.9
    assert np.array(found.numbers["similarity"]["activations"]["cosine"]).shape == (5, 5)
    assert found.numbers["skipped"] == {"tsne": "not requested"}


def test_half_of_the_fitting_rows_become_id_unless_there_are_some(tmp_path):
    split = load_activations(write(tmp_path)).split
    assert (split == "fit").sum() == (split == "id").sum() == 96
    given = arrays()["split"]
    given[:8] = ["test", "test", "id", "id", "ood", "ood", "fit", "train"]
    split = load_activations(write(tmp_path, split=given)).split
    assert split[:8].tolist() == ["id", "id", "id", "id", "ood", "ood", "fit", "fit"]
    assert (split == "id").sum() == 4


def test_class_numbers_several_sites_names_and_targets(tmp_path):
    data = arrays()
    number = data["labels"].argmax(axis=1)
    file = write(
        tmp_path,
        activations=None,
        **{"activations.first": data["activations"], "activations.conv": data["activations"].reshape(240, 2, 5)},
        labels=number,
        composition=np.array(["left", "right"])[np.arange(240) % 2],
        target=np.arange(240.0),
        modules=np.array(["red", "green", "blue", "grey"]),
    )
    seen = load_activations(file)
    assert set(seen.by_site) == {"first", "conv"}
    assert seen.by_site["conv"].shape == (240, 10)
    assert seen.modules == ("red", "green", "blue", "grey")
    assert seen.compositions == ("left", "right")
    assert seen.exclusive
    np.testing.assert_array_equal(seen.labels.argmax(axis=1), number)


NOT_A_NUMBER = arrays()["activations"].copy()
NOT_A_NUMBER[3:5, 2] = np.nan


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"labels": None}, "lacks labels: expected arrays activations, labels and split; it holds activations, split"),
        ({"activations": None}, "lacks activations"),
        ({"activations": np.zeros((7, 3))}, r"activations has shape \(7, 3\) of float64: expected \(240, features\)"),
        ({"activations": np.zeros(240)}, r"activations has shape \(240,\)"),
        ({"activations": NOT_A_NUMBER}, "activations has NaN or infinite values in 2 of 240 rows"),
        ({"labels": np.full((240, 2), np.nan)}, "labels has NaN"),
        ({"labels": np.zeros((240, 0))}, "labels has shape"),
        ({"labels": np.array(["a"] * 240)}, "labels has shape"),
        (
            {"labels": np.zeros(240, dtype=int)},
            "every row to fit on has the same labels: expected at least two classes",
        ),
        ({"split": np.array(["ood"] * 240)}, "split has 0 rows of fit or train"),
        (
            {"split": np.array(["validation"] * 240)},
            "split has 'validation': expected one of fit, id, ood, train, test",
        ),
        ({"split": np.array(["fit"] * 5)}, r"split has shape \(5,\): expected \(240,\)"),
        ({"target": np.array(["a"] * 240)}, "target of"),
        ({"modules": np.array(["a"])}, r"modules has shape \(1,\): expected \(5,\)"),
    ],
)
def test_files_that_cannot_be_used(tmp_path, changes, message):
    with pytest.raises(InputError, match=message):
        probe_activations(write(tmp_path, **changes), tsne=False)


def test_without_held_out_rows_the_rest_is_still_made(tmp_path):
    found = probe_activations(write(tmp_path, split=np.array(["fit"] * 240)), tsne=False).numbers
    assert "no rows of ood" in found["skipped"]["ood"]
    assert found["decoders"]["activations"]["id"]["f1"] > 0.99
    assert "ood" not in found["decoders"]["activations"]
