"""One instance with a model's answer, as shown in the report: a picture, its composition, and remarks."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from markupsafe import Markup


@dataclass(frozen=True, kw_only=True)
class Card:
    """`picture` and `answers` are HTML; everything else is text, which the page escapes."""

    picture: Markup
    composition: tuple[str, ...]
    joined_by: str = " + "  # between the modules of the composition
    answers: Markup = field(default_factory=Markup)
    remarks: tuple[str, ...] = ()


def use_minus_signs(text: str) -> str:
    """The sign of negative numbers as in all other output."""
    return re.sub(r"(?<![\w-])-(?=\d)", "−", text)


def text_card(text: str, composition: tuple[str, ...], remarks: tuple[str, ...] = ()) -> Card:
    """A card for a task without a picture: the instance as text."""
    picture = Markup('<pre class="instance-text">{}</pre>').format(use_minus_signs(text))
    return Card(picture=picture, composition=composition, remarks=remarks)
