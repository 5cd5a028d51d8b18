"""Theory as code (docs/theory.md): students and networks that are constructed, not trained, and counts of puzzles.

The numbers of each theory are computed and compared with the stored ones in `test_calculation.py`. Here is what they do not show.
"""

import itertools

import pytest
import torch

from recombine.foundation.errors import InputError
from recombine.models.base import build_model
from recombine.models.sequence import SequenceModel, StateSpaceConfig
from recombine.tasks.modular.teacher import ModularTeacher, apply_teacher, draw_teacher
from recombine.tasks.sequences.teacher import SequenceTeacher
from recombine.training.config import default_run
from recombine_papers.hypernetwork.counts import (
    count_multisets,
    count_puzzles,
    count_tasks,
    count_tasks_as_printed,
    count_tasks_up_to_renaming,
)
from recombine_papers.length.theory import change_basis, forget_beyond
from recombine_papers.scale.theory import build_modular_attention, build_modular_mlp, count_neurons


def copy_teacher(name: str, seed: int = 0) -> tuple[SequenceTeacher, SequenceModel]:
    task = SequenceTeacher(teacher=name, seed=seed)
    model = build_model(default_run("sequence_teacher", "paper", name).model, task, seed=0)
    assert isinstance(model, SequenceModel)
    model.load_state_dict(task.weights)
    return task, model


def random_basis(kind: str, size: int = 20, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    if kind == "permutation":
        return torch.eye(size, dtype=torch.float64)[torch.randperm(size, generator=generator)]
    matrix = torch.randn(size, size, generator=generator, dtype=torch.float64)
    return torch.linalg.qr(matrix)[0] if kind == "rotation" else matrix + 5 * torch.eye(size, dtype=torch.float64)


@pytest.mark.parametrize("name", ["deep_set", "attention", "ssm", "rnn"])
@pytest.mark.parametrize("kind", ["general", "permutation"])
def test_which_bases_of_hidden_states_give_the_same_outputs_at_every_length(name, kind):
    """All of them for linear hidden states; permutations only for those of a recurrent network."""
    task, model = copy_teacher(name)
    model, basis = model.double(), random_basis(kind)
    x = task.sample_length("ood", 0, 100, batch_size=20).inputs.double()
    changed = change_basis(model, basis)
    if (name, kind) == ("rnn", "general"):
        assert (changed(x) - model(x)).abs().max() > 0.1
        return
    torch.testing.assert_close(changed(x), model(x), rtol=0, atol=1e-9)
    torch.testing.assert_close(changed.represent(x), model.represent(x) @ basis.T, rtol=0, atol=1e-9)


def test_only_permutations_commute_with_the_sigmoid():
    """σ(A z) = A σ(z) for all z forces A to be a permutation: its defect is 0 for these and for no other matrix tried."""
    z = torch.randn(500, 6, generator=torch.Generator().manual_seed(0), dtype=torch.float64) * 3

    def defect(matrix: torch.Tensor) -> float:
        return (torch.sigmoid(z @ matrix.T) - torch.sigmoid(z) @ matrix.T).abs().max().item()

    assert defect(random_basis("permutation", 6)) == 0
    diagonals = [torch.diag(torch.tensor([1, 1, 1, 1, 1, last], dtype=torch.float64)) for last in (1.1, -1.0)]
    others = [random_basis("rotation", 6, seed) for seed in range(50)] + diagonals
    assert min(map(defect, others)) > 0.01


def test_higher_capacity_is_right_on_any_sequence_up_to_ten_tokens():
    _, model = copy_teacher("deep_set")
    student = forget_beyond(model, 10)
    extreme = torch.cat([torch.zeros(50, 11, 20), torch.ones(50, 11, 20), torch.rand(50, 11, 20).round()])
    assert torch.equal(student(extreme[:, :10]), model(extreme[:, :10]))
    assert not torch.equal(student(extreme), model(extreme))


def draw(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).double()


@pytest.mark.parametrize(("num_modules", "x_dim", "y_dim"), [(5, 4, 4), (3, 6, 2), (6, 2, 5)])
def test_linear_attention_with_a_head_for_each_module_mixes_modules_exactly(num_modules, x_dim, y_dim):
    theta, z, x = draw(num_modules, x_dim, y_dim), draw(7, num_modules, seed=1), draw(7, x_dim, seed=2)
    task = torch.cat([z, torch.zeros(7, x_dim + 1)], dim=1)
    question = torch.cat([torch.zeros(7, num_modules), x, torch.ones(7, 1)], dim=1)
    tokens = torch.stack([question, task], dim=1)
    output, codes = build_modular_attention(theta)(tokens[:, -1:], tokens)
    expected = torch.einsum("bm,mxy,bx->by", z, theta, x)
    torch.testing.assert_close(output[:, 0, :y_dim], expected, rtol=1e-12, atol=1e-12)
    # the latent code of the pair (task, input) is z itself, but for the scale of the scores
    torch.testing.assert_close(codes[:, :, 0, 0] * max(x_dim, y_dim) ** 0.5, z, rtol=1e-12, atol=1e-12)


def make_teacher(num_modules: int, num_layers: int = 1):
    return draw_teacher("theory", num_modules=num_modules, widths=(4, *[5] * num_layers, 3))


def test_neurons_grow_linearly_with_modules():
    counts = [count_neurons(build_modular_mlp(make_teacher(number), num_knots=8)) for number in (4, 8, 12, 16)]
    assert len({b - a for a, b in itertools.pairwise(counts)}) == 1
    assert counts[0] == 8 * (3 * 4 * 4 + 4 + 2 * 4) + 4 + 5


def test_squares_are_exact_at_their_knots():
    """Where strengths and inputs are multiples of 1/8, so are the arguments of all squares."""
    single = make_teacher(6)
    weights, biases = (tuple(part.double() for part in parts) for parts in (single.weights, single.biases))
    teacher = ModularTeacher(weights, biases, single.readout.double())
    generator = torch.Generator().manual_seed(0)
    z = torch.randint(0, 9, (200, 6), generator=generator).double() / 8
    x = torch.randint(-8, 9, (200, 1, 4), generator=generator).double() / 8
    network = build_modular_mlp(teacher, num_knots=8)
    found = network(torch.cat([z[:, None], x], dim=-1))
    torch.testing.assert_close(found, apply_teacher(teacher, z, x), rtol=0, atol=1e-9)


def test_what_cannot_be_constructed(unchecked):
    deep_set, rnn = copy_teacher("deep_set")[1], copy_teacher("rnn")[1]
    diagonal = build_model(StateSpaceConfig(recurrence="diagonal"), SequenceTeacher(teacher="ssm"), seed=0)
    for construct, message in (
        (lambda: change_basis(rnn, torch.eye(3)), r"the basis has shape \(3, 3\): expected \(20, 20\)"),
        (lambda: change_basis(diagonal, torch.eye(20)), "StateSpaceModel has no recurrent matrix to change"),
        (lambda: forget_beyond(rnn, 10), "the model is a RecurrentNetwork: expected a deep set"),
        (lambda: forget_beyond(deep_set, 0), "length is 0"),
        (lambda: build_modular_attention(draw(2, 2, 9)), "9 outputs from tokens of 5 features"),
        (lambda: build_modular_mlp(make_teacher(2), num_knots=0), "num_knots is 0"),
        (lambda: build_modular_mlp(make_teacher(2, 2), num_knots=9), "has 2 hidden layers: expected 1"),
    ):
        with pytest.raises(InputError, match=message):
            construct()


@pytest.mark.parametrize(("num_features", "num_rules"), [(1, 8), (2, 4), (3, 2)])
def test_tasks_one_by_one(num_features, num_rules):
    """A task is a set of chains; which latent feature is called the first does not matter."""
    orders = list(itertools.permutations(range(num_features)))
    tasks = {
        tuple(sorted(zip(rules, *columns, strict=True)))  # for each latent feature: its rule, its positions
        for rules in itertools.product(range(num_rules), repeat=num_features)
        for columns in itertools.product(orders, repeat=3)
    }
    assert len(tasks) == count_tasks(num_features, num_rules)
    orbits = {
        min(tuple(sorted((rule, *(new[place] for place in places)) for rule, *places in task)) for new in orders)
        for task in tasks
    }
    assert len(orbits) == count_tasks_up_to_renaming(num_features, num_rules)


def test_numbers_of_the_paper():
    assert count_multisets(4) == 330
    assert count_tasks_as_printed(4) == 330 * (24**2 - 4) == 188_760
    assert count_tasks(4) == 8**4 * 24**2 == 2_359_296
    assert count_tasks_up_to_renaming(4) == 101_088
    assert count_tasks_as_printed(1) == 0 < count_tasks(1) == 8
    assert count_puzzles(1, 8) == 5 * 512 + 2 * 262_144 + 56 * 216
