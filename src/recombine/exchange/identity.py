"""The identity of an exported row, which predictions carry back.

    ood-17-of-1000-960fe3a3c41f      row 17 of the 1,000 rows of split `ood`, of the export with this hash

The hash covers everything that determines the rows: the task with its version and settings, and the SHA-256 of its split.
The number of rows is part of the identity, so that missing rows are noticed wherever they are.
"""

from __future__ import annotations

import re
from dataclasses import MISSING, fields
from typing import NamedTuple

from recombine.errors import InputError
from recombine.registry import version_of
from recombine.settings import settings_as_dict
from recombine.store import hash_config
from recombine.tasks import Task

PATTERN = re.compile(r"([a-z]+)-(\d{1,12})-of-(\d{1,12})-([0-9a-f]{12})")


class RowId(NamedTuple):
    """One row of an export."""

    split: str
    row: int
    num_rows: int
    export: str

    def __str__(self) -> str:
        return f"{self.split}-{self.row}-of-{self.num_rows}-{self.export}"

    @classmethod
    def parse(cls, text: str) -> RowId:
        match = PATTERN.fullmatch(text)
        if match is None:
            raise InputError(
                f"row_id {text[:60]!r} is not that of an exported row: expected one such as 'ood-17-of-1000-960fe3a3c41f'"
            )
        split, row, num_rows, export = match.groups()
        return cls(split, int(row), int(num_rows), export)


def hash_export(task: Task) -> str:
    """The first 12 digits of SHA-256 of the task, its version, its settings and its split.

    Settings that have their default are left out, so that a setting added later does not change the hash.
    """
    defaults = {field.name: field.default for field in fields(task) if field.default is not MISSING}
    settings = {
        name: value for name, value in settings_as_dict(task).items() if name not in defaults or value != defaults[name]
    }
    return hash_config(
        {
            "task": task.name,
            "version": version_of(type(task)),
            "settings": settings,
            "split_sha256": task.split.certificate.sha256,
        }
    )
