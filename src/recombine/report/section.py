"""A part of the page: what a section builder hands to its template."""

from __future__ import annotations

from dataclasses import dataclass, field

from recombine.report.figures import Figure
from recombine.store import Json


@dataclass(frozen=True, kw_only=True)
class Section:
    """A part of the page: the anchor, which also names its template; what the template needs; figures by name."""

    name: str
    title: str
    content: Json = field(default_factory=dict)
    figures: dict[str, Figure] = field(default_factory=dict)
