"""What outputs can and cannot identify, as constructions: theory points 3 and 4 of the paper on sequence models."""

import pytest
import torch

from recombine.foundation.errors import InputError
from recombine.models.base import build_model
from recombine.models.sequence import (
    CausalAttentionConfig,
    DeepSetConfig,
    RecurrentConfig,
    SequenceModel,
    StateSpaceConfig,
)
from recombine.tasks.sequences.teacher import SequenceTeacher
from recombine_papers.length.identification import identify
from recombine_papers.length.theory import change_basis, forget_beyond

STUDENTS = {
    "deep_set": DeepSetConfig(),
    "attention": CausalAttentionConfig(),
    "ssm": StateSpaceConfig(),
    "rnn": RecurrentConfig(),
}


def copy_teacher(name: str, seed: int = 0) -> tuple[SequenceTeacher, SequenceModel]:
    task = SequenceTeacher(teacher=name, seed=seed)
    model = build_model(STUDENTS[name], task, seed=0)
    assert isinstance(model, SequenceModel)
    model.load_state_dict(task.weights)
    return task, model


def random_basis(kind: str, size: int = 20, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    if kind == "permutation":
        return torch.eye(size, dtype=torch.float64)[torch.randperm(size, generator=generator)]
    matrix = torch.randn(size, size, generator=generator, dtype=torch.float64)
    return torch.linalg.qr(matrix)[0] if kind == "rotation" else matrix + 5 * torch.eye(size, dtype=torch.float64)


def largest_change(name: str, kind: str) -> tuple[float, float]:
    """Of the outputs over 100 tokens, and of the hidden states from what the basis would make of them."""
    task, model = copy_teacher(name)
    model, basis = model.double(), random_basis(kind)
    x = task.sample_length("ood", 0, 100, batch_size=20).inputs.double()
    changed = change_basis(model, basis)
    hidden = changed.represent(x) - model.represent(x) @ basis.T
    return (changed(x) - model(x)).abs().max().item(), hidden.abs().max().item()


@pytest.mark.parametrize("kind", ["general", "rotation", "permutation"])
@pytest.mark.parametrize("name", ["deep_set", "attention", "ssm"])
def test_any_basis_of_linear_hidden_states_gives_the_same_outputs_at_every_length(name, kind):
    outputs, hidden = largest_change(name, kind)
    assert outputs < 1e-9
    assert hidden < 1e-9


def test_a_recurrent_network_allows_permutations_only():
    assert max(largest_change("rnn", "permutation")) < 1e-9
    assert largest_change("rnn", "rotation")[0] > 0.1
    assert largest_change("rnn", "general")[0] > 0.1


def test_only_permutations_commute_with_the_sigmoid():
    """σ(A z) = A σ(z) for all z forces A to be a permutation: its defect is 0 for these and for no other matrix tried."""
    z = torch.randn(500, 6, generator=torch.Generator().manual_seed(0), dtype=torch.float64) * 3

    def defect(matrix: torch.Tensor) -> float:
        return (torch.sigmoid(z @ matrix.T) - torch.sigmoid(z) @ matrix.T).abs().max().item()

    assert defect(random_basis("permutation", 6)) == 0
    scaled = torch.diag(torch.tensor([1, 1, 1, 1, 1, 1.1], dtype=torch.float64))
    mirrored = torch.diag(torch.tensor([1, 1, 1, 1, 1, -1], dtype=torch.float64))
    others = [random_basis("rotation", 6, seed) for seed in range(50)] + [scaled, mirrored]
    assert min(map(defect, others)) > 0.01


@pytest.mark.parametrize("seed", range(3))
def test_higher_capacity_can_be_right_up_to_ten_tokens_and_wrong_at_a_hundred(seed):
    task, model = copy_teacher("deep_set", seed)
    student = forget_beyond(model, 10)
    short = task.sample("test", 0, batch_size=1_000)
    assert task.loss(student(short.inputs), short) == task.loss(model(short.inputs), short)
    extreme = torch.cat([torch.zeros(50, 10, 20), torch.ones(50, 10, 20), torch.rand(50, 10, 20).round()])
    assert torch.equal(student(extreme), model(extreme))
    long = task.sample_length("ood", 0, 100, batch_size=500)
    error, constant = (
        (prediction[:, -1] - long.targets[:, -1]).square().mean()
        for prediction in (student(long.inputs), task.chance(long))
    )
    assert error > 0.02
    assert error > 10 * constant
    # what fails is the readout: the hidden states are still the teacher's
    assert min(identify(student, task, num_sequences=100).r2["refit"]) > 0.9999


def test_what_cannot_be_constructed(unchecked):
    _, model = copy_teacher("rnn")
    with pytest.raises(InputError, match=r"the basis has shape \(3, 3\): expected \(20, 20\)"):
        change_basis(model, torch.eye(3))
    with pytest.raises(InputError, match="the model is a RecurrentNetwork: expected a deep set"):
        forget_beyond(model, 10)
    with pytest.raises(InputError, match="length is 0"):
        forget_beyond(copy_teacher("deep_set")[1], 0)
    diagonal = build_model(StateSpaceConfig(recurrence="diagonal"), SequenceTeacher(teacher="ssm"), seed=0)
    with pytest.raises(InputError, match="StateSpaceModel has no recurrent matrix to change"):
        change_basis(diagonal, torch.eye(20))
