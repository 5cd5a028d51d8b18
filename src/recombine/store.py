"""The run directory: everything a run leaves behind, written atomically, loaded strictly, without pickle.

    runs/<name>-<hash of the configuration>/
        config.json  split.json  environment.json       what was run, on which compositions, with which code
        metrics.jsonl                                    one JSON object a line, as training goes
        checkpoint.safetensors  checkpoint.json          the last checkpoint, and a readable note on it
        result.json                                      only once the run is finished

A file is written under a temporary name, flushed and renamed, so it is whole or absent. The checkpoint's step and info
travel inside the tensors' own header, so a kill between the two renames cannot pair a note with the wrong tensors.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import platform
import re
from collections.abc import Iterator, Mapping
from importlib import metadata
from pathlib import Path
from typing import Any

import safetensors
import torch
from safetensors.torch import load_file, save
from torch import Tensor

from recombine.errors import InputError
from recombine.files import replace_file

FORMAT = "recombine-run"
FORMAT_VERSION = 2

Json = dict[str, Any]


def hash_config(config: Json) -> str:
    """The first 12 hex digits of SHA-256 of a configuration."""
    canonical = json.dumps(config, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(canonical.encode()).hexdigest()[:12]


def describe_environment(device: torch.device | str) -> Json:
    """Versions, code and machine, as far as they can move a number."""
    return {
        "recombine": metadata.version("recombine"),
        "source_sha256": hash_source(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "platform": platform.platform(),
        "processor": _processor_name(),
        "device": str(device),
        "num_threads": torch.get_num_threads(),
    }


def hash_source() -> str:
    """SHA-256 over the package's own source, the same from a checkout and from an installed wheel."""
    root = Path(__file__).parent
    digest = hashlib.sha256()
    for path in sorted(path for path in root.rglob("*") if path.suffix in (".py", ".c", ".h")):
        digest.update(str(path.relative_to(root).as_posix()).encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()


def _processor_name() -> str:
    with contextlib.suppress(OSError):
        match = re.search(r"^model name\s*:\s*(.+)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
        if match:
            return match.group(1)
    return platform.processor() or platform.machine()


class RunDirectory:
    """One run on disk."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @classmethod
    def create(cls, root: Path, name: str, config: Json, *, identity: Json | None = None) -> RunDirectory:
        """The directory of a configuration, named by the hash of its identity: a new one, or the one that is there."""
        run = cls(Path(root) / f"{name}-{hash_config(config if identity is None else identity)}")
        try:
            run.path.mkdir(parents=True, exist_ok=True)
            if not (run.path / "config.json").exists():
                run.write_json("config.json", {"format": FORMAT, "format_version": FORMAT_VERSION, **config})
        except OSError as error:
            raise InputError(f"cannot write to {run.path}: {error.strerror}; expected a writable folder") from None
        return run

    @classmethod
    def open(cls, path: Path | str) -> RunDirectory:
        """An existing run; refuses what is missing, foreign or of another version."""
        run = cls(Path(path))
        if not run.path.is_dir():
            raise InputError(
                f"run directory {str(path)!r} does not exist: expected a folder that `recombine train` made"
            )
        _ = run.config
        return run

    @property
    def config(self) -> Json:
        """The configuration, without the marks of the format."""
        config = self.read_json("config.json")
        if config.pop("format", None) != FORMAT:
            raise InputError(f"{self.path / 'config.json'} is not of a Recombine run: expected format {FORMAT!r}")
        version = config.pop("format_version", None)
        if version != FORMAT_VERSION:
            raise InputError(f"{self.path} has format version {version!r}: expected {FORMAT_VERSION}")
        config.pop("origins", None)
        return config

    @property
    def finished(self) -> bool:
        return (self.path / "result.json").exists()

    @contextlib.contextmanager
    def lock(self) -> Iterator[None]:
        """Keep two processes from training the same run at once; a killed process leaves no lock behind."""
        try:
            import fcntl
        except ImportError:  # no such locks on this platform
            yield
            return
        with open(self.path / "lock", "w") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                raise InputError(
                    f"{self.path} is being trained by another process: expected to be the only one"
                ) from None
            yield

    def write_json(self, name: str, value: Json) -> None:
        self.write_bytes(name, (json.dumps(value, indent=2, ensure_ascii=False) + "\n").encode())

    def read_json(self, name: str) -> Json:
        path = self.path / name
        try:
            value = json.loads(path.read_text())
        except FileNotFoundError:
            raise InputError(f"{path} does not exist: expected a complete run directory") from None
        except (OSError, ValueError) as error:
            raise InputError(f"{path} cannot be read ({error}): expected JSON") from None
        if not isinstance(value, dict):
            raise InputError(f"{path} holds {type(value).__name__}: expected a JSON object")
        return value

    def write_bytes(self, name: str, content: bytes) -> None:
        replace_file(self.path / name, content)

    def append_metrics(self, row: Json) -> None:
        with open(self.path / "metrics.jsonl", "a") as file:
            file.write(json.dumps(row) + "\n")

    def read_metrics(self) -> list[Json]:
        """The rows in order; a last line cut short by a kill is left out."""
        path = self.path / "metrics.jsonl"
        rows = []
        lines = path.read_text(errors="replace").splitlines() if path.exists() else []
        for number, line in enumerate(lines):
            try:
                rows.append(json.loads(line))
            except ValueError:
                if number + 1 < len(lines):
                    raise InputError(f"{path} line {number + 1} is not JSON: expected one object a line") from None
        return rows

    def rewind_metrics(self, step: int) -> None:
        """Drop what was written after a step, so that a resumed run writes it exactly once."""
        kept = [json.dumps(row) + "\n" for row in self.read_metrics() if row["step"] <= step]
        self.write_bytes("metrics.jsonl", "".join(kept).encode())

    def save_checkpoint(self, tensors: Mapping[str, Tensor], info: Json) -> None:
        content = save({name: tensor.contiguous() for name, tensor in tensors.items()}, {"info": json.dumps(info)})
        self.write_bytes("checkpoint.safetensors", content)
        self.write_json("checkpoint.json", info)

    def load_checkpoint(self, device: torch.device | str = "cpu") -> tuple[dict[str, Tensor], Json] | None:
        """The last checkpoint with its info, or None if there is none yet."""
        path = self.path / "checkpoint.safetensors"
        if not path.exists():
            return None
        try:
            with safetensors.safe_open(path, framework="pt") as file:
                info = json.loads((file.metadata() or {})["info"])
            return load_file(path, device=str(device)), info
        except (safetensors.SafetensorError, KeyError, ValueError, OSError) as error:
            raise InputError(
                f"{path} cannot be read ({error}): expected a whole checkpoint of a Recombine run"
            ) from None
