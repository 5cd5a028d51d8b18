"""SIGKILL at any moment loses nothing: what was killed often ends with the bits of what was never disturbed.

A training, a sweep of several, and the preparation of text; signals, a flipped bit, a second process, a compiler that hangs.
"""

import os
import random
import shutil
import signal
import subprocess
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from faults import Countdown, differences, in_fork, kill_at_operations, kill_at_random, record, recover
from recombine.cli.main import run as run_verb
from recombine.foundation.errors import InputError
from recombine.sweeps.local import LocalEngine
from recombine.sweeps.plan import make_plan
from recombine.sweeps.run import run_sweep
from recombine.tasks.language.corpus import prepare
from recombine.training.directory import RunDirectory
from recombine.training.trainer import Trainer
from small_runs import FAMILIES, TRAIN, check_often, final_state, leftovers, train

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
CONFIG = FAMILIES["fuzzy_logic"]
COMMAND = [*TRAIN, "--warmup-steps", "2", "--attention", "hyla", "--evaluation-instances", "20"]  # the same run
# with a checkpoint every two steps: the first, one that keeps the first, one that replaces what was kept, and the last
SHORT = replace(CONFIG, training=replace(CONFIG.training, steps=8))


@pytest.fixture(autouse=True)
def _often(monkeypatch):
    check_often(monkeypatch)


def read_runs(out: Path) -> dict[str, object]:
    """The states of all runs in a folder; files that a finished run should not have count as a part of them."""
    runs = {path.name: RunDirectory(path) for path in out.iterdir() if (path / "config.json").exists()}
    left = [name for run in runs.values() for name in leftovers(run)]
    return {name: final_state(run) for name, run in runs.items()} | {"leftovers": left}


@pytest.mark.parametrize(
    ("family", "fault", "num_kills"),
    [
        ("fuzzy_logic", "a few random kills", 4),
        *(pytest.param(family, "random kills", 12, marks=pytest.mark.slow, id=f"many-{family}") for family in FAMILIES),
    ],
)
def test_kills_at_random(family, fault, num_kills, tmp_path):
    kill_at_random(fault, family, lambda out: train(FAMILIES[family], out) and None, read_runs, tmp_path, num_kills)


def test_kills_at_some_operations_on_files(tmp_path):
    numbers = (0, 7, 26, 43)
    assert kill_at_operations("kills at some operations", partial(train, SHORT), read_runs, tmp_path, numbers) == 4


@pytest.mark.slow
def test_kills_at_every_operation_on_files(tmp_path):
    """Every write, fsync, rename and link of a run, from the first to the last."""
    work = partial(train, SHORT)
    assert kill_at_operations("kills at every operation", work, read_runs, tmp_path, range(10_000)) > 100


@pytest.mark.slow
def test_kills_of_a_sweep(tmp_path, monkeypatch):
    monkeypatch.undo()  # checkpoints as a user has them
    family = FAMILIES["hyperteacher"]  # whose final evaluation takes least time
    training = replace(family.training, steps=400)
    configs = [replace(family, task=replace(family.task, seed=seed), training=training) for seed in range(3)]

    def work(out: Path) -> None:
        status = run_sweep(make_plan(configs, "killed"), LocalEngine(jobs=2, threads=1), out=out, device="cpu")
        assert status.count("finished") == len(configs)

    out = kill_at_random("kills of a sweep", "3 runs", work, read_runs, tmp_path, 8)
    assert len(read_runs(out)) == len(configs) + 1


WORDS = ["river", "clock", "seed", "lamp", "bridge", "stone", "cloud", "paper", "mill", "road", "sand", "harbour"]


@pytest.fixture
def prepare_text(tmp_path, monkeypatch):
    """A function that prepares some text in a cache folder."""
    pytest.importorskip("sentencepiece")
    monkeypatch.setenv("RECOMBINE_CACHE", "")  # is set back afterwards
    folder, draw = tmp_path / "text", random.Random(0)
    folder.mkdir()
    for number in range(30):
        lines = (" ".join(draw.choices(WORDS, k=12)) for _ in range(60))
        (folder / f"{number:02d}.txt").write_text("\n".join(f"{line} {number}" for line in lines))

    def work(cache: Path) -> None:
        os.environ["RECOMBINE_CACHE"] = str(cache)
        prepare((str(folder),), "sentencepiece", vocabulary=512, held_out=0.2)

    return work


def read_corpora(cache: Path) -> dict[str, object]:
    """The files of corpora in a cache; a kill may leave small temporary files beside them."""
    files = (cache / "language" / "tokens").rglob("*")
    kept = [path for path in files if path.is_file() and not path.name.startswith(".")]
    return {str(path.relative_to(cache)): path.read_bytes() for path in kept}


def test_kills_while_text_is_prepared(prepare_text, tmp_path):
    numbers = range(10_000)
    assert kill_at_operations("text, every operation", prepare_text, read_corpora, tmp_path, numbers) > 6
    kill_at_random("text, at random", "sentencepiece", prepare_text, read_corpora, tmp_path / "random", 4)


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        check_often(patch)
        return final_state(train(CONFIG, tmp_path_factory.mktemp("undisturbed")))


def go_on(fault: str, case: str, out: Path, undisturbed) -> None:
    """Train again, and compare."""
    recover(fault, case, partial(train, CONFIG, out), lambda run: differences(final_state(run), undisturbed))


@pytest.fixture
def killed(tmp_path) -> Path:
    """The directory of a run that was killed while it wrote a checkpoint, with the one before it."""
    out = tmp_path / "killed"

    def work() -> None:
        Countdown(100).install()
        train(CONFIG, out)

    assert in_fork(work) == -signal.SIGKILL
    (path,) = out.iterdir()
    assert (path / "checkpoint-previous.safetensors").exists()
    return path


def test_a_flipped_bit_in_the_last_checkpoint(killed, tmp_path, undisturbed):
    """Training goes on from the checkpoint before the damaged one."""
    intact = (killed / "checkpoint.safetensors").read_bytes()
    for place in (0, 9, 300, len(intact) // 2, len(intact) - 1):
        out = tmp_path / str(place)
        copy = Path(shutil.copytree(killed, out / killed.name))
        changed = bytearray(intact)
        changed[place] ^= 1
        (copy / "checkpoint.safetensors").write_bytes(changed)
        with pytest.raises(InputError, match=r"checkpoint\.safetensors"):
            RunDirectory(copy).load_checkpoint()
        go_on("flipped bit", f"byte {place}", out, undisturbed)


def test_two_processes_on_one_run(killed, tmp_path, undisturbed):
    """The second is refused; it may go on once the first has ended."""
    said = tmp_path / "said"
    with RunDirectory(killed).lock():
        assert in_fork(lambda: run_verb([*COMMAND, "--out", str(killed.parent)]), errors=said) == 2
    assert f"{killed} is being trained by another process" in said.read_text()
    go_on("two processes", "train", killed.parent, undisturbed)


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
    go_on("signals", name, out, undisturbed)


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
    (run,) = map(RunDirectory, out.iterdir())
    assert run.finished
    assert done.stderr.count("did not end within 2 seconds") == 1, done.stderr
    seconds = float(done.stderr.split()[-1])
    assert seconds >= limit
    record("hanging compiler", hangs_at, tried=1, times={"seconds": round(seconds - limit, 3)})
