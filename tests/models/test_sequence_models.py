"""Causal sequence models: the teacher's functions, causality, padding, the scan, and what is refused."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from recombine.foundation.errors import InputError
from recombine.models.base import build_model
from recombine.models.sequence import (
    CausalAttentionConfig,
    DeepSetConfig,
    RecurrentConfig,
    SequenceModel,
    StateSpaceConfig,
    scan_dense,
    scan_diagonal,
)
from recombine.tasks.sequences.teacher import SequenceTeacher

TASK = SequenceTeacher(token_dim=3, teacher_dim=4, target_dim=2, longest=14)
CONFIGS = {
    "deep_set": DeepSetConfig(hidden_dim=4),
    "ssm": StateSpaceConfig(hidden_dim=4),
    "diagonal ssm": StateSpaceConfig(hidden_dim=4, recurrence="diagonal"),
    "rnn": RecurrentConfig(hidden_dim=4),
    **{kind: CausalAttentionConfig(hidden_dim=4, attention=kind) for kind in ("sigmoid", "softmax", "linear", "relu")},
    "positions": CausalAttentionConfig(hidden_dim=4, position="learned"),
    "deep_set, mlp": DeepSetConfig(hidden_dim=4, readout="mlp"),
}
ALL = pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)


def build(config, task=TASK, seed=0) -> SequenceModel:
    model = build_model(config, task, seed=seed)
    assert isinstance(model, SequenceModel)
    return model


@pytest.mark.parametrize(
    ("config", "teacher"),
    [
        (DeepSetConfig(hidden_dim=4, readout="mlp"), {"teacher": "deep_set", "teacher_readout": "mlp"}),
        (StateSpaceConfig(hidden_dim=4), {"teacher": "ssm"}),
        (RecurrentConfig(hidden_dim=4, readout="mlp"), {"teacher": "rnn", "teacher_readout": "mlp"}),
        *(
            (CausalAttentionConfig(hidden_dim=4, attention=kind), {"teacher": "attention", "teacher_attention": kind})
            for kind in ("sigmoid", "softmax", "linear", "relu")
        ),
    ],
)
def test_a_student_with_the_teachers_weights_is_the_teacher(config, teacher):
    """The fast models against the definitions of the task, at every length."""
    task = SequenceTeacher(token_dim=3, teacher_dim=4, target_dim=2, longest=60, **teacher)
    model = build(config, task)
    model.load_state_dict(task.weights)
    for split in ("test", "ood"):
        batch = task.sample(split, 0, batch_size=30)
        torch.testing.assert_close(model.represent(batch.inputs), task.label(batch.inputs)[0], atol=2e-5, rtol=1e-5)
        assert task.loss(model(batch.inputs), batch) < 1e-10


@ALL
def test_no_output_depends_on_a_later_token(config):
    model = build(config)
    x = torch.rand(2, 9, 3, requires_grad=True)
    outputs = model(x)
    for t in range(9):
        (gradient,) = torch.autograd.grad(outputs[:, t].sum(), x, retain_graph=True)
        assert (gradient[:, t + 1 :] == 0).all()
        assert (gradient[:, t] != 0).any()


@ALL
def test_a_batch_of_mixed_lengths_equals_one_by_one(config):
    model = build(config)
    batch = TASK.sample("ood", 0, batch_size=8)
    together = model(batch.inputs)
    for row in range(8):
        length = batch.info["length"][row].item()
        alone = model(batch.inputs[row : row + 1, :length])[0]
        torch.testing.assert_close(together[row, :length], alone, atol=1e-6, rtol=1e-5)


def loop(matrix: torch.Tensor, driven: torch.Tensor) -> torch.Tensor:
    h, states = torch.zeros_like(driven[:, 0]), []
    for t in range(driven.shape[1]):
        h = h @ matrix.T + driven[:, t]
        states.append(h)
    return torch.stack(states, dim=1)


@settings(max_examples=40, deadline=None)
@given(length=st.integers(1, 70), size=st.integers(1, 6), seed=st.integers(0, 1000))
def test_the_scan_equals_the_loop_in_values_and_gradients(length, size, seed):
    generator = torch.Generator().manual_seed(seed)
    matrix = torch.linalg.qr(torch.randn(size, size, generator=generator, dtype=torch.float64))[0].requires_grad_()
    driven = torch.randn(2, length, size, generator=generator, dtype=torch.float64, requires_grad=True)
    weight = torch.randn(2, length, size, generator=generator, dtype=torch.float64)
    fast, plain = scan_dense(matrix, driven), loop(matrix, driven)
    torch.testing.assert_close(fast, plain)
    gradients = [
        torch.autograd.grad((each * weight).sum(), (matrix, driven), materialize_grads=True) for each in (fast, plain)
    ]
    for ours, theirs in zip(*gradients, strict=True):
        torch.testing.assert_close(ours, theirs)


def test_the_diagonal_scan_equals_the_loop():
    generator = torch.Generator().manual_seed(0)
    eigenvalues = torch.polar(
        torch.rand(5, generator=generator).double(), 3 * torch.rand(5, generator=generator).double()
    )
    driven = torch.randn(3, 21, 5, generator=generator, dtype=torch.complex128)
    torch.testing.assert_close(scan_diagonal(eigenvalues, driven), loop(torch.diag(eigenvalues), driven))


def test_pairs_of_eigenvalues_realise_the_teacher():
    """Any rotation is diagonal over the complex numbers: a diagonal student equals the teacher up to a linear map."""
    task = SequenceTeacher(teacher="ssm", token_dim=3, teacher_dim=4, target_dim=2, longest=30)
    model = build(StateSpaceConfig(hidden_dim=4, recurrence="diagonal"), task)
    values, vectors = torch.linalg.eig(task.weights["recurrence"].double())
    chosen = values.imag > 0
    assert chosen.sum() == 2
    basis = torch.linalg.inv(vectors)[chosen]  # real state -> one mode of each pair
    to_modes = torch.view_as_real(basis.mT).permute(1, 2, 0).flatten(0, 1)  # (re, im in turn, state)
    with torch.no_grad():
        model.log_radius.copy_(values[chosen].abs().log())
        model.angle.copy_(values[chosen].angle())
        model.input.copy_(to_modes @ task.weights["input"].double())
        model.readout[0].weight.copy_(task.weights["readout.0.weight"].double() @ torch.linalg.inv(to_modes))
        model.readout[0].bias.zero_()
    batch = task.sample("ood", 0, batch_size=10)
    assert task.loss(model(batch.inputs), batch) < 1e-9


@ALL
def test_chain_of_thought_returns_the_hidden_states(config):
    thoughtful = build(config, SequenceTeacher(token_dim=3, teacher_dim=4, target_dim=2, chain_of_thought=1.0))
    plain = build(config)
    x = torch.rand(2, 5, 3)
    assert torch.equal(thoughtful(x), torch.cat([plain(x), plain.represent(x)], dim=-1))


def test_hidden_sizes_must_agree_for_chain_of_thought():
    task = SequenceTeacher(chain_of_thought=1.0)
    with pytest.raises(InputError, match="which supervises 20 hidden states: expected a task that supervises 7"):
        build(DeepSetConfig(hidden_dim=7), task)
    assert build(DeepSetConfig(hidden_dim=7), SequenceTeacher())(torch.rand(1, 3, 20)).shape == (1, 3, 20)


@ALL
@pytest.mark.parametrize("shape", [(2, 0, 3), (2, 5, 4), (5, 3)])
def test_inputs_of_another_shape(config, shape, unchecked):
    with pytest.raises(InputError, match=r"expected \(batch, tokens, 3\) with at least one token"):
        build(config)(torch.zeros(shape))


def test_more_tokens_than_positions():
    model = build(CONFIGS["positions"])
    assert model(torch.rand(1, 14, 3)).shape == (1, 14, 2)
    with pytest.raises(InputError, match="inputs have 15 tokens: expected at most 14 positions"):
        model(torch.rand(1, 15, 3))
