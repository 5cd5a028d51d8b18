"""Load: many runs, and a corpus larger than memory. Time grows in proportion, memory and open files stay flat."""

import gc
import json
import os
import resource
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from recombine.foundation.errors import InputError
from recombine.report.page import write_report
from recombine.tasks.language.corpus import corpus_folder
from recombine.tasks.language.task import Language
from recombine.tasks.language.tokenizers import ByteTokenizer
from report_cases import make_run, make_score

pytestmark = pytest.mark.skipif(not os.path.exists("/proc/self/fd"), reason="no /proc")
COUNTS = (50, 100, 200)


def count_open_files() -> int:
    return len(os.listdir("/proc/self/fd"))


def read_memory(field: str) -> int:
    """Megabytes of this process: `RssAnon` is its own memory, `RssFile` what it has mapped and the system may take back."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(field)) // 1024


@pytest.fixture(scope="module")
def runs(tmp_path_factory) -> dict[int, Path]:
    """Folders with so many runs."""
    folders = {count: tmp_path_factory.mktemp(f"runs-{count}") for count in COUNTS}
    for count, folder in folders.items():
        for number in range(count):
            make_run(folder, f"attention {number}", make_score(0.5), num_rows=50)
    return folders


def measure(what: str, work: Callable[[int], None]) -> dict[int, float]:
    """Seconds of the processor for each number of runs. No file stays open."""
    work(COUNTS[0])  # imports and caches
    before, seconds = count_open_files(), {}
    for count in COUNTS:
        gc.collect()
        started = time.process_time()
        work(count)
        seconds[count] = time.process_time() - started
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
        print(f"{what} over {count} runs: {seconds[count]:.2f} s of CPU, peak {peak} MB in memory")
    assert count_open_files() == before
    return seconds


@pytest.mark.slow
def test_a_report_over_two_hundred_runs(runs, tmp_path):
    def write(count: int) -> None:
        paths = sorted(runs[count].iterdir())
        write_report(paths, tmp_path / "report.html", title="load", gallery=False)

    seconds = measure("report", write)
    print(f"the page of 200 runs has {(tmp_path / 'report.html').stat().st_size / 1e6:.1f} MB")
    assert seconds[200] < 3 * seconds[100] + 1


def make_corpus(num_bytes: int) -> str:
    """A corpus whose training tokens have so many bytes but take none of the disk."""
    name = f"{num_bytes:016x}"
    folder = corpus_folder(name)
    folder.mkdir()
    with open(folder / "train.bin", "wb") as file:
        file.truncate(num_bytes)
    (folder / "held_out.bin").write_bytes(np.full(2_000, 97, np.uint16).tobytes())
    (folder / "tokenizer").write_bytes(ByteTokenizer.content)
    lengths = {"num_documents": 1, "num_tokens": num_bytes // 2, "held_out": [1_000, 1_000]}
    manifest = {"vocabulary": 4096, "problems": [], "dtype": "uint16", **lengths}
    (folder / "manifest.json").write_text(json.dumps(manifest))
    return name


def read_corpus(num_bytes: int, num_batches: int) -> float:
    """Milliseconds per batch of 32 rows of 256 tokens; memory and open files do not grow on the way."""
    task = Language(corpus=make_corpus(num_bytes), grammar_fraction=0.0, recall_fraction=0.0)
    task.sample("train", 0, batch_size=32)
    files = count_open_files()
    gc.collect()
    memory = read_memory("RssAnon")
    started = time.process_time()
    for index in range(num_batches):
        assert task.sample("train", index, batch_size=32).inputs.shape == (32, 256)
    milliseconds = (time.process_time() - started) / num_batches * 1e3
    grown, mapped = read_memory("RssAnon") - memory, read_memory("RssFile")
    print(
        f"{num_bytes / 1e9:g} GB of tokens: {milliseconds:.1f} ms of CPU per batch of 32 x 256; "
        f"memory of its own grew by {grown} MB, {mapped} MB mapped, {count_open_files() - files} more open files"
    )
    assert count_open_files() == files
    assert grown < 30
    return milliseconds


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("RECOMBINE_CACHE", str(tmp_path))


@pytest.mark.usefixtures("cache")
def test_a_corpus_of_ten_gigabytes():
    read_corpus(10 * 10**9, 20)


DAMAGES = [
    ("manifest.json", b"{}", "vocabulary"),
    ("manifest.json", b"[" * 10**5, "nested too deeply"),
    ("manifest.json", b'{"problems": [], "vocabulary": 1, "num_tokens": 9, "dtype": "O"}', "manifest.json is damaged"),
    ("train.bin", b"abc", "multiple of element size"),
    ("train.bin", b"abcd", "train.bin has 2 tokens instead of 2000"),
    ("held_out.bin", b"", "empty file"),
]


@pytest.mark.usefixtures("cache")
@pytest.mark.parametrize(("name", "content", "message"), DAMAGES)
def test_a_damaged_corpus_is_named(name, content, message):
    corpus = make_corpus(4_000)
    (corpus_folder(corpus) / name).write_bytes(content)
    with pytest.raises(InputError, match=f"cannot be read .*({message}).*: delete the folder to make it again"):
        _ = Language(corpus=corpus).tokens


@pytest.mark.parametrize("name", ["../../x", "/etc", "", "a/b", "x" * 5_000])
def test_the_name_of_a_corpus_leads_nowhere_else(name):
    with pytest.raises(InputError, match="expected a hash in hexadecimal digits"):
        Language(corpus=name)
