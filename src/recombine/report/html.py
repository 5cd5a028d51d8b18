"""One HTML file about runs."""
from __future__ import annotations
from collections.abc import Sequence
from pathlib import Path
def write_report(runs: Sequence[Path], out: Path, *, title: str) -> None:
    out.write_text(title)
