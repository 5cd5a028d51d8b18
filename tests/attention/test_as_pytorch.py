"""What people do with PyTorch's own attention works with ours: errors, exports, transforms, parametrisations, sharding."""

import copy
import io
import subprocess
import sys
from typing import Any

import pytest
import torch
from torch import nn
from torch.autograd import forward_ad
from torch.nn.utils import parametrizations, prune

from recombine.attention.dispatch import use_kernel
from recombine.attention.hyla import HypernetworkAttention, convert
from recombine.attention.layer import ATTENTIONS

E, H = 8, 4
pytestmark = pytest.mark.usefixtures("unchecked")


class Layer(nn.Module):
    """One attention layer, called with one tensor."""

    def __init__(self, attention="hyla", **options):
        super().__init__()
        torch.manual_seed(0)
        self.attention = HypernetworkAttention(E, H, attention=attention, batch_first=True, **options)

    def forward(self, x):
        return self.attention(x, x, x, need_weights=False)[0]


def build_encoder(attention="hyla"):
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(E, H, 12, dropout=0.0, batch_first=True)
    return convert(nn.TransformerEncoder(layer, 1), attention).eval()


def draw(*shape, seed=0):
    return torch.randn(*shape, E, generator=torch.Generator().manual_seed(seed))


def close(actual, expected):
    torch.testing.assert_close(actual, expected, atol=1e-5, rtol=1e-4)


WRONG: dict[str, tuple[list[tuple[int, ...]], dict[str, Any]]] = {
    "mask missing": ([(2, 3, E)] * 3, {"is_causal": True}),
    "mask of another shape": ([(2, 3, E)] * 3, {"attn_mask": torch.zeros(4, 3)}),
    "padding of another shape": ([(2, 3, E)] * 3, {"key_padding_mask": torch.zeros(2, 4)}),
    "mask of whole numbers": ([(2, 3, E)] * 3, {"attn_mask": torch.zeros(3, 3).long()}),
    "width": ([(2, 3, 7)] * 3, {}),
    "dimensions": ([(1, 2, 3, E)] * 3, {}),
}


@pytest.mark.parametrize("case", WRONG)
def test_wrong_calls_raise_what_torch_raises(case):
    shapes, options = WRONG[case]
    inputs = [torch.zeros(shape) for shape in shapes]
    with pytest.raises((RuntimeError, AssertionError)) as theirs:
        nn.MultiheadAttention(E, H, batch_first=True)(*inputs, **options)
    with pytest.raises(theirs.type, match="expected"):
        HypernetworkAttention(E, H, batch_first=True)(*inputs, **options)


@pytest.mark.parametrize("mask_type", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize("weight_type", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize("attention", ["softmax", "linear", "hyla"])
def test_a_bias_may_have_another_precision_than_the_weights(attention, weight_type, mask_type):
    layer, x = Layer(attention).attention.to(weight_type), draw(2, 5).to(weight_type)
    bias = draw(5)[:, :5].to(mask_type).requires_grad_()
    precise, y = copy.deepcopy(layer).double(), x.double()
    expected = precise(y, y, y, attn_mask=bias.detach().double())[0]
    for need_weights in (True, False):
        found = layer(x, x, x, attn_mask=bias, need_weights=need_weights)[0]
        assert found.dtype == weight_type
        tolerance = {torch.float16: 0.01, torch.bfloat16: 0.1, torch.float32: 1e-5, torch.float64: 1e-12}[weight_type]
        torch.testing.assert_close(found.double(), expected, atol=tolerance, rtol=0)
        (grad,) = torch.autograd.grad(found.sum(), bias)
        assert grad.dtype == mask_type


@pytest.mark.parametrize("attention", ATTENTIONS)
def test_second_derivatives_are_those_of_the_definition(attention):
    def differentiate():
        layer, x = Layer(attention), draw(2, 4).requires_grad_()
        (grad,) = torch.autograd.grad(layer(x).square().sum(), x, create_graph=True)
        return torch.autograd.grad(grad.square().sum(), [x, *layer.parameters()], allow_unused=True)

    with use_kernel("reference"):
        expected = differentiate()
    torch.testing.assert_close(differentiate(), expected, atol=1e-3, rtol=1e-3)


@pytest.mark.parametrize("model", [Layer, build_encoder])
@pytest.mark.parametrize("attention", ["softmax", "linear", "hyla"])
@pytest.mark.parametrize("strict", [False, True])
def test_an_exported_model_takes_other_sizes(model, attention, strict):
    module, buffer = model(attention).eval(), io.BytesIO()
    sizes = {0: torch.export.Dim.DYNAMIC, 1: torch.export.Dim.DYNAMIC}
    torch.export.save(torch.export.export(module, (draw(2, 6),), dynamic_shapes=(sizes,), strict=strict), buffer)
    buffer.seek(0)
    loaded = torch.export.load(buffer).module()
    for shape in ((2, 6), (3, 9)):
        close(loaded(draw(*shape)), module(draw(*shape)))


@pytest.mark.parametrize("attention", ["softmax", "linear", "hyla"])
def test_compiled_as_one_graph_with_any_sizes(attention):
    torch._dynamo.reset()
    module = Layer(attention)
    compiled = torch.compile(module, fullgraph=True, dynamic=True, backend="aot_eager")
    for shape in ((2, 6), (3, 9)):
        x, y = draw(*shape).requires_grad_(), draw(*shape).requires_grad_()
        close(compiled(x), module(y))
        grads = [torch.autograd.grad(m(z).square().sum(), z)[0] for m, z in ((compiled, x), (module, y))]
        torch.testing.assert_close(*grads, atol=1e-4, rtol=1e-3)


@pytest.mark.parametrize("attention", ATTENTIONS)
def test_transforms_of_torch_func(attention):
    layer, x, tangent = Layer(attention), draw(3, 2, 4), draw(3, 2, 4, seed=1)
    close(torch.func.vmap(layer)(x), torch.stack([layer(row) for row in x]))
    x, tangent = x[0].double(), tangent[0].double()
    layer = layer.double()
    step = 1e-6
    slope = (layer(x + step * tangent) - layer(x - step * tangent)) / (2 * step)
    close(torch.func.jvp(layer, (x,), (tangent,))[1], slope)
    parameters = {name: 2 * parameter.detach() for name, parameter in layer.named_parameters()}
    doubled = copy.deepcopy(layer)
    doubled.load_state_dict(parameters)
    close(torch.func.functional_call(layer, parameters, (x,)), doubled(x))

    def lose(parameters, row):
        return torch.func.functional_call(layer, parameters, (row[None],)).square().sum()

    grads = torch.func.vmap(torch.func.grad(lose), (None, 0))(parameters, x)
    doubled(x).square().sum().backward()
    for name, parameter in doubled.named_parameters():
        close(grads[name].sum(dim=0), parameter.grad)


@pytest.mark.parametrize("attention", ATTENTIONS)
def test_forward_mode_differentiation(attention):
    layer, x, tangent = Layer(attention), draw(2, 4), draw(2, 4, seed=1)
    with forward_ad.dual_level():
        found = forward_ad.unpack_dual(layer(forward_ad.make_dual(x, tangent))).tangent
    torch.testing.assert_close(found, torch.func.jvp(layer, (x,), (tangent,))[1], atol=1e-4, rtol=1e-3)


def test_parametrised_and_pruned_weights_are_used():
    layer, x = Layer("hyla"), draw(2, 4)
    parametrizations.orthogonal(layer.attention, "in_proj_weight")
    parametrizations.weight_norm(layer.attention.out_proj)
    packed = layer.attention.in_proj_weight
    torch.testing.assert_close(packed.T @ packed, torch.eye(E), atol=1e-5, rtol=0)
    plain = Layer("hyla")
    with torch.no_grad():
        plain.attention.in_proj_weight.copy_(packed)
    close(layer(x), plain(x))
    layer(x).sum().backward()
    assert layer.attention.parametrizations.in_proj_weight.original.grad.abs().sum() > 0
    prune.random_unstructured(plain.attention, "in_proj_weight", 0.5)
    zeroed = Layer("hyla")
    with torch.no_grad():
        zeroed.attention.in_proj_weight.copy_(plain.attention.in_proj_weight)
        zeroed.attention.out_proj.load_state_dict(plain.attention.out_proj.state_dict())
    close(plain(x), zeroed(x))


@pytest.mark.filterwarnings("ignore:torch.ao.quantization:DeprecationWarning", "ignore:torch.quantize_per_tensor")
def test_dynamic_quantisation_replaces_the_dense_layers():
    model, x = build_encoder(), draw(2, 5)
    quantised = torch.ao.quantization.quantize_dynamic(model, {nn.Linear}, dtype=torch.qint8)
    replaced = [name for name, module in quantised.named_modules() if ".quantized.dynamic." in type(module).__module__]
    assert replaced == ["layers.0.linear1", "layers.0.linear2"]  # torch leaves the projections of attention as they are
    torch.testing.assert_close(quantised(x), model(x), atol=0.05, rtol=0)


SHARDED = """
import sys, torch, torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from recombine import convert
dist.init_process_group("gloo", store=dist.FileStore(sys.argv[1], 1), rank=0, world_size=1)
def build():
    torch.manual_seed(0)
    return convert(nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 4, 12, dropout=0.0, batch_first=True), 2))
sharded, plain, x = build(), build(), torch.randn(2, 5, 8)
for module in (*sharded.layers, sharded):
    fully_shard(module, mesh=init_device_mesh("cpu", (1,)))
for model in (sharded, plain):
    model(x).square().sum().backward()
torch.testing.assert_close(sharded(x), plain(x))
for one, other in zip(sharded.parameters(), plain.parameters(), strict=True):
    torch.testing.assert_close(one.grad.full_tensor(), other.grad)
dist.destroy_process_group()
"""

VIEW_ALIVE = """
import builtins, torch
from recombine import Attention
layer = Attention(64, num_heads=8, kqv_dim=64)
builtins.alive = [layer(torch.randn(64, 64, 64), return_codes=False)[0].detach().numpy() for _ in range(3)]
"""


@pytest.mark.parametrize("code", [SHARDED, VIEW_ALIVE], ids=["sharded by FSDP2", "a NumPy view is alive at exit"])
def test_in_a_process_of_its_own(code, tmp_path):
    done = subprocess.run([sys.executable, "-c", code, str(tmp_path / "store")], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
