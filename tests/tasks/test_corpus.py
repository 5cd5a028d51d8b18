"""Corpora: text of every format, files that cannot be used, what is held out, and data sets."""

import gzip
import json
import os

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest

from recombine.foundation.errors import InputError
from recombine.tasks.language import corpus
from recombine.tasks.language.corpus import load_corpus, prepare
from recombine.tasks.language.sources import find_sources, read_documents

ZIPPED = gzip.compress(b"text " * 999 + bytes(range(256)), mtime=0)
SENTENCE = "The {} document says that it is the {} document, and no other one says so.\n"


def zstd(content: bytes) -> bytes:
    return pyarrow.compress(content, codec="zstd", asbytes=True)


@pytest.fixture(autouse=True)
def cache(monkeypatch, tmp_path):
    monkeypatch.setenv("RECOMBINE_CACHE", str(tmp_path / "cache"))


@pytest.fixture
def folder(tmp_path):
    path = tmp_path / "text"
    path.mkdir()
    for number in range(20):
        (path / f"{number:02d}.txt").write_text(SENTENCE.format(number, number))
    return path


def read_all(*paths) -> tuple[list[str], list[str]]:
    problems: list[str] = []
    found = find_sources(tuple(map(str, paths)), problems)
    return [text for source in found for text in read_documents(source.path, problems)], problems


def prepare_folder(folder, tokenizer="bytes", held_out=0.2) -> str:
    return prepare((str(folder),), tokenizer, 512, held_out)


def read_corpus(name: str) -> set[str]:
    """All documents of a corpus, from its tokens."""
    made = load_corpus(name)
    assert made is not None
    stop = sum(size + 1 for _, start, end in made.windows(10**9).tolist() for size in [end - start])
    tokens = np.concatenate([made.window(0, made.num_tokens), made.held_out(0, stop)])
    parts = np.split(tokens, np.flatnonzero(tokens == made.tokenizer.bos)[1:])
    assert all(part[-1] == made.tokenizer.eos for part in parts)
    return {made.tokenizer.decode(part.tolist()) for part in parts}


def test_every_format_and_compression(tmp_path):
    lines = "".join(json.dumps({"text": text}) + "\n" for text in ("one", "two")).encode()
    (tmp_path / "a.jsonl").write_bytes(lines)
    (tmp_path / "b.ndjson.gz").write_bytes(gzip.compress(lines))
    (tmp_path / "c.txt.zst").write_bytes(zstd(b"zipped ") + zstd(b"text"))  # of several parts
    (tmp_path / "d.md").write_text("markdown")
    pyarrow.parquet.write_table(pyarrow.table({"text": ["three", None, "four"]}), tmp_path / "e.parquet")
    (tmp_path / "f.png").write_bytes(b"no text")
    (tmp_path / "g.txt.gz").write_bytes(gzip.compress(b"first, ") + gzip.compress(b"second"))
    os.mkfifo(tmp_path / "pipe.txt")
    expected = ["one", "two", "one", "two", "zipped text", "markdown", "three", "four", "first, second"]
    assert read_all(tmp_path) == (expected, [])


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("bad.txt", b"caf\xe9 and tea " * 3, "has 3 characters that are not UTF-8; they are read as U+FFFD"),
        ("binary.txt", bytes(range(256)) * 9, "is not UTF-8 text; left out"),
        ("cut.txt.gz", gzip.compress(b"text" * 999, mtime=0)[:30], "cannot be read"),
        ("damaged.txt.gz", ZIPPED[:10] + b"\xff" * 20, "cannot be read"),
        ("damaged.txt.zst", b"\x28\xb5\x2f\xfd" + b"\xff" * 30, "cannot be read"),
        (
            "bad.jsonl",
            b'{"text": "fine"}\nnot json\n{"title": "no text"}\n',
            "2 lines without a JSON object with a field",
        ),
        ("bad.parquet", b"not parquet", "cannot be read"),
    ],
)
def test_a_bad_file_is_named_and_the_rest_is_read(folder, name, content, message, caplog):
    (folder / name).write_bytes(content)
    texts, problems = read_all(folder)
    assert len(texts) >= 20
    assert len(problems) == 1
    assert problems[0].startswith(f"{folder / name}: ")
    assert message in problems[0]
    prepare_folder(folder)
    assert caplog.messages == problems  # once, though files are read twice


def test_a_file_that_changes_ends_the_preparation(folder, monkeypatch):
    choose = corpus._choose_threshold

    def change(*args):
        (folder / "07.txt").write_text("Something else altogether.\n")
        return choose(*args)

    monkeypatch.setattr(corpus, "_choose_threshold", change)
    with pytest.raises(InputError, match="the text has changed while it was read"):
        prepare_folder(folder)
    assert "Something else altogether.\n" in read_corpus(prepare_folder(folder))


@pytest.mark.parametrize("batch_size", [corpus.BATCH_SIZE, 3])
def test_no_document_is_on_both_sides_and_copies_are_dropped(folder, monkeypatch, batch_size):
    monkeypatch.setattr(corpus, "BATCH_SIZE", batch_size)
    alone = load_corpus(prepare_folder(folder))
    for number in range(20):
        (folder / f"copy{number:02d}.txt").write_text("  " + SENTENCE.format(number, number).replace(" ", "\n"))
    name = prepare_folder(folder)
    assert read_corpus(name) == {SENTENCE.format(number, number) for number in range(20)}
    doubled = load_corpus(name)
    assert doubled.num_documents == alone.num_documents
    decode = doubled.tokenizer.decode
    trained = decode(doubled.window(0, doubled.num_tokens).tolist())
    held_out = {decode(doubled.held_out(start, stop + 1).tolist()) for _, start, stop in doubled.windows(999).tolist()}
    assert held_out
    assert not any(text in trained for text in held_out)
    assert decode(doubled.window(-5, 10).tolist()) == trained[-4:] + trained[:4]  # an end and a beginning between


def test_the_corpus_is_named_by_its_content(folder, tmp_path, monkeypatch):
    first = prepare_folder(folder)
    assert first == "e63d16eb7169eabc"  # part of the names of runs, so it may not move
    with monkeypatch.context() as patch:
        patch.setattr(corpus, "GROUP_SIZE", 400)
        assert prepare_folder(folder, held_out=0.3) == "11f8a0e70a16c5fe"
    names = {first, prepare_folder(folder, held_out=0.4)}
    (folder / "00.txt").write_text("Another first document.\n")
    names.add(prepare_folder(folder))
    assert len(names) == 3
    copy = tmp_path / "elsewhere"
    os.rename(folder, copy)
    assert prepare_folder(copy) in names
    monkeypatch.setattr(corpus, "_prepare", lambda *_: pytest.fail("prepared again"))
    assert prepare_folder(copy) in names


def test_too_little_text_is_an_error(tmp_path):
    with pytest.raises(InputError, match="does not exist: expected a file or a folder"):
        find_sources((str(tmp_path / "nothing"),), [])
    with pytest.raises(InputError, match=r"there is no text in .*: expected files that end in .txt"):
        find_sources((str(tmp_path),), [])
    (tmp_path / "one.txt").write_text("alone")
    (tmp_path / "two.txt").write_bytes(bytes(range(256)))
    with pytest.raises(InputError, match=r"has 1 documents \(.*two.txt: is not UTF-8 text.*\): expected at least 2"):
        prepare_folder(tmp_path)


@pytest.fixture
def datasets(tmp_path, monkeypatch):
    package = pytest.importorskip("datasets")
    monkeypatch.setattr(package.config, "HF_DATASETS_CACHE", tmp_path / "datasets")
    return package


def prepare_dataset(name, num_documents=None) -> set[str]:
    return read_corpus(prepare((), "bytes", 512, 0.2, dataset=str(name), num_documents=num_documents))


def test_a_local_dataset_of_json_lines_or_parquet(tmp_path, datasets):
    data = tmp_path / "dataset"
    data.mkdir()
    expected = [SENTENCE.format(n, n) for n in range(7)]
    rows = "".join(json.dumps({"text": text}) + "\n" for text in expected)
    (data / "train.jsonl").write_text(rows)
    assert prepare_dataset(data, 5) == {*expected[:5]}
    (data / "train.jsonl").write_text(rows + rows.replace("document", "text"))  # another version of it is read again
    assert len(prepare_dataset(data)) == 14
    (data / "train.jsonl").unlink()
    for part in range(2):
        pyarrow.parquet.write_table(pyarrow.table({"text": expected[3 * part :][:3]}), data / f"train-{part}.parquet")
    assert prepare_dataset(data) == {*expected[:6]}
    (data / "train-0.parquet").unlink()
    pyarrow.parquet.write_table(pyarrow.table({"title": ["a"]}), data / "train-1.parquet")
    with pytest.raises(InputError, match="its columns are title, without 'text'"):
        prepare_dataset(data)
    with pytest.raises(InputError, match=r"none' cannot be read \(.*\): expected a data set with texts"):
        prepare_dataset(tmp_path / "none")


def test_the_first_documents_of_a_dataset_are_streamed(datasets, monkeypatch):
    """A connection that breaks is one line, and the same call again reads the same documents, once."""
    broken, read = [True], []

    def make_rows():
        for number in range(100):
            if number == 3 and broken:
                raise ConnectionError("the other side has gone")
            read.append(number)
            yield {"text": SENTENCE.format(number, number), "title": number}

    def load(name, config, *, split, streaming):
        assert (name, config, split, streaming) == ("far/away", "en", "train", True)
        return datasets.IterableDataset.from_generator(make_rows)

    monkeypatch.setattr(datasets, "load_dataset", load)
    with pytest.raises(InputError, match=r"'far/away:en' cannot be read \(the other side has gone\)"):
        prepare_dataset("far/away:en", 5)
    broken.clear()
    read.clear()
    assert prepare_dataset("far/away:en", 5) == {SENTENCE.format(n, n) for n in range(5)}
    assert len(read) < 8  # of a hundred, and once
