"""What goes wrong outside the program ends in one line and exit code 2: full disks, read-only folders, narrow encodings."""

import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from recombine.cli import main as cli
from recombine.cli.flags import TaskOptions, parse_task
from recombine.cli.main import run as run_verb
from recombine.training.directory import RunDirectory

SIZES = ["--num-examples", "4", "--embedding-dim", "8", "--kqv-dim", "8", "--mlp-dim", "8", "--num-heads", "2"]
TRAIN = ["train", "fuzzy-logic", *SIZES, "--steps", "10", "--batch-size", "4", "--evaluation-instances", "20", "-q"]


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--step", "10"], "unknown flag --step (did you mean --steps?)"),
        (["--batchsize", "10"], "(did you mean --batch-size?); see recombine train fuzzy-logic --help"),
        (["--xyzzy", "10"], "unknown flag --xyzzy; see recombine train fuzzy-logic --help"),
    ],
)
def test_a_mistyped_flag_gets_a_suggestion(flags, message, capsys):
    assert run_verb(["train", "fuzzy-logic", *flags]) == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    ("command", "message"),
    [
        (
            ["train", "fuzzy-logic", "--batchsize", "10"],
            "(did you mean --batch-size?); see recombine train fuzzy-logic",
        ),
        (
            ["report", "runs", "--otu", "x"],
            "unknown flag --otu (did you mean --out?); see recombine report",
        ),
        (["compare", "a"], "RUN is missing: expected run directory of a finished run on the same task and seed; see"),
        (
            ["check", "fuzzy-logic", "--scale", "big"],
            "unknown value of --scale 'big': expected one of tiny, small, paper; see recombine check",
        ),
        (["reproduce", "demo", "--scale", "tinny"], "expected one of tiny, small, paper; did you mean tiny?; see"),
        (["train", "fuzzy-logic", "--steps", "ten"], "--steps is 'ten': expected a whole number; see"),
        (["train", "fuzzy-logic", "--learning-rate", "x"], "--learning-rate is 'x': expected a number; see"),
        (["train", "fuzzy-logic", "--steps"], "--steps: expected one argument; see"),
        (["train", "fuzzy-logic", "more"], "unexpected argument 'more'; see"),
        (["chekc", "sraven"], "unknown verb 'chekc': did you mean check?"),
        (["train", "Fuzzy-Logic"], "package.module:NAME; did you mean fuzzy-logic?"),
        (["train", "fuzzy-logic", "--lr", "1"], "unknown flag --lr (did you mean --learning-rate?)"),
        (["train", "fuzzy-logic", "--epochs", "1"], "unknown flag --epochs (did you mean --steps?)"),
        (["check", "fuzzy-logic", "--held-out", "60"], "strictly between 0 and 1; did you mean 0.6?"),
        (["train", "fuzzy-logic", "--steps", "1.5e0"], "--steps is '1.5e0': expected a whole number"),
        (["reproduce", "sravn"], "unknown experiment 'sravn': did you mean sraven?"),
        (["train", "fuzy-logic"], "package.module:NAME; did you mean fuzzy-logic?"),
    ],
)
def test_a_mistake_is_answered_in_one_plain_line(command, message, capsys):
    assert run_verb(command) == 2
    error = capsys.readouterr().err
    assert message in error
    assert len(error.splitlines()) == 1


@pytest.mark.parametrize("flags", [["--scale", "tiny"], ["--scale=tiny"]])
def test_scale_sets_the_defaults_of_every_verb_that_names_a_task(flags):
    paper, _ = parse_task(TaskOptions, ["in-context"], verb="show")
    tiny, options = parse_task(TaskOptions, ["in-context", *flags, "--seed", "3"], verb="show")
    assert options.scale == "tiny"
    assert tiny.seed == 3
    assert tiny != paper


def test_show_refuses_a_negative_index(capsys):
    assert run_verb(["show", "fuzzy-logic", "--index", "-1"]) == 2
    assert "index is -1: expected 0 or a positive whole number" in capsys.readouterr().err


def no_space(*arguments, **options):
    raise OSError(28, "No space left on device")


def test_a_full_disk(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(os, "fsync", no_space)
    assert run_verb([*TRAIN, "--out", str(tmp_path)]) == 2
    error = capsys.readouterr().err
    assert "No space left on device" in error
    assert len(error.splitlines()) == 1


def test_a_full_disk_during_training(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(RunDirectory, "append_metrics", no_space)
    assert run_verb([*TRAIN, "--out", str(tmp_path)]) == 2
    assert capsys.readouterr().err == "recombine: No space left on device\n"


def test_a_picture_that_cannot_be_written(tmp_path, capsys):
    (tmp_path / "file").write_text("")
    assert run_verb(["show", "sraven", "--image", str(tmp_path / "file" / "x.svg")]) == 2
    error = capsys.readouterr().err
    assert "x.svg" in error
    assert len(error.splitlines()) == 1


def program(*arguments: str, stdout=subprocess.PIPE, **environment: str) -> subprocess.CompletedProcess:
    command = [sys.executable, "-m", "recombine", *arguments]
    return subprocess.run(command, stdout=stdout, stderr=subprocess.PIPE, env={**os.environ, **environment})


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full")
@pytest.mark.parametrize("arguments", [["--help"], ["show", "fuzzy-logic", "--num-examples", "4"]], ids=" ".join)
def test_standard_output_that_is_full(arguments):
    with open("/dev/full", "wb") as full:
        done = program(*arguments, stdout=full)
    assert done.returncode == 2
    assert done.stderr.decode() == "recombine: No space left on device\n"


@pytest.mark.parametrize("encoding", ["ascii", "latin-1"])
def test_encodings_without_mathematical_signs(encoding):
    done = program("show", "fuzzy-logic", "--num-examples", "4", PYTHONIOENCODING=encoding)
    assert done.returncode == 0, done.stderr
    assert b"? x2" in done.stdout  # a sign for "and" that the encoding does not have


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (MemoryError(), "no details"),
        (
            RuntimeError("[enforce fail at alloc_cpu.cpp:127] . DefaultCPUAllocator: can't allocate memory"),
            "DefaultCPU",
        ),
        (RuntimeError("could not create a primitive"), "could not create a primitive"),
        (RuntimeError("std::bad_alloc"), "std::bad_alloc"),
        (OSError(12, "Cannot allocate memory"), "Cannot allocate memory"),
        (ImportError("kernel.so: failed to map segment from shared object"), "failed to map segment"),
    ],
)
def test_every_sign_of_memory_that_runs_out(error, reason, capsys, monkeypatch):
    monkeypatch.setattr(cli, "_run_verb", lambda argv: (_ for _ in ()).throw(error))
    assert run_verb(TRAIN) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("recombine: out of memory (")
    assert reason in line


@pytest.mark.parametrize(
    "error",
    [
        RuntimeError("could not create a primitive descriptor for the matmul primitive"),
        ImportError("kernel.so: failed to map segment from shared object: Operation not permitted"),  # mounted noexec
    ],
)
def test_other_errors_of_libraries_are_bugs(error, monkeypatch):
    monkeypatch.setattr(cli, "_run_verb", lambda argv: (_ for _ in ()).throw(error))
    with pytest.raises(type(error)):
        run_verb(TRAIN)


def test_errors_of_a_bug_are_not_hidden(monkeypatch):
    monkeypatch.setattr(cli, "_run_verb", lambda argv: (_ for _ in ()).throw(RuntimeError("a bug")))
    with pytest.raises(RuntimeError, match="a bug"):
        run_verb(["tasks"])


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="no /dev/full")
@pytest.mark.parametrize("streams", [">&-", "2>&-", "<&- >&- 2>&-", "> /dev/full", "2> /dev/full"])
@pytest.mark.parametrize("arguments", ["--version", "--help", "nonsense"])
def test_streams_that_are_closed_or_full(streams, arguments):
    """One line where there is room for it, and never a traceback; what could not be written is not a success."""
    command = f"{shlex.quote(sys.executable)} -m recombine {arguments} {streams}"
    buffered = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    done = subprocess.run(["sh", "-c", command], capture_output=True, text=True, env=buffered)
    lost = arguments == "nonsense" or streams == "> /dev/full"
    assert done.returncode == (2 if lost else 0)
    assert len(done.stderr.splitlines()) <= 1, done.stderr
