"""Measurements that are kept in a run directory, each in a JSON file of its own.

A kept measurement is used again only if everything that determined it is the same. The file holds a `key` next to the
numbers:

    name, version     of the measurement; raise `version` when the same arguments give other numbers or other keys
    arguments         what the caller asked for, such as the number of instances
    checkpoint        step and SHA-256 of the checkpoint, or null for a measurement that does not look at it
    code              versions of task, model and training (`RunConfig.as_dict`), and of the task's reading if it is not 1

If the key differs, or the file is missing or cannot be read, the measurement is made again and replaces the file. Files are
written atomically. A measurement takes its key *before* it loads the model: if training goes on meanwhile, the file
belongs to an older checkpoint and is not used again.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NotRequired, TypedDict

from recombine.foundation.errors import InputError
from recombine.foundation.settings import find_fault
from recombine.models.registry import Code
from recombine.training.checkpoint import read_header
from recombine.training.config import RunConfig
from recombine.training.directory import RunDirectory
from recombine.training.schema import Json

CHECKPOINT_FILE = "checkpoint.safetensors"


class Checkpoint(TypedDict):
    """Which checkpoint was measured."""

    step: int
    sha256: str


class CodeVersions(TypedDict):
    """Versions of the code that the numbers depend on."""

    task: int | str
    model: int | str
    training: int | str
    reading: NotRequired[int]


class MeasurementKey(TypedDict):
    """What determined a measurement."""

    name: str
    version: int
    arguments: dict[str, Any]
    checkpoint: Checkpoint | None
    code: CodeVersions


@dataclass(frozen=True, kw_only=True)
class Measurement:
    """A kind of measurement; its file is `NAME.json`."""

    name: str
    version: int
    uses_checkpoint: bool = True
    content: Any = Json
    """The type of what is kept; a file of another type is made again."""

    @property
    def file(self) -> str:
        return f"{self.name}.json"

    def make_key(self, run: RunDirectory, config: RunConfig, arguments: Mapping[str, Any]) -> MeasurementKey:
        """The key of a measurement that would be made now."""
        versions = config.as_dict()
        code: CodeVersions = {
            "task": versions["task"]["version"],
            "model": versions["model"]["version"],
            "training": versions["training"]["version"],
        }
        reading = config.task.reading().version
        if reading > 1:  # keys from before readings had versions stay valid
            code["reading"] = reading
        return {
            "name": self.name,
            "version": self.version,
            "arguments": dict(arguments),
            "checkpoint": describe_checkpoint(run) if self.uses_checkpoint else None,
            "code": code,
        }

    def read(self, run: RunDirectory, key: MeasurementKey) -> Json | None:
        """What is kept under this key, or None."""
        kept = self._read_file(run)
        # compared as JSON, where tuples are lists
        return kept if kept is not None and kept.get("key") == json.loads(json.dumps(key)) else None

    def read_current(self, run: RunDirectory, config: RunConfig | None = None) -> Json | None:
        """What is kept of the current checkpoint, whatever its arguments; None if that is nothing.

        Without `config`, versions of task, model and training are not compared: a reader may not have their classes.
        """
        kept = self._read_file(run)
        if kept is None or not isinstance(kept.get("key"), dict):
            return None
        key = dict(kept["key"])
        checkpoint = describe_checkpoint(run) if self.uses_checkpoint else None
        expected: Json = {"name": self.name, "version": self.version, "checkpoint": checkpoint}
        if config is not None:
            expected["code"] = self.make_key(run, config, {})["code"]
        return kept if all(key.get(name) == value for name, value in expected.items()) else None

    def write(self, run: RunDirectory, key: MeasurementKey, numbers: Mapping[str, Any]) -> None:
        run.write_json(self.file, {"key": key, **numbers})

    def keep(
        self,
        path: Path | str,
        arguments: Mapping[str, Any],
        measure: Callable[[], Mapping[str, Any]],
        *,
        code: Sequence[Code] = (),
    ) -> Json:
        """The measurement of a run with these arguments: as kept, or made by `measure` and kept."""
        run = RunDirectory.open(path)
        key = self.make_key(run, RunConfig.from_dict(run.config, code), arguments)
        kept = self.read(run, key)
        if kept is not None:
            return kept
        self.write(run, key, measure())
        return run.read_json(self.file)

    def _read_file(self, run: RunDirectory) -> Json | None:
        try:
            kept = run.read_json(self.file) if (run.path / self.file).exists() else None
        except InputError:  # cut short or foreign: made again
            return None
        return kept if find_fault(kept, self.content) is None else None


def is_outdated(run: RunDirectory, kept: Mapping[str, Any]) -> bool:
    """Whether a measurement is of another checkpoint than the run has; unknown, hence False, if the run has none here."""
    current = describe_checkpoint(run)
    key = kept.get("key")
    return current is not None and (not isinstance(key, dict) or key.get("checkpoint") != current)


def describe_checkpoint(run: RunDirectory) -> Checkpoint | None:
    """Step and hash of the last checkpoint, or None if there is none."""
    path = run.path / CHECKPOINT_FILE
    if not path.exists():
        return None
    try:
        step = read_header(path)[1]["step"]
        with open(path, "rb") as content:
            return {"step": step, "sha256": hashlib.file_digest(content, "sha256").hexdigest()}
    except OSError as error:
        raise InputError(f"{path} cannot be read ({error.strerror}): expected a whole checkpoint") from None
