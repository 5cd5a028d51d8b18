"""One task of the hyperteacher as text: its modules, the beginning of its code, and a few inputs with their outputs."""

from __future__ import annotations

from jaxtyping import Float
from torch import Tensor

NUM_SHOWN_FEATURES, NUM_SHOWN_LINES, NUM_SHOWN_SAMPLES = 8, 4, 2


def write_task(
    encoding: str,
    code: Float[Tensor, " features"],
    strengths: Float[Tensor, " modules"],
    x: Float[Tensor, "samples x"],
    y: Float[Tensor, "samples y"],
) -> str:
    """The text that `recombine show hyperteacher` prints."""
    mixed = " + ".join(f"{strength:.2f} × module {m}" for m, strength in enumerate(strengths.tolist()) if strength)
    lines = [f"task = {mixed}", f"encoded as {encoding}:"]
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


def _write_numbers(values: list[float]) -> str:
    """The first few, and a sign where there are more."""
    cut = " …" if len(values) > NUM_SHOWN_FEATURES else ""
    return "".join(f"{value:7.2f}" for value in values[:NUM_SHOWN_FEATURES]) + cut
