"""The bottleneck: all that a prediction knows of the examples is the code, and x meets only the generated network."""

from dataclasses import dataclass
from typing import Any, ClassVar

import pytest
import torch
from torch import nn

from recombine.foundation.errors import InputError
from recombine.inside.collect import collect_activations
from recombine.models.base import build_model
from recombine.models.hypernetwork import GeneratedNetwork, HypernetworkTransformerConfig, PredictedNetwork
from recombine.tasks.fuzzy_logic import FuzzyLogic
from recombine.tasks.modular.in_context import InContext

TASK = InContext(input_size=4, hidden_size=8, num_examples=7, num_queries=3)
SIZES: dict[str, Any] = {
    "num_layers": 2,
    "embedding_dim": 16,
    "kqv_dim": 8,
    "mlp_dim": 16,
    "num_heads": 2,
    "execution_dim": 12,
}


def build(execution="hypernetwork", attention="softmax"):
    return build_model(HypernetworkTransformerConfig(execution=execution, attention=attention, **SIZES), TASK, seed=0)


def test_generated_weights_by_hand():
    """The network of a code is the code's mixture of learned layers, weight by weight, as in the teacher."""
    network = GeneratedNetwork(2, 3, 5, 4)
    nn.init.normal_(network.bias)
    code, x = torch.randn(2, 2), torch.randn(2, 6, 3)
    for row in range(2):
        weight = code[row, 0] * network.weight[0] + code[row, 1] * network.weight[1]
        bias = code[row, 0] * network.bias[0] + code[row, 1] * network.bias[1]
        expected = torch.relu(x[row] @ weight.T + bias) @ network.readout.weight.T + network.readout.bias
        torch.testing.assert_close(network(code, x)[row], expected, atol=1e-5, rtol=1e-5)


def test_a_generated_network_can_be_the_teacher():
    """With the teacher's modules as weights and z as code, predictions are the targets: nothing more is needed."""
    batch = TASK.sample("ood", 0, batch_size=20)
    network = GeneratedNetwork(6, 4, 8, 4)
    with torch.no_grad():
        network.weight.copy_(TASK.teacher.weights[0].mT)
        network.readout.weight.copy_(TASK.teacher.readout.T)
    predictions = network(batch.info["strengths"], batch.inputs[:, 7:, :4])
    torch.testing.assert_close(predictions, batch.targets, atol=1e-5, rtol=1e-5)


def test_weights_predicted_by_an_mlp_do_not_add_up():
    """The network of a sum of codes is not the sum of the networks; with one code it is a network like any generated one."""
    network = PredictedNetwork(6, 8, 12, 4)
    code, x = torch.randn(3, 6), torch.randn(3, 5, 8)
    weight, bias = network.network.generate(network.hidden(code))
    expected = torch.relu(x @ weight.mT + bias[:, None]) @ network.network.readout.weight.T
    torch.testing.assert_close(network(code, x), expected + network.network.readout.bias, atol=1e-5, rtol=1e-5)
    first, second, both = (
        network.network.generate(network.hidden(row))[0] for row in (code[:1], code[1:2], code[:1] + code[1:2])
    )
    assert not torch.allclose(first + second, both, atol=1e-3)


@pytest.mark.parametrize("execution", ["hypernetwork", "mlp_hypernetwork", "mlp"])
@pytest.mark.parametrize("attention", ["softmax", "linear", "hyla"])
def test_everything_about_the_examples_passes_through_the_code(execution, attention):
    model = build(execution, attention)
    inputs = TASK.sample("test", 0, batch_size=4).inputs
    code = torch.randn(4, 6)
    with torch.no_grad():
        free = model(inputs)
        handle = model.code.register_forward_hook(lambda *_: code)
        fixed, other = model(inputs), model(torch.cat([torch.randn(4, 7, 8), inputs[:, 7:]], dim=1))
        handle.remove()
    assert free.shape == (4, 3, 4)
    assert not torch.allclose(free, fixed)
    assert torch.equal(fixed, other)


def test_queries_do_not_touch_the_code_nor_one_another():
    model = build()
    inputs = TASK.sample("test", 0, batch_size=4).inputs.requires_grad_()
    (gradient,) = torch.autograd.grad(model(inputs)[:, 1].sum(), inputs)
    seen = gradient.abs().sum(dim=(0, 2)) > 0
    assert seen.tolist() == [True] * 7 + [False, True, False]
    seen_codes = []
    model.code.register_forward_hook(lambda _, __, out: seen_codes.append(out))
    model(inputs)
    model(torch.cat([inputs[:, :7], torch.randn(4, 3, 8)], dim=1))
    assert torch.equal(*seen_codes)


def test_the_order_of_examples_does_not_matter():
    model = build()
    inputs = TASK.sample("test", 0, batch_size=4).inputs
    shuffled = inputs[:, [3, 1, 6, 0, 2, 5, 4, 7, 8, 9]]
    torch.testing.assert_close(model(inputs), model(shuffled), atol=1e-5, rtol=1e-5)


def test_probes_read_what_the_code_reads():
    model = build()
    seen = collect_activations(model, TASK.reading(), num_instances=20)
    assert list(seen.by_site) == ["residual.0", "residual.1", "code"]
    batch = TASK.sample("ood", 0, batch_size=1_000, rows=range(20))
    with torch.no_grad():
        x = model.embed(batch.inputs[:, :7])
        x, _ = model.blocks[0](x)
    torch.testing.assert_close(torch.from_numpy(seen.by_site["residual.0"][20:]), x.mean(dim=1), atol=1e-5, rtol=1e-5)
    assert seen.by_site["code"].shape == (40, 6)
    torch.testing.assert_close(torch.from_numpy(seen.labels[20:]), batch.info["strengths"])


def test_the_code_has_a_feature_for_each_module():
    task = InContext(num_modules=10, input_size=3, num_examples=7)
    assert HypernetworkTransformerConfig(**SIZES).build(task).code.out_features == 10
    assert HypernetworkTransformerConfig(**SIZES, code_dim=4).build(task).code.out_features == 4


def test_without_a_number_of_modules_the_code_needs_a_size():
    @dataclass(frozen=True, kw_only=True)
    class Isolated(FuzzyLogic):
        isolated_queries: ClassVar[bool] = True

    with pytest.raises(
        InputError, match="which does not define its number of modules: expected a task that does, or a code_dim"
    ):
        build_model(HypernetworkTransformerConfig(), Isolated(), seed=0)
    assert build_model(HypernetworkTransformerConfig(**SIZES, code_dim=4), Isolated(), seed=0).code.out_features == 4
