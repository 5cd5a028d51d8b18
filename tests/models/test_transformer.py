"""The model: the published number of parameters, the same numbers for less work, codes on request."""

from typing import Any

import pytest
import torch

from recombine.attention.layer import ATTENTIONS
from recombine.foundation.errors import InputError
from recombine.models.base import build_model
from recombine.models.transformer import FEEDFORWARDS, Transformer, TransformerConfig, count_parameters
from recombine.tasks.fuzzy_logic import FuzzyLogic

TASK = FuzzyLogic()
SMALL: dict[str, Any] = {"embedding_dim": 16, "kqv_dim": 8, "mlp_dim": 32, "num_heads": 4}


def small_model(num_read: int = 1, **changes) -> Transformer:
    torch.manual_seed(0)
    config = TransformerConfig(**{**SMALL, **changes})
    return Transformer(config, input_dim=5, output_dim=3, sequence_length=12, num_read=num_read).double()


@pytest.mark.parametrize("attention", ["softmax", "linear", "hyla"])
def test_the_papers_number_of_parameters(attention):
    assert count_parameters(build_model(TransformerConfig(attention=attention), TASK, seed=0)) == 151_265


@pytest.mark.parametrize("attention", ATTENTIONS)
def test_reading_some_tokens_equals_reading_all_and_slicing(attention):
    some, every = small_model(3, attention=attention), small_model(12, attention=attention)
    x = torch.randn(2, 12, 5, dtype=torch.float64)
    predictions, expected = some(x), every(x)[:, -3:]
    torch.testing.assert_close(predictions, expected)
    predictions.square().sum().backward()
    expected.square().sum().backward()
    for one, other in zip(some.parameters(), every.parameters(), strict=True):
        torch.testing.assert_close(one.grad, other.grad)


@pytest.mark.parametrize("feedforward", FEEDFORWARDS)
@pytest.mark.parametrize("position", ["relative", "rotary", "none"])
def test_every_choice_trains(feedforward, position):
    model = small_model(feedforward=feedforward, position=position)
    model(torch.randn(2, 12, 5, dtype=torch.float64)).sum().backward()
    assert all(parameter.grad is not None for parameter in model.parameters())


def test_codes_on_request():
    model = small_model(2)
    x = torch.randn(3, 12, 5, dtype=torch.float64)
    predictions, codes = model(x, return_codes=True)
    assert torch.equal(predictions, model(x))
    assert [tuple(code.shape) for code in codes] == [(3, 4, 12, 12), (3, 4, 2, 12)]


def test_code_maps_change_the_codes_in_use():
    model = small_model()
    x = torch.randn(3, 12, 5, dtype=torch.float64)
    same = model(x, code_maps=[lambda codes: codes, None])
    assert torch.equal(same, model(x))
    zeroed, codes = model(x, code_maps=[None, torch.zeros_like], return_codes=True)
    assert not torch.allclose(zeroed, model(x))
    assert codes[1].abs().sum() == 0


@pytest.mark.parametrize("attention", ["softmax", "linear", "hyla"])
def test_causality_by_zero_gradients(attention):
    model = small_model(12, attention=attention, causal=True)
    x = torch.randn(1, 12, 5, dtype=torch.float64, requires_grad=True)
    for token in (0, 5, 11):
        (gradient,) = torch.autograd.grad(model(x)[0, token].sum(), x)
        assert gradient[0, token + 1 :].abs().sum() == 0
        assert gradient[0, : token + 1].abs().sum(dim=-1).gt(0).all()


def test_without_a_causal_mask_everything_is_seen():
    model = small_model(12)
    x = torch.randn(1, 12, 5, dtype=torch.float64, requires_grad=True)
    (gradient,) = torch.autograd.grad(model(x)[0, 0].sum(), x)
    assert gradient[0].abs().sum(dim=-1).gt(0).all()


def test_initial_parameters_depend_on_the_seed_alone():
    def first(seed: int):
        return next(build_model(TransformerConfig(**SMALL), TASK, seed=seed).parameters())

    state = torch.random.get_rng_state()
    one = first(1)
    assert torch.equal(state, torch.random.get_rng_state())
    torch.manual_seed(99)
    assert torch.equal(one, first(1))
    assert not torch.equal(one, first(2))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"attention": "hyper"}, "unknown attention 'hyper': expected one of softmax, linear, hyla"),
        ({"feedforward": "none"}, "unknown feedforward 'none'"),
        ({"position": "left"}, "unknown position 'left'"),
        ({"num_layers": 0}, "num_layers is 0"),
    ],
)
def test_bad_choices(changes, message, unchecked):
    with pytest.raises(InputError, match=message):
        TransformerConfig(**changes)


def test_heads_that_do_not_divide():
    with pytest.raises(InputError, match="kqv_dim 16 is not divisible by num_heads 5"):
        build_model(TransformerConfig(num_heads=5), TASK, seed=0)
