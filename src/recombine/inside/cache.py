"""Measurements of a run, each cached in a JSON file of the run directory.

A file holds the numbers and the `key` that determined them:

    name, version     of the measurement; increase `version` when the same arguments lead to other numbers or other keys
    arguments         of the caller, such as the number of instances
    checkpoint        step and SHA-256 of the checkpoint, or null for a measurement that does not use one
    code              versions of task, model and training (`RunConfig.as_dict`), and of the task's reading if it is not 1

A file with another key, and one that is missing or damaged, is replaced by a new measurement. The key is computed *before*
the model is loaded: if training continues meanwhile, the file belongs to an older checkpoint and is not used again.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NotRequired, TypedDict

from recombine.foundation.errors import InputError, find_schema_error
from recombine.models.registry import Code
from recombine.training.config import RunConfig
from recombine.training.directory import CHECKPOINT, RunDirectory, read_header
from recombine.training.schema import Json


class Checkpoint(TypedDict):
    """Identity of a checkpoint."""

    step: int
    sha256: str


class CodeVersions(TypedDict):
    """Versions of the code that the numbers depend on."""

    task: int | str
    model: int | str
    training: int | str
    reading: NotRequired[int]


class MeasurementKey(TypedDict):
    """Everything that determined a measurement."""

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
    schema: Any = Json

    @property
    def file(self) -> str:
        return f"{self.name}.json"

    def load_or_measure(
        self,
        path: Path | str,
        arguments: Mapping[str, Any],
        measure: Callable[[], Mapping[str, Any]],
        *,
        code: Sequence[Code] = (),
    ) -> Json:
        """The measurement of a run with these arguments, from its file or by calling `measure`."""
        run = RunDirectory.open(path)
        key = self.make_key(run, RunConfig.from_dict(run.config, code), arguments)
        stored = self.load(run, key)
        if stored is not None:
            return stored
        self.write(run, key, measure())
        return run.read_json(self.file)

    def make_key(self, run: RunDirectory, config: RunConfig, arguments: Mapping[str, Any]) -> MeasurementKey:
        """The key of a measurement made now."""
        versions = config.as_dict()
        code: CodeVersions = {
            "task": versions["task"]["version"],
            "model": versions["model"]["version"],
            "training": versions["training"]["version"],
        }
        if (reading := config.task.reading().version) > 1:  # keys from before readings had versions stay valid
            code["reading"] = reading
        return {
            "name": self.name,
            "version": self.version,
            "arguments": dict(arguments),
            "checkpoint": describe_checkpoint(run) if self.uses_checkpoint else None,
            "code": code,
        }

    def load(self, run: RunDirectory, key: MeasurementKey) -> Json | None:
        """The stored measurement with this key, or None."""
        try:
            stored = self.load_current(run)
        except InputError:
            return None
        # compared as JSON, where tuples are lists
        return stored if stored is not None and stored.get("key") == json.loads(json.dumps(key)) else None

    def load_current(self, run: RunDirectory) -> Json | None:
        """The stored measurement whatever its arguments, or None; raises if it is damaged or of another checkpoint.

        The checkpoint is not compared if the run directory has none. Needs no class of the run.
        """
        if not (run.path / self.file).exists():
            return None
        try:
            stored = run.read_json(self.file)
        except InputError:  # its message contains a local path, which does not belong in a report
            raise InputError(f"{self.file} cannot be read: expected the JSON object that Recombine writes") from None
        key = stored["key"] if isinstance(stored.get("key"), dict) else {}
        version = key.get("version", stored.get("version"))
        if version != self.version:
            raise InputError(f"{self.file} has version {version!r}: expected {self.version}")
        if (fault := find_schema_error(stored, self.schema)) is not None:
            raise InputError(f"{self.file} is damaged: {fault}")
        current = describe_checkpoint(run) if self.uses_checkpoint else None
        if current is not None and key.get("checkpoint") != current:
            raise InputError(
                f"{self.file} is of another checkpoint than the run's: expected a new recombine {self.name}"
            )
        return stored

    def write(self, run: RunDirectory, key: MeasurementKey, numbers: Mapping[str, Any]) -> None:
        run.write_json(self.file, {"key": key, **numbers})


def describe_checkpoint(run: RunDirectory) -> Checkpoint | None:
    """Identity of the last checkpoint, or None if there is none."""
    path = run.path / CHECKPOINT
    if not path.exists():
        return None
    try:
        step = read_header(path)[1]["step"]
        with open(path, "rb") as content:
            return {"step": step, "sha256": hashlib.file_digest(content, "sha256").hexdigest()}
    except OSError as error:
        raise InputError(f"{path} cannot be read ({error.strerror}): expected a whole checkpoint") from None
