"""recombine report RUN... -o FILE: one HTML file about runs, read from their directories alone."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from recombine.cli import parse
from recombine.commands.console import Output
from recombine.report.page import write_report


@dataclass(frozen=True, kw_only=True)
class ReportOptions(Output):
    """Which runs, and where the report goes."""

    runs: tyro.conf.Positional[tuple[Path, ...]]
    """Run directories."""
    out: Annotated[Path, tyro.conf.arg(aliases=["-o"])] = Path("report.html")
    """The file to write."""
    figures: Annotated[Path | None, tyro.conf.arg(metavar="DIR")] = None
    """Write the figures as PNG and SVG files into this folder too."""
    gallery: bool = True
    """Load each network and show instances that it gets right and wrong."""
    title: str = "Do these networks recombine what they learned?"
    """Heading of the report."""


def run(argv: list[str]) -> None:
    options = parse(ReportOptions, argv, prog="report")
    write_report(options.runs, options.out, title=options.title, static=options.figures, gallery=options.gallery)
    options.show({"report": str(options.out), "bytes": options.out.stat().st_size}, f"{options.out}")
