"""Devices: CUDA before the CPU, MPS with a warning, deterministic algorithms on request."""

import pytest
import torch

from recombine.foundation.errors import InputError
from recombine.training import run
from recombine.training.run import resolve_device, use_deterministic_algorithms


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
    monkeypatch.setattr(run, "num_processes", lambda: 4)
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
