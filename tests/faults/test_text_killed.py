"""Preparing text survives SIGKILL at any moment: reading, training of the tokeniser, writing of tokens; and locked files."""

import os
import random
import shutil
import time
from functools import partial
from pathlib import Path

import pytest

from forked import drop_rights, in_fork
from recombine.tasks.language import corpus as prepare
from recombine.tasks.language.corpus import corpus_folder, load_corpus
from recovery import differences, recover
from test_kills import Countdown

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
WORDS = ["river", "clock", "seed", "lamp", "bridge", "stone", "cloud", "paper", "mill", "road", "sand", "harbour"]


@pytest.fixture(autouse=True)
def _several_groups(monkeypatch):
    monkeypatch.setattr(prepare, "GROUP_SIZE", 20_000)
    monkeypatch.setattr(prepare, "PARALLEL_FROM", 10**9)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    path, draw = tmp_path / "text", random.Random(0)
    path.mkdir()
    for number in range(30):
        lines = (" ".join(draw.choices(WORDS, k=12)) for _ in range(60))
        (path / f"{number:02d}.txt").write_text("\n".join(f"{line} {number}" for line in lines))
    return path


def prepare_in(cache: Path, folder: Path) -> str:
    os.environ["RECOMBINE_CACHE"] = str(cache)
    pytest.importorskip("sentencepiece")
    return prepare.prepare((str(folder),), "sentencepiece", 512, 0.2)


def content(cache: Path, name: str) -> dict[str, bytes]:
    """Every file of a corpus."""
    os.environ["RECOMBINE_CACHE"] = str(cache)
    return {path.name: path.read_bytes() for path in sorted(corpus_folder(name).iterdir())}


@pytest.fixture(autouse=True)
def _environment(monkeypatch):
    monkeypatch.setenv("RECOMBINE_CACHE", os.environ.get("RECOMBINE_CACHE", ""))  # is set back afterwards


def kill_at_operations(fault: str, tmp_path: Path, folder: Path, numbers) -> int:
    """How many of the numbers are operations on files of a preparation; it is resumed after each kill."""
    name = prepare_in(tmp_path / "undisturbed", folder)
    expected = content(tmp_path / "undisturbed", name)

    def find_lost(cache: Path):
        return lambda name: differences(content(cache, name), expected)

    for count, number in enumerate(numbers):
        cache = tmp_path / f"cache-{number}"

        def work(cache=cache, number=number):
            Countdown(number).install()
            prepare_in(cache, folder)

        code = in_fork(work)
        assert code in (0, -9)
        if code == 0:
            return count
        assert recover(fault, f"operation {number}", partial(prepare_in, cache, folder), find_lost(cache)) == name
        assert not [*(cache / "language" / "work").glob("*/*")]
    return len(numbers)


def test_kills_at_some_operations_on_files(tmp_path, folder):
    assert kill_at_operations("text, some operations", tmp_path, folder, (0, 9, 21)) == 3


def test_a_kill_right_before_the_working_copy_is_deleted(tmp_path, folder, monkeypatch):
    """It is as large as the corpus, and would stay for ever."""
    with monkeypatch.context() as patch:
        patch.setattr(shutil, "rmtree", lambda *_, **__: None)
        name = prepare_in(tmp_path / "cache", folder)
    assert [*(tmp_path / "cache" / "language" / "work").glob("*/*")]
    assert prepare_in(tmp_path / "cache", folder) == name
    assert not [*(tmp_path / "cache" / "language" / "work").glob("*/*")]


@pytest.mark.slow
def test_kills_at_every_operation_on_files(tmp_path, folder):
    assert kill_at_operations("text, every operation", tmp_path, folder, range(10_000)) > 30


def test_kills_at_random_also_while_the_tokeniser_is_trained(tmp_path, folder):
    started = time.monotonic()
    name = prepare_in(tmp_path / "undisturbed", folder)
    expected = content(tmp_path / "undisturbed", name)
    seconds = time.monotonic() - started

    def work(cache: Path) -> None:
        prepare_in(cache, folder)

    draw, killed = random.Random(1), 0
    for number in range(12):
        cache = tmp_path / f"cache-{number}"
        codes = [in_fork(partial(work, cache), kill_after=draw.uniform(0, seconds)) for _ in range(3)]
        killed += codes.count(-9)
        assert prepare_in(cache, folder) == name
        assert content(cache, name) == expected
        if killed >= 4:
            return
    raise AssertionError(f"only {killed} kills: too fast to be killed")


def test_without_permission(tmp_path, folder):
    """Files and folders that may not be read are named, and the rest is used."""
    locked, closed = folder / "05.txt", folder / "closed"
    locked.chmod(0)
    closed.mkdir(mode=0)
    said = tmp_path / "said"

    def work() -> int:
        drop_rights()
        os.environ["RECOMBINE_CACHE"] = str(tmp_path / "cache")
        corpus = load_corpus(prepare.prepare((str(folder),), "bytes", 512, 0.2))
        said.write_text("\n".join(corpus.problems))
        return 7 if sum(corpus.num_documents.values()) == 29 else 1

    try:
        assert in_fork(work) == 7
    finally:
        locked.chmod(0o600)
        closed.chmod(0o700)
    assert sorted(said.read_text().splitlines()) == [
        f"{locked}: Permission denied; left out",
        f"{closed}: Permission denied; left out",
    ]
