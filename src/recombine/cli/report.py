"""recombine report RUN... -o FILE: write one HTML file about runs, read from their run directories."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from recombine.cli.flags import RunOutput
from recombine.cli.main import Argument, parse
from recombine.report.page import write_report


@dataclass(frozen=True, kw_only=True)
class ReportOptions(RunOutput):
    """Write one HTML file about runs. It works offline."""

    examples = (
        "recombine report runs -o report.html",
        "recombine report runs/sraven-hyla-0123456789ab runs/sraven-softmax-0123456789ab",
    )

    runs: Annotated[tuple[Path, ...], Argument(metavar="RUN", positional=True)]
    """Run directories, or folders of them."""
    out: Annotated[Path, Argument(alias="-o")] = Path("report.html")
    """File to write."""
    figures: Path | None = None
    """Also write the figures to this folder, as PNG and SVG files."""
    gallery: bool = True
    """Load each network and show instances that it gets right and wrong."""
    title: str = "Do these networks recombine what they learned?"
    """Heading of the report."""


def run(argv: list[str]) -> None:
    options = parse(ReportOptions, argv, prog="report")
    write_report(options.runs, options.out, static=options.figures, **options.select("title", "gallery", "code"))
    options.show({"report": str(options.out), "bytes": options.out.stat().st_size}, f"{options.out}")
