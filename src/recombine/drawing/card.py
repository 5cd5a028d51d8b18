"""One instance with a model's answer, as shown in the report: a picture, its composition, and remarks."""

from __future__ import annotations

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


def text_card(text: str, composition: tuple[str, ...], remarks: tuple[str, ...] = ()) -> Card:
    """A card for a task without a picture: the instance as text."""
    picture = Markup('<pre class="instance-text">{}</pre>').format(text)
    return Card(picture=picture, composition=composition, remarks=remarks)
