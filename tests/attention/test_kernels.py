"""The dispatcher: the fast path where it may, the definition where it must, the same numbers either way."""

import os
import subprocess
import sys
from typing import Any

import pytest
import torch

from recombine.attention import chunked, triton
from recombine.attention import definition as reference
from recombine.attention.cpu import attention as cpu
from recombine.attention.dispatch import attend, use_kernel
from recombine.attention.dropout import Dropout
from recombine.foundation.errors import InputError
from recombine.models.registry import build_model
from recombine.models.transformer import TransformerConfig
from recombine.tasks.fuzzy_logic import FuzzyLogic
from recombine.training.config import TrainingConfig
from recombine.training.loop import Trainer

HYLA: dict[str, Any] = {"normalisation": "rms_head", "value_network": "hyper_relu"}


def draw(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape)))


Q, K, V = draw(2, 3, 4, 2), draw(2, 5, 4, 2), draw(2, 5, 4, 2) + 0.1


@pytest.fixture
def calls(monkeypatch):
    """Which path was taken."""
    taken = []
    for name, module in (("cpu", cpu), ("reference", reference), ("chunked", chunked)):
        function = module.attend

        def record(*arguments, _name=name, _function=function, **options):
            taken.append(_name)
            return _function(*arguments, **options)

        monkeypatch.setattr(module, "attend", record)
    return taken


needs_compiler = pytest.mark.skipif(not cpu.is_available(), reason=f"no fused kernel: {cpu.why_unavailable()}")


@needs_compiler
@pytest.mark.parametrize(
    ("options", "path"),
    [
        ({"return_codes": False}, "cpu"),
        ({"return_codes": False, "causal": True}, "cpu"),
        ({"return_codes": False, "mask": torch.ones(2, 1, 1, 5, dtype=torch.bool)}, "cpu"),
        ({"return_codes": False, "bias": torch.ones(4, 3, 5)}, "cpu"),
        ({}, "reference"),
        ({"return_codes": False, "code_map": torch.relu}, "reference"),
        ({"return_codes": False, "mask": torch.ones(3, 5, dtype=torch.bool), "causal": True}, "cpu"),
        ({"return_codes": False, "mask": torch.ones(2, 4, 3, 5, dtype=torch.bool)}, "cpu"),
        ({"return_codes": False, "dropout": Dropout(0.5, "pairs", torch.tensor(1))}, "cpu"),
        ({"return_codes": False, "dropout": Dropout(0.5, "elements", torch.tensor(1))}, "cpu"),
        ({"return_codes": False, "kernel": "reference"}, "reference"),
        ({"return_codes": True, "kernel": "cpu"}, "reference"),
        ({"return_codes": True, "kernel": "chunked"}, "reference"),
    ],
)
def test_the_path_taken(calls, options, path):
    out, codes = attend(Q, K, V, **HYLA, **options)
    assert calls == [path]
    assert (codes is None) == (not options.get("return_codes", True))
    expected, _ = attend(Q, K, V, **HYLA, **{**options, "return_codes": True})
    torch.testing.assert_close(out, expected)


def test_chunks_are_taken_when_asked_for(calls):
    mask = torch.ones(3, 5, dtype=torch.bool)
    out, codes = attend(Q, K, V, **HYLA, mask=mask, return_codes=False, kernel="chunked")
    assert calls[0] == "chunked"
    assert codes is None
    torch.testing.assert_close(out, reference.attend(Q, K, V, **HYLA)[0])


def test_triton_on_a_machine_without_it_is_refused_or_left_aside():
    if triton.is_available():
        pytest.skip("Triton works here")
    if triton.supports(Q, K, V, **HYLA):
        with pytest.raises(InputError, match="not available"):
            attend(Q, K, V, **HYLA, return_codes=False, kernel="triton")
    else:
        out, _ = attend(Q, K, V, **HYLA, return_codes=False, kernel="triton")
        torch.testing.assert_close(out, reference.attend(Q, K, V, **HYLA)[0])


def test_float64_and_hyper_deep_take_the_definition(calls):
    attend(Q.double(), K.double(), V.double(), **HYLA, return_codes=False)
    deep: dict[str, Any] = {"normalisation": "rms_head", "value_network": "hyper_deep", "deep_weight": draw(4, 2, 2)}
    attend(Q, K, V, **deep, return_codes=False)
    assert calls == ["reference", "reference"]


def test_use_kernel_holds_inside_its_block(calls):
    with use_kernel("reference"):
        attend(Q, K, V, **HYLA, return_codes=False)
    assert calls == ["reference"]


def test_an_unknown_kernel(unchecked):
    with pytest.raises(
        InputError, match="unknown kernel 'cuda': expected one of auto, reference, cpu, triton, chunked"
    ):
        attend(Q, K, V, **HYLA, kernel="cuda")


PROGRAM = """
import logging, torch
logging.basicConfig(level=logging.WARNING)
from recombine.kernels import attend
x = torch.randn(1, 3, 2, 2)
for _ in range(2):
    attend(x, x, x, normalisation="none", value_network="linear", return_codes=False)
"""


def test_without_a_compiler_the_definition_is_used_and_that_is_said_once(tmp_path):
    environment = {**os.environ, "PATH": "", "RECOMBINE_CACHE": str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, env=environment, check=True)
    assert done.stderr.count("attention takes the reference path") == 1
    assert "compiler" in done.stderr


@pytest.mark.parametrize("name", ["reference", "nonsense"])
def test_the_environment_variable(name):
    environment = {**os.environ, "RECOMBINE_KERNEL": name}
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, env=environment)
    if name == "nonsense":
        assert "unknown kernel 'nonsense': expected one of auto, reference, cpu, triton, chunked" in done.stderr
    else:
        assert (done.returncode, done.stderr) == (0, "")


@needs_compiler
@pytest.mark.parametrize("attention", ["softmax", "linear", "hyla"])
def test_training_is_the_same_on_both_paths(attention):
    """Losses of 100 steps agree to rounding, which grows with the steps."""
    task = FuzzyLogic(num_examples=8)
    config = TransformerConfig(attention=attention, embedding_dim=16, kqv_dim=8, mlp_dim=16, num_heads=4)
    losses = []
    for kernel in ("cpu", "reference"):
        trainer = Trainer(build_model(config, task, seed=0), task, TrainingConfig(steps=100, batch_size=32), "cpu")
        with use_kernel(kernel):
            losses.append(torch.stack([trainer.advance() for _ in range(100)]))
    torch.testing.assert_close(losses[0], losses[1], rtol=1e-3, atol=1e-4)
