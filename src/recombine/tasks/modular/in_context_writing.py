"""One sequence of the in-context task as text or picture: the mixture, then examples and queries."""

from __future__ import annotations

from pathlib import Path

from jaxtyping import Float, Int
from torch import Tensor

from recombine.drawing.tokens import Panel, draw_tokens

NUM_SHOWN_FEATURES, NUM_SHOWN_EXAMPLES, NUM_SHOWN_QUERIES = 6, 8, 3


def describe_mixture(modules: Int[Tensor, " active"], strengths: Float[Tensor, " modules"]) -> str:
    """The modules of a task with their strengths."""
    mixed = " + ".join(f"{strengths[module]:.3f} · module {module}" for module in modules.tolist())
    return f"task = {mixed}"


def write_sequence(
    mixture: str,
    inputs: Float[Tensor, "tokens features"],
    targets: Float[Tensor, "queries outputs"],
    *,
    input_size: int,
) -> str:
    """The first features of x, and all of y."""
    num_queries, output_size = targets.shape
    cut = " …" if input_size > NUM_SHOWN_FEATURES else ""
    examples, queries = inputs[:-num_queries], inputs[-num_queries:]
    lines = [mixture, "examples"]
    for token in examples[:NUM_SHOWN_EXAMPLES]:
        x, y = token.split((input_size, output_size))
        lines.append(f"  x {_show(x[:NUM_SHOWN_FEATURES])}{cut}   y {_show(y)}")
    lines.append(f"  … {len(examples) - NUM_SHOWN_EXAMPLES} more" if len(examples) > NUM_SHOWN_EXAMPLES else "")
    lines.append("queries, each answered independently")
    for token, answer in zip(queries[:NUM_SHOWN_QUERIES], targets, strict=False):
        lines.append(f"  x {_show(token[: min(NUM_SHOWN_FEATURES, input_size)])}{cut}   y {_show(answer)}")
    lines.append(f"  … {num_queries - NUM_SHOWN_QUERIES} more" if num_queries > NUM_SHOWN_QUERIES else "")
    return "\n".join(line for line in lines if line)


def draw_sequence(
    path: Path | str,
    mixture: str,
    inputs: Float[Tensor, "tokens features"],
    targets: Float[Tensor, "queries outputs"],
    *,
    input_size: int,
) -> None:
    """The picture of a sequence, with the answers to the queries framed."""
    tokens, num_queries = inputs.detach().cpu().clone(), len(targets)
    tokens[-num_queries:, input_size:] = targets.detach().cpu()
    num_examples = len(tokens) - num_queries
    draw_tokens(
        path,
        title=mixture,
        panels=[
            Panel("input x", tokens[:, :input_size].T.numpy()),
            Panel("output y", tokens[:, input_size:].T.numpy(), asked=range(num_examples, len(tokens))),
        ],
        parts=[(f"{num_examples} examples", num_examples), (f"{num_queries} queries", num_queries)],
        framed="what the network is asked for",
    )


def _show(values: Float[Tensor, " features"]) -> str:
    return " ".join(f"{value:5.2f}" for value in values.tolist())
