"""Find run directories in a folder."""

from __future__ import annotations

import json
import logging
from pathlib import Path

from recombine.conform import find_fault
from recombine.errors import InputError
from recombine.files import read_file
from recombine.store.directory import FORMAT, RunDirectory
from recombine.store.schema import Parts

_log = logging.getLogger(__name__)


def find_runs(folder: Path | str) -> list[RunDirectory]:
    """The runs in a folder and its subfolders, by path; the folder may also be a run itself.

    A run of another format version, or one whose configuration is damaged, is left out with a warning.
    """
    folder = Path(folder)
    if not folder.is_dir():
        raise InputError(f"{str(folder)!r} is not a folder: expected one that holds run directories")
    runs = []
    for path in sorted(folder.rglob("config.json")):
        if not _is_run(path):
            continue
        try:
            run = RunDirectory.open(path.parent)
            fault = find_fault(run.config, Parts)
            if fault is not None:
                raise InputError(f"{path} is damaged: {fault}")
            runs.append(run)
        except InputError as error:
            _log.warning("left out: %s", error)
    return runs


def _is_run(path: Path) -> bool:
    """Whether a file is the configuration of a run. Damaged ones count, so that they are reported."""
    try:
        config = json.loads(read_file(path))
    except (OSError, ValueError, RecursionError):
        return (path.parent / "split.json").exists()
    return isinstance(config, dict) and config.get("format") == FORMAT
