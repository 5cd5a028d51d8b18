"""A full disk, a folder that cannot be written, memory that runs out: one line, exit code 2, nothing half-written."""

import errno
import io
import logging
import os
import shutil
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest

from faults import differences, drop_rights, in_fork, limit_files, limit_memory, record, recover
from recombine.cli.main import run as run_verb
from recombine.foundation import files
from recombine.foundation.errors import InputError
from recombine.sweeps.run import mark_folder
from recombine.tasks.language.corpus import load_corpus, prepare
from recombine.training.directory import RunDirectory
from small_runs import FAMILIES, TRAIN, check_often, final_state, train

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="limits and rights of Linux")
CONFIG = FAMILIES["fuzzy_logic"]


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    return train(CONFIG, tmp_path_factory.mktemp("runs"))


@pytest.fixture
def copied(finished, tmp_path):
    return Path(shutil.copytree(finished.path, tmp_path / finished.path.name))


def verbs(run: Path, out: Path) -> dict[str, list[str]]:
    """Every verb that writes."""
    few = ["--num-instances", "30"]
    return {
        "train": [*TRAIN, "--evaluation-instances", "20", "--out", str(out)],
        "probe": ["probe", str(run), "--no-tsne", "-q", *few],
        "diagnose": ["diagnose", str(run), "-q", *few],
        "report": ["report", str(run), "-o", str(out / "report.html"), "--no-gallery"],
        "export": ["export", "fuzzy-logic", "-o", str(out / "rows.parquet"), "--num-instances", "50"],
        "show": ["show", "sraven", "--image", str(out / "puzzle.svg")],
    }


def attempt(argv: list[str], errors: Path, starve) -> str:
    """What a verb that must fail writes to standard error."""

    def work() -> int:
        starve()
        return run_verb(argv)

    assert in_fork(work, errors=errors) == 2, errors.read_text()
    return errors.read_text()


def results(run: Path, out: Path) -> dict[str, Path]:
    """The file that each of them writes; `*` is the name of a run."""
    return {
        "train": out / "*" / "result.json",
        "probe": run / "probe.json",
        "diagnose": run / "diagnosis.json",
        "report": out / "report.html",
        "export": out / "rows.parquet",
        "show": out / "puzzle.svg",
    }


def read_files(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def call_again(fault: str, verb: str, run: Path, out: Path, before: dict[str, bytes]) -> None:
    """Call a verb without the fault: it must write its result, and leave the files of its run as they were."""

    def find_lost(code: int) -> list[str]:
        result = results(run, out)[verb].relative_to(out.parent)
        missing = [] if list(out.parent.glob(str(result))) else [str(result)]
        changed = [name for name in before if name != "lock" and (run / name).read_bytes() != before[name]]
        return [f"exit code {code}"] * (code != 0) + missing + changed

    recover(fault, verb, lambda: in_fork(lambda: run_verb(verbs(run, out)[verb])), find_lost)


SLOW = [pytest.param(verb, marks=pytest.mark.slow) for verb in ("probe", "diagnose", "report")]
VERBS = ("train", "export", "show", *SLOW)


@pytest.mark.parametrize("verb", VERBS)
def test_a_full_disk(verb, copied, tmp_path):
    out = tmp_path / "out"
    out.mkdir()
    before = read_files(copied)
    error = attempt(verbs(copied, out)[verb], tmp_path / "errors", lambda: limit_files(300))
    assert sum(line.startswith("recombine: ") for line in error.splitlines()) == 1, error
    assert "File too large" in error
    assert {name: (copied / name).read_bytes() for name in before} == before
    assert not [path for path in tmp_path.rglob("*") if path.suffix in (".tmp", ".html", ".svg", ".parquet")]
    call_again("full disk", verb, copied, out, before)


@pytest.mark.parametrize("verb", VERBS)
def test_a_folder_that_cannot_be_written(verb, copied, tmp_path):
    out = tmp_path / "out"
    out.mkdir()
    before = read_files(copied)
    out.chmod(0o555)
    copied.chmod(0o555)
    error = attempt(verbs(copied, out)[verb], tmp_path / "errors", drop_rights)
    assert sum(line.startswith("recombine: ") for line in error.splitlines()) == 1, error
    assert "Permission denied" in error
    out.chmod(0o755)
    copied.chmod(0o755)
    call_again("folder without write permission", verb, copied, out, before)


def test_a_finished_run_in_a_folder_that_cannot_be_written(copied):
    """There is nothing to write, so it is no mistake to ask for it again."""
    (copied / "lock").unlink()
    before = {path.name: path.stat().st_mtime_ns for path in copied.iterdir()}
    copied.chmod(0o555)
    argv = [*TRAIN, "--warmup-steps", "2", "--attention", "hyla", "--evaluation-instances", "20"]

    def work(limit=drop_rights) -> int:
        limit()
        return run_verb([*argv, "--out", str(copied.parent)])

    assert in_fork(work) == 0
    assert {path.name: path.stat().st_mtime_ns for path in copied.iterdir()} == before
    copied.chmod(0o755)

    def find_lost(code: int) -> list[str]:
        return [f"exit code {code}"] * (code != 0) + [name for name in before if not (copied / name).exists()]

    fault = "finished run in a folder without write permission"
    recover(fault, "train", lambda: in_fork(lambda: work(lambda: None)), find_lost)


def test_a_finished_run_on_a_read_only_mount(copied, monkeypatch):
    """Where `unlink` fails even if there is nothing to delete."""

    def refuse(path, missing_ok=False):
        raise OSError(errno.EROFS, os.strerror(errno.EROFS), str(path))

    monkeypatch.setattr(Path, "unlink", refuse)
    assert train(CONFIG, copied.parent).path == copied


def test_the_files_that_killed_writes_leave_are_removed_by_the_next(tmp_path):
    child = os.fork()
    if child == 0:
        os._exit(0)
    os.waitpid(child, 0)
    dead, alive = f"{files.MACHINE}-{child}", f"{files.MACHINE}-{os.getppid()}"
    old, new, fresh = (tmp_path / f".x.json.{name}.tmp" for name in ("other-1", dead, "other-2"))
    running = tmp_path / f".x.json.{alive}.tmp"
    for path in (old, new, fresh, running):
        path.touch()
    os.utime(old, (0, 0))
    files.replace_file(tmp_path / "x.json", b"{}")
    assert {path.name for path in tmp_path.iterdir()} == {"x.json", fresh.name, running.name}
    (tmp_path / f".shared-{dead}-0").touch()
    with mark_folder(tmp_path) as mark:
        assert [path.name for path in tmp_path.glob(".shared-*")] == [mark]


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EIO])
def test_every_error_of_a_disk_names_the_file(number, copied, monkeypatch):
    """The system's own error of a read, a write or a sync has no name."""
    run = RunDirectory(copied)
    work = {
        "result.json": lambda: run.write_json("result.json", {}),
        "metrics.jsonl": lambda: run.append_metrics({"step": 1, "loss": 1.0}),
        "split.json": lambda: run.read_json("split.json"),
        "checkpoint.safetensors": lambda: run.save_checkpoint({}, {"step": 1}),
    }
    _ = run.config

    class Broken(io.BytesIO):
        def read(self, *_):
            raise OSError(number, os.strerror(number))

        write = read

        def fileno(self):
            return descriptor

    descriptor = os.open(copied / "split.json", os.O_RDONLY)
    monkeypatch.setattr(files, "open", lambda *_, **__: Broken(), raising=False)
    for name, call in work.items():
        with pytest.raises((OSError, InputError)) as caught:
            call()
        assert name in (getattr(caught.value, "filename", None) or str(caught.value))
    os.close(descriptor)


def test_text_that_may_not_be_read(tmp_path, monkeypatch):
    """Files and folders that may not be read are named, and the rest is used."""
    monkeypatch.setenv("RECOMBINE_CACHE", str(tmp_path / "cache"))
    folder, said = tmp_path / "text", tmp_path / "said"
    locked, closed = folder / "05.txt", folder / "closed"
    folder.mkdir()
    for number in range(10):
        (folder / f"{number:02d}.txt").write_text(f"river clock {number}\n" * 60)
    locked.chmod(0)
    closed.mkdir(mode=0)

    def work() -> int:
        drop_rights()
        logging.basicConfig(filename=said, format="%(message)s", force=True)
        corpus = load_corpus(prepare((str(folder),), "bytes", vocabulary=512, held_out=0.2))
        return 7 if sum(corpus.num_documents.values()) == 9 else 1

    assert in_fork(work) == 7
    locked.chmod(0o600)
    closed.chmod(0o700)
    problems = [
        f"{locked}: cannot be read (Permission denied); its rest is left out",
        f"{closed}: Permission denied; left out",
    ]
    assert sorted(said.read_text().splitlines()) == problems


def test_training_goes_on_when_there_is_room_again(tmp_path, monkeypatch):
    """The disk fills up at different moments; each time the run resumes, and it ends with the same bits."""
    check_often(monkeypatch)
    undisturbed = final_state(train(CONFIG, tmp_path / "undisturbed"))
    size = (next((tmp_path / "undisturbed").iterdir()) / "checkpoint.safetensors").stat().st_size

    def work(limit: int) -> int:
        limit_files(limit)
        train(CONFIG, tmp_path / "disturbed")
        return 0

    for limit in (size // 2, 600, 900, size - 1):
        assert in_fork(partial(work, limit), errors=tmp_path / "errors") != 0
    recover(
        "full disk",
        "training, 4 moments",
        lambda: train(CONFIG, tmp_path / "disturbed"),
        lambda run: differences(final_state(run), undisturbed),
        tried=4,
    )


def test_memory_that_runs_out(tmp_path):
    """Wherever the memory ends: in the batch, in a product, in a kernel."""
    small = [*TRAIN, "--steps", "2", "--evaluation-instances", "20", "--out", str(tmp_path)]
    assert run_verb(small) == 0  # what is imported when first used has been
    argv = [*small, "--batch-size", "200000"]
    for megabytes in (12, 14.5, 20, 27.5, 35, 43.5, 47, 50):
        error = attempt(argv, tmp_path / f"errors-{megabytes}", partial(limit_memory, int(megabytes * 1e6)))
        assert error.startswith("recombine: out of memory ("), error
        assert error.count("\n") == 1, error
    recover(
        "memory exhausted",
        "train",
        lambda: in_fork(lambda: run_verb(argv)),
        lambda code: [f"exit code {code}"] * (code != 0),
    )


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("unshare") is None, reason="no unshare")
def test_a_real_file_system_that_is_full(tmp_path):
    """A tmpfs of 64 kB: the run ends in one line, and goes on from its checkpoint when the file system has grown."""
    place = tmp_path / "small"
    place.mkdir()
    arguments = " ".join([*TRAIN, "--steps", "600", "--evaluation-instances", "20", "--out", str(place)])
    script = f"""
    mount -t tmpfs -o size=64k tmpfs {place} || exit 77
    {sys.executable} -m recombine {arguments}; echo "first $?" >&2
    mount -o remount,size=8m {place}
    date +"began %s.%N" >&2
    {sys.executable} -m recombine {arguments}; echo "second $?" >&2
    date +"ended %s.%N" >&2
    mount -o remount,ro {place}
    {sys.executable} -m recombine {arguments}; echo "third $?" >&2
    cp -r {place} {tmp_path / "copy"}
    """
    done = subprocess.run(["unshare", "-rm", "sh", "-c", script], capture_output=True, text=True, env=os.environ)
    if done.returncode == 77:
        pytest.skip("cannot mount here")
    lines = done.stderr.strip().splitlines()
    assert "No space left on device" in lines[0], done.stderr
    assert [line for line in lines if line.split()[0] in ("first", "second", "third")] == [
        "first 2",
        "second 0",
        "third 0",
    ]
    (run,) = (RunDirectory(path) for path in (tmp_path / "copy").iterdir())
    assert run.finished
    began, ended = (float(line.split()[1]) for line in lines if line.startswith(("began", "ended")))
    record("64 kB file system", "train", tried=1, times={"seconds": round(ended - began, 3)})
