"""One task of the hyperteacher as text or picture: its modules, its code, and inputs with their outputs."""

from __future__ import annotations

from pathlib import Path

from jaxtyping import Float
from torch import Tensor

from recombine.drawing.tokens import Panel, draw_tokens

NUM_SHOWN_FEATURES, NUM_SHOWN_LINES, NUM_SHOWN_SAMPLES = 8, 4, 2


def write_task(
    encoding: str,
    code: Float[Tensor, " features"],
    strengths: Float[Tensor, " modules"],
    x: Float[Tensor, "samples x"],
    y: Float[Tensor, "samples y"],
) -> str:
    """The text that `recombine show hyperteacher` prints."""
    lines = [describe_mixture(strengths), f"encoded as {encoding}:"]
    shown = NUM_SHOWN_FEATURES * NUM_SHOWN_LINES
    for start in range(0, min(len(code), shown), NUM_SHOWN_FEATURES):
        lines.append("  " + _write_numbers(code[start : start + NUM_SHOWN_FEATURES].tolist()))
    if len(code) > shown:
        lines.append(f"   … {len(code)} numbers in all")
    for number, (one_x, one_y) in enumerate(zip(x.tolist(), y.tolist(), strict=True), start=1):
        if number > NUM_SHOWN_SAMPLES:
            lines.append(f"… {len(x) - NUM_SHOWN_SAMPLES} more")
            break
        lines += [f"x{number}{_write_numbers(one_x)}", f" →{_write_numbers(one_y)}"]
    return "\n".join(lines)


def draw_task(
    path: Path | str,
    encoding: str,
    inputs: Float[Tensor, "samples features"],
    targets: Float[Tensor, "samples y"],
    strengths: Float[Tensor, " modules"],
    code_size: int,
) -> None:
    """The picture of a task: a column per sample, with the code above the inputs and the outputs below them."""
    tokens = inputs.detach().cpu()
    draw_tokens(
        path,
        title=describe_mixture(strengths),
        panels=[
            Panel(f"the task, encoded as {encoding}", tokens[:, :code_size].T.numpy()),
            Panel("input x", tokens[:, code_size:].T.numpy()),
            Panel("output y", targets.detach().cpu().T.numpy(), asked=range(len(tokens))),
        ],
        parts=[(f"{len(tokens)} samples of the task, each answered independently", len(tokens))],
        framed="what the network is asked for",
    )


def describe_mixture(strengths: Float[Tensor, " modules"]) -> str:
    """The modules of a task with their strengths."""
    mixed = " + ".join(f"{strength:.2f} × module {m}" for m, strength in enumerate(strengths.tolist()) if strength)
    return f"task = {mixed}"


def _write_numbers(values: list[float]) -> str:
    """The first few, and a sign where there are more."""
    cut = " …" if len(values) > NUM_SHOWN_FEATURES else ""
    return "".join(f"{value:7.2f}" for value in values[:NUM_SHOWN_FEATURES]) + cut
