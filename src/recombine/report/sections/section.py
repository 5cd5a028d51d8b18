"""A section of the page: what its builder passes to its template."""

from __future__ import annotations

from dataclasses import dataclass, field

from recombine.report.figures import Figure
from recombine.training.schema import Json


@dataclass(frozen=True, kw_only=True)
class Section:
    """A section of the page: its anchor, the content for its template, and figures by name.

    The template is the file `templates/<name>.html`, unless `template` holds its text.
    """

    name: str
    title: str
    content: Json = field(default_factory=dict)
    figures: dict[str, Figure] = field(default_factory=dict)
    template: str | None = None
