"""What the paper derives about attention as a hypernetwork (section 2), computed in random layers."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from recombine.attention import Attention, hypernetwork_view
from recombine_papers.claims import Computes, log10_of
from recombine_papers.experiment import Calculation
from recombine_papers.scale.theory import build_modular_attention

NUM_FEATURES, NUM_TOKENS, NUM_HEADS, NUM_ROWS = 32, 12, 8, 4
EXACT = -10.0  # log10 of a difference that is rounding
NEARLY = 0.1  # relative change that counts as none


class HypernetworkTheory(Calculation):
    """Random attention layers next to the matrices that their codes generate."""

    name = "hypernetwork-theory"
    question = "Is multi-head attention a hypernetwork whose code has one entry per head?"
    claims = (
        *(
            Computes(
                text="multi-head attention is a linear hypernetwork (log10 of the largest difference of outputs)",
                where=where,
                source=source,
                quantity=quantity,
                high=EXACT,
            )
            for where, source, quantity in (
                ("softmax, self-attention", "section 2, equations 2 to 5", "log10_difference"),
                ("softmax, cross-attention", "section 2.1, footnote 1", "log10_difference_cross"),
                ("linear attention", "section 2.1", "log10_difference_linear"),
            )
        ),
        *(
            Computes(text=text, where=where, source=source, quantity=quantity, low=1.0, high=1.0, exact=True)
            for text, source, settings in (
                (
                    "generated matrices span as many dimensions as there are heads (dimensions per head)",
                    "section 2",
                    {"dimensions_1": "1 head", f"dimensions_{NUM_HEADS}": f"{NUM_HEADS} heads"},
                ),
                (
                    "HYLA adds no parameters (its number of parameters, divided by that of another attention)",
                    "section 2.2",
                    {"parameters_over_linear": "linear attention", "parameters_over_softmax": "softmax attention"},
                ),
                (
                    "a deeper value network adds a square matrix per head (added parameters, divided by those of the matrices)",
                    "section A.1, equation 10",
                    {"parameters_of_deeper": ""},
                ),
            )
            for quantity, where in settings.items()
        ),
        Computes(
            text="normalisation over heads needs no communication across keys (log10 of the relative change of a pair's code "
            "when all other keys change)",
            source="section 2.2",
            quantity="log10_difference_other_keys",
            high=EXACT,
        ),
        Computes(
            text="a softmax needs communication across keys (log10 of the relative change of a pair's code when all other "
            "keys change)",
            source="section 2.2",
            quantity="log10_change_softmax",
            low=log10_of(NEARLY),
        ),
        *(
            Computes(
                text=text,
                where=f"{layer} layer",
                source="section 2.2",
                quantity=f"{quantity}_{layer}",
                low=low,
                high=high,
            )
            for text, quantity, low, high in (
                (
                    "with normalisation over heads, the generated weights of all pairs have the same variance at "
                    "initialisation (standard deviation over pairs, divided by the mean)",
                    "variance_spread",
                    0.0,
                    NEARLY,
                ),
                (
                    "with normalisation over heads, the generated weights preserve the variance of their inputs at "
                    "initialisation (variance of the weights, times the number of inputs)",
                    "variance",
                    1 - NEARLY,
                    1 + NEARLY,
                ),
            )
            for layer in ("value", "output")
        ),
        Computes(
            text="one head per module computes any mixture of linear modules (log10 of the largest difference)",
            source="our construction",
            quantity="log10_mixture",
            high=EXACT,
            ours=True,
        ),
    )

    known_before = "all numbers: they follow from the equations, or are known from docs/theory.md."

    @torch.no_grad()
    def compute(self, seed: int) -> Mapping[str, float]:
        with torch.random.fork_rng(devices=()):
            torch.manual_seed(seed)
            return self.compare_layers()

    def compare_layers(self) -> Mapping[str, float]:
        """Random layers next to what they generate."""
        x = torch.randn(NUM_ROWS, NUM_TOKENS, NUM_FEATURES, dtype=torch.float64)
        differences, dimensions = {}, {}
        for heads in (1, NUM_HEADS):
            layer = nn.MultiheadAttention(NUM_FEATURES, heads, batch_first=True).double()
            view = hypernetwork_view(layer, x)
            generated = torch.einsum("bqkij,bkj->bqi", view.value_matrices, x) + view.value_biases.sum(dim=2)
            differences[heads] = (generated + layer.out_proj.bias - layer(x, x, x)[0]).abs().max().item()
            values = torch.linalg.svdvals(view.value_matrices.flatten(0, 2).flatten(1))
            dimensions[heads] = int((values > 1e-9 * values[0]).sum())
        return {
            "log10_difference": log10_of(max(differences.values())),
            **{f"dimensions_{heads}": count / heads for heads, count in dimensions.items()},
            "log10_mixture": log10_of(compare_mixture()),
            "log10_difference_cross": log10_of(compare_view("softmax", x, torch.randn_like(x))),
            "log10_difference_linear": log10_of(compare_view("linear", x)),
            "log10_difference_other_keys": log10_of(change_other_keys("hyla", x)),
            "log10_change_softmax": log10_of(change_other_keys("softmax", x)),
            **compare_parameters(),
            **measure_variances(),
        }


def build_layer(attention: str, num_features: int = NUM_FEATURES) -> Attention:
    """A random layer whose heads have as many features together as the tokens, as in the paper's section 2."""
    return Attention(num_features, num_heads=NUM_HEADS, kqv_dim=num_features, attention=attention).double()


def compare_view(attention: str, x: Tensor, context: Tensor | None = None) -> float:
    """The largest difference between a layer's output and that of the matrices that its codes generate."""
    layer = build_layer(attention)
    return float((hypernetwork_view(layer, x, context).output - layer(x, context)[0]).abs().max())


def change_other_keys(attention: str, x: Tensor) -> float:
    """How much the code of the last token for the first key changes with all keys in between, relative to its length."""
    layer, changed = build_layer(attention), x.clone()
    changed[:, 1:-1] = torch.randn_like(changed[:, 1:-1])
    code, other = (layer(tokens)[1][:, :, -1, 0] for tokens in (x, changed))
    return float(((other - code).norm(dim=1) / code.norm(dim=1)).mean())


def compare_parameters() -> dict[str, float]:
    """Parameters of HYLA, relative to other attentions; and those that a deeper value network adds, relative to eq. 10."""
    counts = {
        attention: sum(parameter.numel() for parameter in build_layer(attention).parameters())
        for attention in ("softmax", "linear", "hyla", "hyla_deep")
    }
    matrices = NUM_HEADS * (NUM_FEATURES // NUM_HEADS) ** 2
    ratios = {f"parameters_over_{other}": counts["hyla"] / counts[other] for other in ("linear", "softmax")}
    return {**ratios, "parameters_of_deeper": (counts["hyla_deep"] - counts["hyla"]) / matrices}


def measure_variances(num_features: int = 512, num_tokens: int = 8) -> dict[str, float]:
    """Of both layers that HYLA generates for a pair: the variance of the weights times their number of inputs.

    `value` is W[q,k] = sum_h a[h,q,k] W_h^value, `output` is W'[q,k] = sum_h a[h,q,k] W_h^out (eq. 6 and 7). The mean over
    pairs, and the standard deviation over pairs relative to it. A layer with the variance 1 / inputs preserves that of its
    input (LeCun's initialisation, which each matrix of the heads has by itself).
    """
    layer = build_layer("hyla", num_features)
    codes = layer(torch.randn(1, num_tokens, num_features, dtype=torch.float64))[1].flatten(2)[0]
    heads = (NUM_HEADS, -1)
    weights = {
        "value": layer.qkv_weight.chunk(3)[2].unflatten(0, heads),
        "output": layer.output.weight.unflatten(1, heads).transpose(0, 1),
    }
    numbers = {}
    for name, weight in weights.items():
        generated = torch.einsum("hp,hoi->poi", codes, weight)
        variances = generated.flatten(1).var(dim=1) * generated.shape[-1]
        numbers[f"variance_{name}"] = float(variances.mean())
        numbers[f"variance_spread_{name}"] = float(variances.std() / variances.mean())
    return numbers


def compare_mixture(num_modules: int = 6, size: int = 8) -> float:
    """The largest difference between a mixture of linear modules and the attention layer that is built for it."""
    theta = torch.randn(num_modules, size, size, dtype=torch.float64)
    z, x = torch.rand(NUM_ROWS, num_modules, dtype=torch.float64), torch.randn(NUM_ROWS, size, dtype=torch.float64)
    tokens = torch.zeros(NUM_ROWS, 2, num_modules + size + 1, dtype=torch.float64)
    tokens[:, 0, :num_modules], tokens[:, 1, num_modules:-1], tokens[:, 1, -1] = z, x, 1
    output = build_modular_attention(theta)(tokens)[0][:, 0, :size]
    return float((output - torch.einsum("bm,bi,mij->bj", z, x, theta)).abs().max())
