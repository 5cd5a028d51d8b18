"""A fuzzy logic function and a model's answer for the report: example values, the true value and the model's, on one line."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from markupsafe import Markup

from recombine.drawing.card import Card
from recombine.drawing.svg import assemble
from recombine.tasks.base import Batch

if TYPE_CHECKING:
    from recombine.tasks.fuzzy_logic.task import FuzzyLogic

WIDTH, HEIGHT = 220, 74
TOLERANCE = 0.05  # an answer this close to the true value counts as right


def make_card(task: FuzzyLogic, batch: Batch, row: int, answer: float) -> Card:
    truth = float(batch.targets[row])
    terms = [task.describe((term,))[1:-1] for term in batch.latents[row].tolist()]
    query = ", ".join(f"{value:.2f}" for value in batch.inputs[row, -1, :-1].tolist())
    return Card(
        picture=draw_values(batch.inputs[row, :-1, -1].tolist(), truth, answer),
        composition=tuple(f"({term})" for term in terms),
        joined_by=" ∨ ",
        remarks=(
            f"at x = ({query})",
            f"network {answer:.3f}, truth {truth:.3f}, error {abs(answer - truth):.3f}".replace("-", "−"),
        ),
    )


def draw_values(examples: Sequence[float], truth: float, given: float) -> Markup:
    """The example values as ticks on a line from 0 to 1, with the true value below it and the network's above it."""
    left, line, span = 14, 37, WIDTH - 28

    def position(value: float) -> float:
        return left + span * min(1.0, max(0.0, value))

    quality = "good" if abs(given - truth) < TOLERANCE else "bad"
    ticks = "".join(f"M{position(value):.1f} {line - 6}v12" for value in examples)
    a, b = position(given), position(truth)
    return assemble(
        WIDTH,
        HEIGHT,
        [
            f'<path class="axis" d="M{left} {line}h{span}"/><path class="tick" d="{ticks}"/>',
            f'<path class="off {quality}" d="M{a:.1f} {line}H{b:.1f}"/>',
            f'<path class="{quality}" d="M{a:.1f} {line - 3}l-7 -12h14z"/>',
            f'<path class="plain" d="M{b:.1f} {line + 3}l-7 12h14z"/>',
            f'<text class="{quality}" x="{min(max(a, 32), WIDTH - 32):.1f}" y="13">network</text>',
            f'<text class="plain" x="{min(max(b, 24), WIDTH - 24):.1f}" y="{line + 31}">truth</text>',
        ],
        "values",
        f"The network says {given:.3f}, the truth is {truth:.3f}.",
    )
