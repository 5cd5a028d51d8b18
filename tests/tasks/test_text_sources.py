"""Text from files: every format, and files that cannot be used, each with a message that names it."""

import functools
import gzip
import io
import itertools
import json
import os
import sys
from typing import Any

import pyarrow
import pyarrow.parquet
import pytest

from recombine.foundation.errors import InputError
from recombine.foundation.progress import Display, show_progress
from recombine.tasks.language import corpus as prepare
from recombine.tasks.language import sources
from recombine.tasks.language import sources as hub
from recombine.tasks.language.corpus import Request, load_corpus, tokenise_group
from recombine.tasks.language.sources import Problems, download_dataset, find_sources, read_documents

ZIPPED = gzip.compress(b"text " * 999 + bytes(range(256)), mtime=0)
SENTENCE = "The {} document says that it is the {} document, and no other one says so.\n"


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
    problems = Problems()
    found = find_sources(tuple(map(str, paths)), problems)
    return [text for source in found for text in read_documents(source, problems)], problems.lines


def request(folder, **changes) -> Request:
    settings: dict[str, Any] = {"paths": (str(folder),), "tokenizer": "bytes", "vocabulary": 512, "held_out": 0.2}
    return Request(**(settings | changes))


def test_every_format_and_compression(tmp_path):
    zstandard = pytest.importorskip("zstandard")
    rows = [{"text": "one"}, {"text": "two"}]
    lines = "".join(json.dumps(row) + "\n" for row in rows).encode()
    (tmp_path / "a.txt").write_text("plain")
    (tmp_path / "b.jsonl").write_bytes(lines)
    (tmp_path / "c.txt.gz").write_bytes(gzip.compress(b"zipped", mtime=0))
    (tmp_path / "d.jsonl.zst").write_bytes(zstandard.ZstdCompressor().compress(lines))
    pyarrow.parquet.write_table(pyarrow.table({"text": ["three", "four"]}), tmp_path / "e.parquet")
    (tmp_path / "f.bin").write_bytes(b"no text")
    texts, problems = read_all(tmp_path)
    assert texts == ["plain", "one", "two", "zipped", "one", "two", "three", "four"]
    assert problems == []


def test_without_files_the_text_is_the_standard_library():
    found = find_sources((), Problems())
    names = {source.name for source in found}
    assert {"argparse.py", "json/decoder.py"} <= names
    assert not any("test" in name.split("/") or "site-packages" in name for name in names)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("bad.txt", b"caf\xe9 and tea " * 3, "has 3 characters that are not UTF-8; they are read as U+FFFD"),
        ("binary.txt", bytes(range(256)) * 9, "is not UTF-8 text; left out"),
        ("empty.txt", b"", "is empty; left out"),
        (
            "long.txt",
            b"x" * (sources.LONG_FILE + 1),
            "has a line of 1,048,577 characters; it is cut after every 65,536",
        ),
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


def test_a_compressed_file_of_several_parts_is_read_to_its_end(tmp_path):
    zstandard = pytest.importorskip("zstandard")
    for name, compress in (("a.txt.gz", gzip.compress), ("b.txt.zst", zstandard.ZstdCompressor().compress)):
        (tmp_path / name).write_bytes(compress(b"first, ") + compress(b"second"))
    assert read_all(tmp_path) == (["first, second"] * 2, [])


def test_a_pipe_is_named_and_not_waited_for(folder):
    os.mkfifo(folder / "pipe.txt")
    texts, problems = read_all(folder)
    assert len(texts) == 20
    assert problems == [f"{folder / 'pipe.txt'}: is not a regular file; left out"]
    with pytest.raises(InputError, match=r"there is no text in .*pipe.txt: is not a regular file; left out\)"):
        find_sources((str(folder / "pipe.txt"),), Problems())


def test_a_parquet_file_without_text_is_named(folder):
    pyarrow.parquet.write_table(pyarrow.table({"title": ["a"]}), folder / "titles.parquet")
    assert "has no column 'text' (its columns: title); left out" in read_all(folder)[1][0]


def test_a_file_without_permission_is_named(folder, monkeypatch):
    locked = folder / "05.txt"

    def refuse(path, *args, **kwargs):
        if path == locked:
            raise PermissionError(13, "Permission denied", str(path))
        return original(path, *args, **kwargs)

    original = open
    monkeypatch.setattr(sources, "open", refuse, raising=False)  # root may read everything
    texts, problems = read_all(folder)
    assert len(texts) == 19
    assert problems == [f"{locked}: Permission denied; left out"]


def test_a_file_that_changes_is_named_and_left_out(folder, monkeypatch, caplog):
    changed = folder / "07.txt"
    choose = prepare._Preparation._choose

    def change(self, surveys):
        changed.write_text("Something else altogether.\n")
        return choose(self, surveys)

    monkeypatch.setattr(prepare._Preparation, "_choose", change)
    corpus = load_corpus(prepare.prepare(request(folder)))
    assert sum(corpus.num_documents.values()) == 19
    assert f"{changed}: has changed while it was read; left out" in caplog.text


def test_no_document_is_on_both_sides_and_copies_are_dropped(folder):
    alone = load_corpus(prepare.prepare(request(folder)))
    for number in range(20):
        (folder / f"copy{number:02d}.txt").write_text("  " + SENTENCE.format(number, number).replace(" ", "\n"))
    doubled = load_corpus(prepare.prepare(request(folder)))
    assert doubled.num_documents == alone.num_documents
    decode = doubled.tokenizer.decode
    trained = decode(doubled.window(0, doubled.num_tokens).tolist())
    held_out = {decode(doubled.held_out(start, stop + 1).tolist()) for _, start, stop in doubled.windows(999).tolist()}
    assert held_out
    assert not any(text in trained for text in held_out)


def test_preparation_goes_on_where_it_was_killed(folder, monkeypatch):
    monkeypatch.setattr(prepare, "GROUP_SIZE", 200)
    monkeypatch.setattr(prepare, "PARALLEL_FROM", 10**9)
    expected = prepare.prepare(request(folder))
    os.rename(os.environ["RECOMBINE_CACHE"], f"{os.environ['RECOMBINE_CACHE']}-before")
    calls = []

    def die(group, *rest):
        calls.append(group.number)
        if len(calls) == 3:
            raise KeyboardInterrupt
        tokenise(group, *rest)

    tokenise = tokenise_group
    monkeypatch.setattr(prepare, "tokenise_group", die)
    with pytest.raises(KeyboardInterrupt):
        prepare.prepare(request(folder))
    assert prepare.prepare(request(folder)) == expected
    assert sorted(calls) == sorted([*range(max(calls) + 1), calls[2]])  # only the third group was done twice
    calls.clear()
    assert prepare.prepare(request(folder)) == expected
    assert calls == []


def test_the_corpus_is_named_by_its_content(folder, tmp_path):
    names = {prepare.prepare(request(folder))}
    names.add(prepare.prepare(request(folder, held_out=0.4)))
    (folder / "00.txt").write_text("Another first document.\n")
    names.add(prepare.prepare(request(folder)))
    assert len(names) == 3
    copy = tmp_path / "elsewhere"
    os.rename(folder, copy)
    assert prepare.prepare(request(copy)) in names


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda path: path / "nothing", "does not exist: expected a file or a folder"),
        (lambda path: path, "there is no text in .*: expected files that end in .txt"),
    ],
)
def test_no_text_at_all_is_an_error(tmp_path, make, message):
    with pytest.raises(InputError, match=message):
        find_sources((str(make(tmp_path)),), Problems())


class Terminal(io.StringIO):
    def isatty(self):
        return True


def test_progress_is_shown_only_if_it_is_wanted(folder, monkeypatch, caplog):
    """`--quiet` and `--json` turn progress off; the command line decides, not the terminal."""
    monkeypatch.setattr("rich.console.Console.is_terminal", True)
    for wanted, tokenizer in ((False, "sentencepiece"), (True, "bytes")):
        monkeypatch.setattr(sys, "stderr", Terminal())
        clock = itertools.count(0.0, 10.0)
        with show_progress(wanted, Display(now=functools.partial(next, clock))):
            prepare.prepare(request(folder, tokenizer=tokenizer))
        shown = sys.stderr.getvalue()
        assert ("tokenising" in shown) == wanted
        assert wanted or shown == ""
    assert not caplog.records


def test_a_single_document_is_an_error(tmp_path):
    (tmp_path / "one.txt").write_text("alone")
    (tmp_path / "two.txt").write_text("")
    with pytest.raises(InputError, match=r"has 1 documents \(.*two.txt: is empty; left out\): expected at least 2"):
        prepare.prepare(request(tmp_path))


def test_a_dataset_is_read_in_streaming_mode(tmp_path, monkeypatch):
    pytest.importorskip("datasets")
    data = tmp_path / "dataset"
    data.mkdir()
    rows = "".join(json.dumps({"text": SENTENCE.format(n, n)}) + "\n" for n in range(7))
    (data / "train.jsonl").write_text(rows)
    monkeypatch.setattr("recombine.tasks.language.sources.DOCUMENTS_PER_FILE", 2)
    texts, problems = read_all(download_dataset(str(data), 5))
    assert texts == [SENTENCE.format(n, n) for n in range(5)]
    assert problems == []
    (data / "train.jsonl").write_text(rows + rows.replace("document", "text"))  # another version of it is read again
    assert len(read_all(download_dataset(str(data), None))[0]) == 14
    with pytest.raises(InputError, match=r"cannot be loaded .*: expected the name of a data set with a split 'train'"):
        download_dataset(str(tmp_path / "none"), 5)


def test_a_data_set_in_parquet_files(tmp_path):
    pytest.importorskip("datasets")
    (tmp_path / "data").mkdir()
    for part in range(2):
        texts = [SENTENCE.format(part, n) for n in range(3)]
        pyarrow.parquet.write_table(pyarrow.table({"text": texts}), tmp_path / "data" / f"train-{part}.parquet")
    texts, problems = read_all(download_dataset(str(tmp_path / "data"), None))
    assert texts == [SENTENCE.format(part, n) for part in range(2) for n in range(3)]
    assert problems == []


def test_a_data_set_whose_connection_breaks_is_continued(tmp_path, monkeypatch):
    class Stream:
        broken = True

        def skip(self, number):
            return (row for row in self.rows() if row["number"] >= number)

        def rows(self):
            for number in range(5):
                if number == 3 and self.broken:
                    raise ConnectionError("the other side has gone")
                yield {"text": SENTENCE.format(number, number), "number": number}

    monkeypatch.setattr(hub, "DOCUMENTS_PER_FILE", 2)
    monkeypatch.setattr(hub, "_open_of_hub", lambda name: Stream())
    with pytest.raises(InputError, match=r"'far/away' cannot be read after 2 documents \(the other side has gone\)"):
        download_dataset("far/away", None)
    Stream.broken = False
    assert read_all(download_dataset("far/away", None))[0] == [SENTENCE.format(n, n) for n in range(5)]
