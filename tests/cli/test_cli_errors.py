"""What goes wrong outside the program ends in one line and exit code 2: full disks, read-only folders, narrow encodings."""

import os
import shlex
import subprocess
import sys

import pytest

from recombine.cli import main as cli
from recombine.cli.flags import TaskOptions, parse_task
from recombine.cli.main import run as run_verb

SIZES = ["--num-examples", "4", "--embedding-dim", "8", "--kqv-dim", "8", "--mlp-dim", "8", "--num-heads", "2"]
TRAIN = ["train", "fuzzy-logic", *SIZES, "--steps", "10", "--batch-size", "4", "--evaluation-instances", "20", "-q"]


@pytest.mark.parametrize("flags", [["--scale", "tiny"], ["--scale=tiny"]])
def test_scale_sets_the_defaults_of_every_verb_that_names_a_task(flags):
    paper, _ = parse_task(TaskOptions, ["in-context"], verb="show")
    tiny, options = parse_task(TaskOptions, ["in-context", *flags, "--seed", "3"], verb="show")
    assert options.scale == "tiny"
    assert tiny.seed == 3
    assert tiny != paper


def program(*arguments: str, stdout=subprocess.PIPE, **environment: str) -> subprocess.CompletedProcess:
    command = [sys.executable, "-m", "recombine", *arguments]
    return subprocess.run(command, stdout=stdout, stderr=subprocess.PIPE, env={**os.environ, **environment})


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
