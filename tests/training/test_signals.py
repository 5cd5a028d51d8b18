"""Signals during training: a checkpoint at the next step, a line that says how to go on, and the same bits at the end."""

import os
import signal
import threading
from typing import get_type_hints

import pytest
import torch

from recombine.training import schema
from recombine.training.directory import RunDirectory
from recombine.training.session import StoppedError, handle_stop_signals
from recombine.training.trainer import Trainer
from test_run import CONFIG, checkpoint_bytes, train


def without_times(run):
    return [{name: value for name, value in row.items() if name != "seconds"} for row in run.read_metrics()]


def kill_at(step, number, *, twice=False):
    def watch(progress):
        if progress.step >= step:
            os.kill(os.getpid(), number)
            if twice:
                os.kill(os.getpid(), number)

    return watch


@pytest.fixture(autouse=True)
def untouched_handlers():
    """Handlers as in a terminal: `nohup` and background jobs have signals ignored, and training leaves them so."""
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    before = {number: signal.signal(number, signal.SIG_DFL) for number in numbers}
    signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    return train(CONFIG, tmp_path_factory.mktemp("runs"))


def test_a_stopped_run_ends_with_the_same_bits_and_rows(finished, tmp_path):
    """Stopped three times, in the middle of a logging interval."""
    for number, step, code in ((signal.SIGINT, 10, 130), (signal.SIGTERM, 60, 143), (signal.SIGHUP, 100, 129)):
        where = rf"stopped by {number.name} at step {step + 1} of 120; .*go on"
        with pytest.raises(StoppedError, match=where) as stop:
            train(CONFIG, tmp_path, watch=kill_at(step, number))
        assert stop.value.exit_code == code
    (path,) = tmp_path.iterdir()
    assert str(path) in str(stop.value)
    stopped = RunDirectory(path).read_json("checkpoint.json")
    assert set(stopped) == set(get_type_hints(schema.CheckpointInfo))
    resumed = train(CONFIG, tmp_path)
    ours, theirs = checkpoint_bytes(resumed), checkpoint_bytes(finished)
    assert all(torch.equal(ours[name], theirs[name]) for name in theirs)
    assert without_times(resumed) == without_times(finished)
    assert resumed.read_json("result.json")["scores"] == finished.read_json("result.json")["scores"]


def test_a_stop_on_the_last_step_of_an_interval_writes_its_row_once(finished, tmp_path, monkeypatch):
    advance = Trainer.advance

    def stop_at_seventy(trainer, *, stop):
        return advance(trainer, stop=trainer.step == 69)

    with monkeypatch.context() as patched:
        patched.setattr(Trainer, "advance", stop_at_seventy)
        with pytest.raises(StoppedError, match="at step 70"):
            train(CONFIG, tmp_path)

    def crash(progress):
        raise RuntimeError(f"crashed at {progress.step}")

    with pytest.raises(RuntimeError, match="crashed at 80"):
        train(CONFIG, tmp_path, watch=crash)
    assert without_times(train(CONFIG, tmp_path)) == without_times(finished)


def test_a_signal_after_the_last_step_keeps_the_trained_model(finished, tmp_path):
    with pytest.raises(StoppedError, match="after the last step; the trained model is in"):
        train(CONFIG, tmp_path, watch=kill_at(120, signal.SIGTERM))
    resumed = train(CONFIG, tmp_path, watch=lambda _: pytest.fail("it trained again"))
    assert resumed.read_json("result.json")["scores"] == finished.read_json("result.json")["scores"]


def test_a_second_signal_ends_at_once(tmp_path):
    with pytest.raises(StoppedError, match=r"^stopped by SIGTERM$"):
        train(CONFIG, tmp_path, watch=kill_at(60, signal.SIGTERM, twice=True))


def test_handlers_of_others_are_left_alone():
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)  # as `nohup` does
    usual = signal.getsignal(signal.SIGTERM)
    try:
        with handle_stop_signals() as request:
            assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
            assert signal.getsignal(signal.SIGTERM) == request.receive
        assert signal.getsignal(signal.SIGTERM) is usual
    finally:
        signal.signal(signal.SIGHUP, before)


def test_other_threads_receive_no_signals():
    seen = []

    def work():
        with handle_stop_signals() as request:
            seen.append((request.is_made, signal.getsignal(signal.SIGTERM)))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert seen == [(False, signal.getsignal(signal.SIGTERM))]
