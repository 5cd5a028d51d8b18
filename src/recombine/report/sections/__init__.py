"""The sections of the page, one file each.

A section is a module of this folder with `ORDER`, its position on the page, and `build(runs)`, which returns a `Section`, or
None if there is nothing to show. Its template is `templates/<name>.html`, or text in the `Section` itself. A new file in
this folder is a new section; nothing else needs to be changed.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable, Sequence

from recombine.report.read import ReportRun
from recombine.report.sections.section import Section

Builder = Callable[[Sequence[ReportRun]], Section | None]


def list_sections() -> dict[str, Builder]:
    """The builder of each section, by name, in the order of the page."""
    modules = {
        module.name: importlib.import_module(f"{__name__}.{module.name}")
        for module in pkgutil.iter_modules(__path__)
        if module.name != "section"
    }
    return {name: module.build for name, module in sorted(modules.items(), key=lambda item: item[1].ORDER)}
