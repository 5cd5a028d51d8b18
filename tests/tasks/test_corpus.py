"""Corpora: text of every format, files that cannot be used, preparation that continues after a kill, and data sets."""

import gzip
import json
import os

import pyarrow
import pyarrow.parquet
import pytest

from recombine.foundation.errors import InputError
from recombine.tasks.language import corpus, sources
from recombine.tasks.language.corpus import load_corpus, prepare, tokenise_group
from recombine.tasks.language.sources import download_dataset, find_sources, read_documents

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
    return [text for source in found for text in read_documents(source, problems)], problems


def prepare_folder(folder, tokenizer="bytes", held_out=0.2) -> str:
    return prepare((str(folder),), tokenizer, 512, held_out)


def test_every_format_and_compression(tmp_path):
    lines = "".join(json.dumps({"text": text}) + "\n" for text in ("one", "two")).encode()
    (tmp_path / "a.jsonl").write_bytes(lines)
    (tmp_path / "b.ndjson.gz").write_bytes(gzip.compress(lines))
    (tmp_path / "c.txt.zst").write_bytes(zstd(b"zipped ") + zstd(b"text"))  # of several parts
    (tmp_path / "d.md").write_text("markdown")
    pyarrow.parquet.write_table(pyarrow.table({"text": ["three", "four"]}), tmp_path / "e.parquet")
    (tmp_path / "f.png").write_bytes(b"no text")
    (tmp_path / "g.txt.gz").write_bytes(gzip.compress(b"first, ") + gzip.compress(b"second"))
    expected = ["one", "two", "one", "two", "zipped text", "markdown", "three", "four", "first, second"]
    assert read_all(tmp_path) == (expected, [])


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("bad.txt", b"caf\xe9 and tea " * 3, "has 3 characters that are not UTF-8; they are read as U+FFFD"),
        ("binary.txt", bytes(range(256)) * 9, "is not UTF-8 text; left out"),
        ("empty.txt", b"", "is empty; left out"),
        ("long.txt", b"x" * (1 + (1 << 20)), "has a line of 1,048,577 characters; it is cut after every 65,536"),
        ("cut.txt.gz", gzip.compress(b"text" * 999, mtime=0)[:30], "cannot be read"),
        ("damaged.txt.gz", ZIPPED[:10] + b"\xff" * 20, "cannot be read"),
        ("damaged.txt.zst", b"\x28\xb5\x2f\xfd" + b"\xff" * 30, "cannot be read"),
        ("bad.jsonl", b'{"text": "fine"}\nnot json\n{"title": "no text"}\n', "2 lines are not JSON objects"),
        ("bad.parquet", b"not parquet", "cannot be read"),
    ],
)
def test_a_bad_file_is_named_and_the_rest_is_read(folder, name, content, message):
    (folder / name).write_bytes(content)
    texts, problems = read_all(folder)
    assert len(texts) >= 20
    assert len(problems) == 1
    assert problems[0].startswith(f"{folder / name}: ")
    assert message in problems[0]


def test_pipes_columns_and_permissions_are_named(folder, monkeypatch):
    locked, pipe, titles = folder / "05.txt", folder / "pipe.txt", folder / "titles.parquet"
    os.mkfifo(pipe)
    pyarrow.parquet.write_table(pyarrow.table({"title": ["a"]}), titles)

    def refuse(path, *args, **kwargs):
        if path == locked:
            raise PermissionError(13, "Permission denied", str(path))
        return original(path, *args, **kwargs)

    original = open
    monkeypatch.setattr(sources, "open", refuse, raising=False)  # root may read everything
    texts, problems = read_all(folder)
    assert len(texts) == 19
    assert problems == [
        f"{pipe}: is not a regular file; left out",
        f"{locked}: Permission denied; left out",
        f"{titles}: has no column 'text' (its columns: title); left out",
    ]
    with pytest.raises(InputError, match=r"there is no text in .*pipe.txt: is not a regular file; left out\)"):
        find_sources((str(pipe),), [])


def test_a_file_that_changes_is_named_and_left_out(folder, monkeypatch, caplog):
    changed, choose = folder / "07.txt", corpus._choose_threshold

    def change(*args):
        changed.write_text("Something else altogether.\n")
        return choose(*args)

    monkeypatch.setattr(corpus, "_choose_threshold", change)
    made = load_corpus(prepare_folder(folder))
    assert sum(made.num_documents.values()) == 19
    assert f"{changed}: has changed while it was read; left out" in caplog.text


@pytest.mark.parametrize("group_size", [corpus.GROUP_SIZE, 200])
def test_no_document_is_on_both_sides_and_copies_are_dropped(folder, monkeypatch, group_size):
    monkeypatch.setattr(corpus, "GROUP_SIZE", group_size)
    monkeypatch.setattr(corpus, "PARALLEL_FROM", 10**9)
    alone = load_corpus(prepare_folder(folder))
    for number in range(20):
        (folder / f"copy{number:02d}.txt").write_text("  " + SENTENCE.format(number, number).replace(" ", "\n"))
    doubled = load_corpus(prepare_folder(folder))
    assert doubled.num_documents == alone.num_documents
    decode = doubled.tokenizer.decode
    trained = decode(doubled.window(0, doubled.num_tokens).tolist())
    held_out = {decode(doubled.held_out(start, stop + 1).tolist()) for _, start, stop in doubled.windows(999).tolist()}
    assert held_out
    assert not any(text in trained for text in held_out)
    assert decode(doubled.window(-5, 10).tolist()) == trained[-4:] + trained[:4]  # an end and a beginning between


def test_preparation_continues_where_it_was_killed(folder, monkeypatch):
    monkeypatch.setattr(corpus, "GROUP_SIZE", 200)
    monkeypatch.setattr(corpus, "PARALLEL_FROM", 10**9)
    expected = prepare_folder(folder)
    os.rename(os.environ["RECOMBINE_CACHE"], f"{os.environ['RECOMBINE_CACHE']}-before")
    calls = []

    def die(group, *rest):
        calls.append(group.number)
        if len(calls) == 3:
            raise KeyboardInterrupt
        tokenise_group(group, *rest)

    monkeypatch.setattr(corpus, "tokenise_group", die)
    with pytest.raises(KeyboardInterrupt):
        prepare_folder(folder)
    assert prepare_folder(folder) == expected
    assert sorted(calls) == sorted([*range(max(calls) + 1), calls[2]])  # only the third group was done twice
    calls.clear()
    assert prepare_folder(folder) == expected
    assert calls == []


def test_several_processes_prepare_the_same_corpus(folder, monkeypatch):
    monkeypatch.setattr(corpus, "GROUP_SIZE", 400)
    monkeypatch.setattr(corpus, "PARALLEL_FROM", 10**9)
    expected = prepare_folder(folder)
    os.rename(os.environ["RECOMBINE_CACHE"], f"{os.environ['RECOMBINE_CACHE']}-before")
    monkeypatch.setattr(corpus, "PARALLEL_FROM", 1)
    assert prepare_folder(folder) == expected


def test_the_corpus_is_named_by_its_content(folder, tmp_path):
    names = {prepare_folder(folder)}
    names.add(prepare_folder(folder, held_out=0.4))
    (folder / "00.txt").write_text("Another first document.\n")
    names.add(prepare_folder(folder))
    assert len(names) == 3
    copy = tmp_path / "elsewhere"
    os.rename(folder, copy)
    assert prepare_folder(copy) in names


def test_too_little_text_is_an_error(tmp_path):
    with pytest.raises(InputError, match="does not exist: expected a file or a folder"):
        find_sources((str(tmp_path / "nothing"),), [])
    with pytest.raises(InputError, match=r"there is no text in .*: expected files that end in .txt"):
        find_sources((str(tmp_path),), [])
    (tmp_path / "one.txt").write_text("alone")
    (tmp_path / "two.txt").write_text("")
    with pytest.raises(InputError, match=r"has 1 documents \(.*two.txt: is empty; left out\): expected at least 2"):
        prepare_folder(tmp_path)


def test_a_local_dataset_of_json_lines_or_parquet(tmp_path, monkeypatch):
    pytest.importorskip("datasets")
    data = tmp_path / "dataset"
    data.mkdir()
    expected = [SENTENCE.format(n, n) for n in range(7)]
    rows = "".join(json.dumps({"text": text}) + "\n" for text in expected)
    (data / "train.jsonl").write_text(rows)
    monkeypatch.setattr(sources, "DOCUMENTS_PER_FILE", 2)
    assert read_all(download_dataset(str(data), 5)) == (expected[:5], [])
    (data / "train.jsonl").write_text(rows + rows.replace("document", "text"))  # another version of it is read again
    assert len(read_all(download_dataset(str(data), None))[0]) == 14
    (data / "train.jsonl").unlink()
    for part in range(2):
        pyarrow.parquet.write_table(pyarrow.table({"text": expected[3 * part :][:3]}), data / f"train-{part}.parquet")
    assert read_all(download_dataset(str(data), None)) == (expected[:6], [])
    (data / "train-0.parquet").unlink()
    pyarrow.parquet.write_table(pyarrow.table({"title": ["a"]}), data / "train-1.parquet")
    with pytest.raises(InputError, match="its columns are title, without 'text'"):
        download_dataset(str(data), None)
    with pytest.raises(InputError, match=r"cannot be read after 0 documents .*: expected a data set with texts"):
        download_dataset(str(tmp_path / "none"), 5)


def test_a_dataset_whose_connection_breaks_is_continued(monkeypatch):
    datasets = pytest.importorskip("datasets")
    broken = [True]

    def make_rows():
        for number in range(5):
            if number == 3 and broken:
                raise ConnectionError("the other side has gone")
            yield {"text": SENTENCE.format(number, number)}

    def load(name, config, *, split, streaming):
        assert (name, config, split, streaming) == ("far/away", "en", "train", True)
        return datasets.IterableDataset.from_generator(make_rows)

    monkeypatch.setattr(sources, "DOCUMENTS_PER_FILE", 2)
    monkeypatch.setattr(datasets, "load_dataset", load)
    with pytest.raises(InputError, match=r"'far/away:en' cannot be read after 2 documents \(the other side has gone\)"):
        download_dataset("far/away:en", None)
    broken.clear()
    assert read_all(download_dataset("far/away:en", None))[0] == [SENTENCE.format(n, n) for n in range(5)]
