"""Run directories that somebody else prepared: links, pipes, and checkpoints with a digest that fits what they hold."""

import json
import os
import shutil
import subprocess
import tempfile
import unicodedata
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from forked import in_fork
from fuzz import TASK, call, train_once, verbs
from recombine.foundation import files
from recombine.foundation import native as compiler
from recombine.foundation.errors import NOT_SHOWN, InputError
from recombine.foundation.native import digest, find_compiler
from recombine.training.directory import encode_checkpoint

pytestmark = pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no pipes here")
Tensors = dict[str, torch.Tensor]


@pytest.fixture(scope="module")
def pristine(tmp_path_factory):
    return train_once(tmp_path_factory.mktemp("runs"))


@pytest.fixture
def run(pristine, tmp_path):
    return Path(shutil.copytree(pristine, tmp_path / "runs" / pristine.name))


def resume(run: Path) -> tuple[int | None, str]:
    """Exit code and complaint of a training that goes on from the checkpoint of a run."""
    (run / "result.json").unlink()
    code, _, err, trace = call(["train", *TASK, "--out", str(run.parent)])
    assert not trace, trace
    assert code != 2 or len(err.strip().splitlines()) == 1, err
    return code, err


@pytest.mark.parametrize("name", ["result.json", "metrics.jsonl", "checkpoint.json"])
def test_links_with_the_names_of_temporary_files_are_not_followed(name, run, tmp_path):
    precious = tmp_path / "precious"
    precious.write_text("kept")
    (run / f".{name}.{os.getpid()}.tmp").symlink_to(precious)
    files.replace_file(run / name, b"new")
    assert precious.read_text() == "kept"
    assert (run / name).read_bytes() == b"new"
    assert not list(run.glob(".*.tmp"))


FILES = ["config.json", "result.json", "split.json", "metrics.jsonl", "checkpoint.safetensors"]


@pytest.mark.parametrize("name", FILES)
def test_a_pipe_in_the_place_of_a_file_does_not_hang(name, run, tmp_path, monkeypatch):
    monkeypatch.setattr("fuzz.PATIENCE", 60)
    (run / name).unlink()
    os.mkfifo(run / name)
    for verb in ("evaluate", "runs", "compare"):
        code, _, err, trace = call(verbs(run, tmp_path)[verb])
        assert not trace, trace
        assert code == 0 or "it is not a regular file" in err


CONSTRUCTOR = """
#include <fcntl.h>
__attribute__((constructor)) static void planted(void) { open("%s", O_CREAT | O_WRONLY, 0666); }
int answer(void) { return 666; }
"""
VICTIM, ATTACKER = 54321, 54322


def build_planted(program: Any, attempts: Any, source: Path, folder: Path, prefix: str) -> Path:
    """What an attacker builds instead of the kernel: it leaves a trace when it is loaded."""
    evil, built = folder / "evil.c", folder / "evil.so"
    evil.write_text(CONSTRUCTOR % (source.parent / "trace"))
    subprocess.run([*program, "-shared", "-fPIC", "-o", str(built), str(evil)], check=True)
    built.chmod(0o755)
    return built.rename(folder / f"{prefix}-{digest([built.read_bytes()])}.so")


def plant(source: Path) -> None:
    os.umask(0)
    os.setuid(ATTACKER)
    (source.parent / "cache").mkdir(mode=0o700)
    compiler._build = build_planted  # type: ignore[assignment]
    compiler.load_library(source)


def load_as_victim(source: Path) -> int:
    os.setuid(VICTIM)
    try:
        return compiler.load_library(source).answer()
    except InputError:
        return 2


@pytest.mark.skipif(os.getuid() != 0 or find_compiler() is None, reason="needs root, to be two other users")
@pytest.mark.parametrize("where", ["in a folder of everybody", "in a folder of the attacker", "through a link"])
def test_a_kernel_that_another_user_planted_is_not_run(where, monkeypatch):
    """Two processes of two users: one builds a library under the name that the other one looks for."""
    with tempfile.TemporaryDirectory() as place:
        source, trace, cache = (Path(place, name) for name in ("answer.c", "trace", "cache"))
        Path(place).chmod(0o1777)
        monkeypatch.setenv("RECOMBINE_CACHE", str(cache))
        source.write_text("int answer(void) { return 42; }\n")
        assert in_fork(partial(plant, source)) == 0
        assert trace.exists(), "the attack itself must work"
        trace.unlink()
        if where == "in a folder of everybody":
            os.chown(cache, 0, 0)
            cache.chmod(0o1777)
        elif where == "through a link":
            elsewhere = cache.rename(Path(place, "elsewhere"))
            cache.symlink_to(elsewhere)
            os.lchown(cache, ATTACKER, ATTACKER)
            os.chown(elsewhere, VICTIM, VICTIM)
        assert in_fork(partial(load_as_victim, source)) == 2
        assert not trace.exists()


def test_activations_from_a_device_that_never_ends():
    code, _, err, trace = call(["probe", "--activations", "/dev/zero", "-q"])
    assert not trace
    assert code == 2
    assert "it is not a regular file" in err


def forge(run: Path, change: Callable[[Tensors], Tensors] = lambda tensors: tensors, **info: Any) -> None:
    """A checkpoint of the same run, with a digest that fits: whoever writes a file can compute it."""
    path = run / "checkpoint.safetensors"
    with safe_open(path, "pt") as file:
        header = dict(file.metadata())
    content = encode_checkpoint(
        change(load_file(path)), json.loads(header["info"]) | {"step": 10} | info, config_hash=header["config"]
    )
    path.write_bytes(content)


INFO = [
    ({"seconds": "x"}, "seconds: expected float, got str"),
    ({"seconds": 10**400}, "seconds: number out of range"),
    ({"loss": float("nan")}, "expected JSON"),
    ({"timed_steps": 1.5}, "timed_steps: expected int, got float"),
    ({"interval": {"first_step": 0, "loss_sums": [0.5]}}, "stopped by an earlier version in the middle of a logging"),
    ({"step": True}, "step: expected int, got bool"),
]


@pytest.mark.parametrize(("info", "message"), INFO)
def test_what_a_checkpoint_says_of_itself_is_checked(info, message, run):
    forge(run, **info)
    code, err = resume(run)
    assert code == 2
    assert message in err


@pytest.mark.parametrize("info", ["[" * 100_000, "[]", "{}", "1", '{"step": 1.5}'])
def test_the_header_of_a_checkpoint_may_be_anything(info, run, tmp_path):
    path = run / "checkpoint.safetensors"
    save_file(load_file(path), path, {"sha256": "x", "config": "y", "info": info})
    for verb in ("evaluate", "probe", "diagnose"):
        code, _, err, trace = call(verbs(run, tmp_path)[verb])
        assert not trace, trace
        assert code == 2
        assert "checkpoint.safetensors" in err


NAMES = ["a[/red]b", "a\x1b]0;title\x07b", "a\nb", "a\u202eb", "a\u2028b", "[link=file:///x]y"]


@pytest.mark.parametrize("name", NAMES)
def test_the_name_of_a_run_cannot_command_a_terminal(name, pristine, tmp_path):
    """Control characters, line ends and marks of direction are written out, in tables and in complaints."""
    run = Path(shutil.copytree(pristine, tmp_path / name / "run"))
    for argv in (["runs", str(tmp_path)], ["runs", str(run.parent)], ["evaluate", str(run)]):
        if argv[0] == "evaluate":
            (run / "checkpoint.safetensors").write_bytes(b"x")
        code, out, err, trace = call(argv)
        assert not trace, trace
        assert code == (2 if argv[0] == "evaluate" else 0)
        assert not {sign for sign in out + err if unicodedata.category(sign) in NOT_SHOWN and sign != "\n"}
        assert len(err.splitlines()) == (1 if code else 0)
    empty = tmp_path / name / "empty"
    empty.mkdir()
    code, out, _, trace = call(["runs", str(empty)])
    assert (code, trace) == (0, "")
    assert "holds no runs" in " ".join(out.split())
