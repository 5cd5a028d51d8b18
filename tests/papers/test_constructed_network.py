"""Theory as code (docs/theory.md): attention as a hypernetwork, and how few neurons modules need."""

from itertools import pairwise

import pytest
import torch

from recombine.attention.view import hypernetwork_view
from recombine.foundation.errors import InputError
from recombine.tasks.modular.hyperteacher import Hyperteacher
from recombine.tasks.modular.teacher import ModularTeacher, apply_teacher, draw_teacher
from recombine_papers.scale.theory import build_modular_attention, build_modular_mlp, count_neurons


def draw(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).double()


def to_double(teacher: ModularTeacher) -> ModularTeacher:
    return ModularTeacher(
        tuple(each.double() for each in teacher.weights),
        tuple(each.double() for each in teacher.biases),
        teacher.readout.double(),
    )


def draw_questions(num_modules: int, x_dim: int, num_tasks: int = 200) -> tuple[torch.Tensor, torch.Tensor]:
    """Random strengths with three active modules, and inputs."""
    generator = torch.Generator().manual_seed(0)
    z = torch.rand(num_tasks, num_modules, generator=generator).double()
    inactive = torch.rand(num_tasks, num_modules, generator=generator).argsort(dim=1) >= 3
    return z.masked_fill(inactive, 0), torch.rand(num_tasks, 1, x_dim, generator=generator).double() * 2 - 1


# Point 1, that multi-head attention is a linear hypernetwork, is checked in test_hypernetwork_view.py.


@pytest.mark.parametrize(("num_modules", "x_dim", "y_dim"), [(5, 4, 4), (3, 6, 2), (6, 2, 5)])
def test_linear_attention_with_a_head_for_each_module_mixes_modules_exactly(num_modules, x_dim, y_dim):
    theta, z, x = draw(num_modules, x_dim, y_dim), draw(7, num_modules, seed=1), draw(7, x_dim, seed=2)
    layer = build_modular_attention(theta)
    task = torch.cat([z, torch.zeros(7, x_dim + 1)], dim=1)
    question = torch.cat([torch.zeros(7, num_modules), x, torch.ones(7, 1)], dim=1)
    tokens = torch.stack([question, task], dim=1)
    output, codes = layer(tokens[:, -1:], tokens)
    expected = torch.einsum("bm,mxy,bx->by", z, theta, x)
    torch.testing.assert_close(output[:, 0, :y_dim], expected, rtol=1e-12, atol=1e-12)
    # the latent code of the pair (task, input) is z itself, but for the scale of the scores
    torch.testing.assert_close(codes[:, :, 0, 0] * max(x_dim, y_dim) ** 0.5, z, rtol=1e-12, atol=1e-12)


def test_the_matrix_that_this_attention_generates_is_the_mixture():
    theta, z = draw(3, 4, 4), draw(1, 3, seed=1)
    tokens = torch.stack([torch.tensor([[0, 0, 0, 1, 1, 1, 1, 1]]), torch.cat([z, torch.zeros(1, 5)], dim=1)], dim=1)
    view = hypernetwork_view(build_modular_attention(theta), tokens.double())
    generated = view.value_matrices[0, 1, 0, :4, 3:-1]
    torch.testing.assert_close(generated, torch.einsum("m,mxy->yx", z[0], theta), rtol=1e-12, atol=1e-12)


def test_outputs_must_fit_into_a_token():
    with pytest.raises(InputError, match="9 outputs from tokens of 5 features"):
        build_modular_attention(draw(2, 2, 9))


def worst_error(num_knots: int, num_modules: int = 6) -> float:
    """The largest error of a hidden unit's argument, which the readout passes on."""
    teacher = to_double(draw_teacher("theory", num_modules=num_modules, widths=(4, 5, 3)))
    z, x = draw_questions(num_modules, 4)
    network = build_modular_mlp(teacher, num_knots=num_knots)
    questions = torch.cat([z[:, None], x], dim=-1)
    return (network(questions) - apply_teacher(teacher, z, x)).abs().max().item()


def test_the_error_falls_with_the_square_of_the_knots():
    errors = [worst_error(num_knots) for num_knots in (2, 4, 8, 16, 32)]
    slopes = [torch.tensor(a / b).log2().item() for a, b in pairwise(errors)]
    assert all(1.4 < slope < 2.6 for slope in slopes), slopes
    assert 1.85 < sum(slopes) / 4 < 2.15
    assert worst_error(128) < 1e-3 < errors[0]


def test_neurons_grow_linearly_with_modules():
    counts = [
        count_neurons(build_modular_mlp(draw_teacher("theory", num_modules=num_modules, widths=(4, 5, 3)), num_knots=8))
        for num_modules in (4, 8, 12, 16)
    ]
    assert len({b - a for a, b in pairwise(counts)}) == 1
    assert counts[0] == 8 * (3 * 4 * 4 + 4 + 2 * 4) + 4 + 5


def test_modules_that_do_not_act_add_no_error():
    """The errors of inactive modules cancel, so the error does not grow with the number of modules."""
    small, large = (
        to_double(draw_teacher("theory", num_modules=num_modules, widths=(4, 5, 3))) for num_modules in (6, 24)
    )
    z, x = draw_questions(6, 4)
    wide = torch.nn.functional.pad(z, (0, 18))
    few = build_modular_mlp(small, num_knots=8)(torch.cat([z[:, None], x], dim=-1))
    many = build_modular_mlp(large, num_knots=8)(torch.cat([wide[:, None], x], dim=-1))
    torch.testing.assert_close(few, many, rtol=1e-9, atol=1e-9)


def test_the_construction_solves_the_hyperteacher_on_every_split():
    task = Hyperteacher(num_modules=6, num_active=2, x_dim=4, teacher_dim=4, y_dim=4)
    network = build_modular_mlp(to_double(task.teacher), num_knots=32)
    network.dense_layers[0].weight.data[:, :6] /= task.num_active**0.5
    for split in ("test", "ood", "unknown"):
        batch = task.sample(split, 0)
        score = task.metrics(network(batch.inputs.double()), batch)["r2_pooled"]
        assert score.numerator.sum() / score.denominator.sum() > 0.999


@pytest.mark.parametrize(
    ("num_layers", "num_knots", "message"), [(1, 0, "num_knots is 0"), (2, 9, "has 2 hidden layers: expected 1")]
)
def test_what_cannot_be_built(num_layers, num_knots, message):
    teacher = draw_teacher("t", num_modules=2, widths=(2, *[2] * num_layers, 1))
    with pytest.raises(InputError, match=message):
        build_modular_mlp(teacher, num_knots=num_knots)
