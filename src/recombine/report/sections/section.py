"""A part of the page: what a section builder hands to its template."""

from __future__ import annotations

from dataclasses import dataclass, field

from recombine.report.figures import Figure
from recombine.store import Json


@dataclass(frozen=True, kw_only=True)
class Section:
    """A part of the page: its anchor, what its template needs, and figures by name.

    The template is the file `templates/<name>.html`, unless `template` holds its text.
    """

    name: str
    title: str
    content: Json = field(default_factory=dict)
    figures: dict[str, Figure] = field(default_factory=dict)
    template: str | None = None
