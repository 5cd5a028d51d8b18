"""Predictions, activations, archives, text and tables of others: read exactly, or refused in one line."""

import io
import os
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import parquet

from recombine.foundation import errors as memory
from recombine.foundation import files
from recombine.foundation.errors import InputError
from recombine.foundation.files import read_file, read_npz
from recombine.inside.collect import load_activations
from recombine.integrations.exchange.predictions import read_predictions
from recombine.integrations.huggingface.prompts import read_prompts
from recombine.tasks.language.tokenizers import read_tokenizer
from recombine_papers.stored import read_lines

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


def test_a_pipe_instead_of_a_file(tmp_path):
    readers: dict[str, Any] = {f"pipe.{suffix}": read_predictions for suffix in ("csv", "jsonl", "parquet", "npz")}
    readers |= {
        "tokenizer": lambda path: read_tokenizer(str(path)),
        "prompts": read_prompts,
        "tokenizer_of_run": read_file,
    }
    for name, read in readers.items():
        os.mkfifo(tmp_path / name)
        with pytest.raises((InputError, OSError), match="it is not a regular file"):
            read(tmp_path / name)


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


def header(shape: tuple[int, ...], dtype: str = "<f4", content: bytes = b"") -> bytes:
    written = io.BytesIO()
    np.lib.format.write_array_header_1_0(written, {"descr": dtype, "fortran_order": False, "shape": shape})
    return written.getvalue() + content


ARCHIVES = [
    ("a.npy", header((2,), content=b"\0" * 4)),
    ("a.npy", header((1,), dtype="|O", content=b"\x80\x04K\x01.")),
    ("a.npy", b"\x93NUMPY\x01\x00\x08\x00{'a': (("),
    ("a.npy", b"\x93NUMPY\x09\x00"),
    ("answer", b"123"),  # NumPy gives its bytes: the text 123 would be the numbers 49, 50 and 51
]


@pytest.mark.parametrize(("name", "member"), ARCHIVES)
def test_damaged_members_of_an_archive(name, member, tmp_path):
    with zipfile.ZipFile(tmp_path / "x.npz", "w") as archive:
        archive.writestr(name, member)
    with pytest.raises(InputError, match=r"cannot be read .*: expected an npz file without Python objects"):
        read_npz(tmp_path / "x.npz")


def test_archives_that_are_none_and_one_that_is(tmp_path, monkeypatch):
    np.save(tmp_path / "one.npy", np.zeros(3))
    (tmp_path / "rubbish.npz").write_bytes(b"PK\x03\x04 no archive")
    for name, message in {
        "one.npy": "cannot be read",
        "rubbish.npz": "cannot be read",
        "none": "does not exist",
    }.items():
        with pytest.raises(InputError, match=f"{message}.*: expected an npz file"):
            read_npz(tmp_path / name)
    path = save(tmp_path / "good.npz", a=np.arange(3), b=np.array(["x"]))
    assert read_npz(path)["a"].tolist() == [0, 1, 2]
    np.savez_compressed(tmp_path / "large.npz", a=np.zeros(10**6, dtype=np.float32))
    monkeypatch.setattr(memory, "total_memory", lambda: 10**6)
    with pytest.raises(InputError, match=r"large.npz, unpacked, takes 4 MB of memory: expected at most 1 MB"):
        read_npz(tmp_path / "large.npz")


def test_small_files_that_unpack_to_much(tmp_path, monkeypatch):
    monkeypatch.setattr(files, "MAX_UNPACKED", 10**6)
    np.savez_compressed(tmp_path / "x.npz", answer=np.zeros(10**6))
    parquet.write_table(pa.table({"answer": pa.array(np.zeros(10**6)).dictionary_encode()}), tmp_path / "x.parquet")
    for name in ("x.npz", "x.parquet"):
        assert (tmp_path / name).stat().st_size < 20_000
        with pytest.raises(InputError, match=r"unpacks to .* MB: expected at most 50 times its size"):
            read_predictions(tmp_path / name)


@pytest.mark.parametrize(
    "content", ["[]", "{}", "[" * 10**5, '{"hash": "a", "result": {}}', '{"hash": 1}', "\0", "nan"]
)
def test_results_that_nobody_stored(content, tmp_path):
    (tmp_path / "x.jsonl").write_text(content)
    with pytest.raises(InputError, match="expected results that `reproduce claims` wrote"):
        read_lines(tmp_path / "x.jsonl")
