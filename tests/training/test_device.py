"""Devices: CUDA before the CPU, MPS with a warning, deterministic algorithms on request."""

from dataclasses import replace

import pytest
import torch

from recombine.foundation.errors import InputError
from recombine.training import session
from recombine.training.config import default_run
from recombine.training.run import train_run
from recombine.training.session import resolve_device, use_deterministic_algorithms


@pytest.fixture
def any_device(monkeypatch):
    """Pretend that every device is there."""
    monkeypatch.setattr(torch, "empty", lambda *_, device: None)


def test_auto_prefers_cuda(any_device, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert resolve_device("auto") == torch.device("cuda")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert resolve_device("auto") == torch.device("cpu")


def test_each_process_takes_its_own_device(any_device, monkeypatch):
    monkeypatch.setattr(session, "num_processes", lambda: 4)
    monkeypatch.setenv("LOCAL_RANK", "3")
    assert resolve_device("cuda") == torch.device("cuda:3")
    assert resolve_device("cuda:1") == torch.device("cuda:1")
    assert resolve_device("cpu") == torch.device("cpu")


def test_mps_is_said_to_be_untested(any_device, caplog):
    assert resolve_device("mps") == torch.device("mps")
    assert "device mps is untested" in caplog.text


def test_a_device_that_is_not_there():
    with pytest.raises(InputError, match="device 'abacus' is not available: expected auto, cpu, or an accelerator"):
        resolve_device("abacus")


def test_deterministic_algorithms_are_switched_on_and_off():
    assert not torch.are_deterministic_algorithms_enabled()
    with use_deterministic_algorithms():
        assert torch.are_deterministic_algorithms_enabled()
    assert not torch.are_deterministic_algorithms_enabled()


def test_a_finished_run_needs_no_device(tmp_path):
    """The node that started a sweep on a cluster may have no GPU: it reads what the workers have trained there."""
    config = default_run("hyperteacher", "tiny", "mlp")
    config = replace(config, training=replace(config.training, steps=2))
    finished = train_run(config, out=tmp_path, evaluation_instances=50, device="cpu")
    assert train_run(config, out=tmp_path, evaluation_instances=50, device="cuda:99").path == finished.path
    with pytest.raises(InputError, match="device 'cuda:99' is not available"):
        train_run(config, out=tmp_path, evaluation_instances=60, device="cuda:99")
