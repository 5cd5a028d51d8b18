"""One sequence of the in-context task as text: the mixture, then the first examples and queries."""

from __future__ import annotations

from jaxtyping import Float
from torch import Tensor

NUM_SHOWN_FEATURES, NUM_SHOWN_EXAMPLES, NUM_SHOWN_QUERIES = 6, 8, 3


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
    lines = [f"task = {mixture}", "examples"]
    for token in examples[:NUM_SHOWN_EXAMPLES]:
        x, y = token.split((input_size, output_size))
        lines.append(f"  x {_show(x[:NUM_SHOWN_FEATURES])}{cut}   y {_show(y)}")
    lines.append(f"  … {len(examples) - NUM_SHOWN_EXAMPLES} more" if len(examples) > NUM_SHOWN_EXAMPLES else "")
    lines.append("queries, each answered independently")
    for token, answer in zip(queries[:NUM_SHOWN_QUERIES], targets, strict=False):
        lines.append(f"  x {_show(token[: min(NUM_SHOWN_FEATURES, input_size)])}{cut}   y {_show(answer)}")
    lines.append(f"  … {num_queries - NUM_SHOWN_QUERIES} more" if num_queries > NUM_SHOWN_QUERIES else "")
    return "\n".join(line for line in lines if line)


def _show(values: Float[Tensor, " features"]) -> str:
    return " ".join(f"{value:5.2f}" for value in values.tolist())
