"""Signals, a flipped bit, another process on the same run, a compiler that hangs: the next call ends with the same bits."""

import os
import shutil
import signal
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest

from forked import in_fork
from recombine.cli.main import run as run_verb
from recombine.foundation.errors import InputError
from recombine.training.directory import RunDirectory
from recombine.training.loop import Trainer
from recovery import record, recover
from small_runs import FAMILIES, check_often, final_state, train
from test_disk_and_rights import TRAIN
from test_kills import Countdown, compare_states, find_run

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
CONFIG = FAMILIES["fuzzy_logic"]
COMMAND = [*TRAIN, "--warmup-steps", "2", "--attention", "hyla", "--evaluation-instances", "20"]  # the same run


@pytest.fixture(autouse=True)
def _often(monkeypatch):
    check_often(monkeypatch)


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        check_often(patch)
        return final_state(train(CONFIG, tmp_path_factory.mktemp("undisturbed")))


def train_until_killed(out: Path) -> Path:
    """The directory of a run that was killed while it wrote a checkpoint, with the one before it."""

    def work() -> None:
        Countdown(100).install()
        train(CONFIG, out)

    assert in_fork(work) == -9
    path = find_run(out).path
    assert (path / "checkpoint-previous.safetensors").exists()
    return path


def test_a_flipped_bit_in_the_last_checkpoint(tmp_path, undisturbed):
    """Training goes on from the checkpoint before the damaged one."""
    killed = train_until_killed(tmp_path / "killed")
    intact = (killed / "checkpoint.safetensors").read_bytes()
    for place in (0, 9, 300, len(intact) // 2, len(intact) - 1):
        out = tmp_path / str(place)
        copy = Path(shutil.copytree(killed, out / killed.name))
        changed = bytearray(intact)
        changed[place] ^= 1
        (copy / "checkpoint.safetensors").write_bytes(changed)
        with pytest.raises(InputError, match=r"checkpoint\.safetensors"):
            RunDirectory(copy).load_checkpoint()
        recover("flipped bit", f"byte {place}", partial(train, CONFIG, out), partial(compare_states, undisturbed))


def test_two_processes_on_one_run(tmp_path, undisturbed):
    """The second is refused; it may go on once the first has ended."""
    out, said = tmp_path / "runs", tmp_path / "said"
    killed = train_until_killed(out)
    with RunDirectory(killed).lock():
        assert in_fork(lambda: run_verb([*COMMAND, "--out", str(out)]), errors=said) == 2
    assert f"{killed} is being trained by another process" in said.read_text()
    recover("two processes", "train", partial(train, CONFIG, out), partial(compare_states, undisturbed))


@pytest.mark.parametrize(("name", "code"), [("SIGINT", 130), ("SIGTERM", 143), ("SIGHUP", 129)])
def test_signals(name, code, tmp_path, undisturbed):
    """A checkpoint of the last step and a line that says how to go on."""
    number, advance = getattr(signal, name), Trainer.advance

    def interrupted(trainer, *, stop):
        if trainer.step == 11:
            os.kill(os.getpid(), number)
        return advance(trainer, stop=stop)

    def work() -> int:
        # in the background, signals may be ignored, and training leaves them so
        signal.signal(number, signal.default_int_handler if name == "SIGINT" else signal.SIG_DFL)
        pytest.MonkeyPatch().setattr(Trainer, "advance", interrupted)
        return run_verb([*COMMAND, "--out", str(out)])

    out, said = tmp_path / "runs", tmp_path / "said"
    assert in_fork(work, errors=said) == code
    assert f"stopped by {name} at step 1" in said.read_text()
    recover("signals", name, partial(train, CONFIG, out), partial(compare_states, undisturbed))


HANGING = """
import sys, time
from recombine.cli.main import run
from recombine.foundation import native as compiler
compiler.COMPILE_TIMEOUT = compiler.VERSION_TIMEOUT = float(sys.argv[1])
started = time.monotonic()
code = run(sys.argv[2:])
print(time.monotonic() - started, file=sys.stderr)
sys.exit(code)
"""


@pytest.mark.parametrize("hangs_at", ["version", pytest.param("kernel", marks=pytest.mark.slow)])
def test_a_compiler_that_hangs(hangs_at, tmp_path):
    """It is waited for once, up to its limit; then the training goes on with torch."""
    program, limit = tmp_path / "slow", 2.0
    answer = 'case "$1" in --version) echo slow 1.0; exit 0;; esac\n' if hangs_at == "kernel" else ""
    program.write_text(f"#!/bin/sh\n{answer}sleep 1000\n")
    program.chmod(0o755)
    out = tmp_path / "runs"
    argv = [sys.executable, "-c", HANGING, str(limit), *TRAIN, "--evaluation-instances", "20", "--out", str(out)]
    environment = os.environ | {"CC": str(program), "RECOMBINE_CACHE": str(tmp_path / "cache")}
    done = subprocess.run(argv, capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr
    assert find_run(out).finished
    assert done.stderr.count("did not end within 2 seconds") == 1, done.stderr
    seconds = float(done.stderr.split()[-1])
    assert seconds >= limit
    record("hanging compiler", hangs_at, tried=1, times={"seconds": round(seconds - limit, 3)})
