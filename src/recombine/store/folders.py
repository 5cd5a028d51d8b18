"""Folders of runs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path


def find_runs(paths: Iterable[Path | str]) -> Iterator[Path]:
    """Run directories: each path itself, or the runs in it if it is a folder of runs (at any depth), in order of name.

    A path that is neither is returned as it is, so that opening it says what is wrong.
    """
    for path in map(Path, paths):
        inside = sorted(config.parent for config in path.glob("*/**/config.json")) if path.is_dir() else []
        if (path / "config.json").exists() or not inside:
            yield path
        else:
            yield from inside
