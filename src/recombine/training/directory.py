"""The directory of a run, written atomically and read strictly. `schema.py` has the types of its JSON files.

    runs/<name>-<hash of the configuration>/
        config.json  split.json  environment.json       configuration, compositions, and the code and machine
        metrics.jsonl                                    one JSON object per line, written during training
        checkpoint.safetensors  checkpoint.json          the last checkpoint, and its step and times for people to read
        checkpoint-previous.safetensors                  the one before it, during training
        result.json                                      written when the run is finished

The header of a checkpoint has its step and times (`info`), the hash of the run's configuration (`config`), and SHA-256 over
both and over every tensor's name, type, shape and content (`sha256`). A flipped bit, a missing tensor or the checkpoint of
another run is therefore noticed when it is loaded, and a kill between two writes cannot combine tensors with another step.
"""

from __future__ import annotations

import contextlib
import ctypes
import hashlib
import json
import logging
import math
import os
import platform
import subprocess
from collections.abc import Iterator, Mapping
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any, Literal

import safetensors
import torch
from safetensors.torch import load_file, save
from torch import Tensor

from recombine.attention.cpu import kernels as cpu_library
from recombine.foundation import native as compiler
from recombine.foundation.errors import InputError, find_schema_error
from recombine.foundation.files import parse_json, read_file, read_json, replace_file, require_regular, write_json
from recombine.training.schema import FILES, CheckpointInfo, ConfigFile, Json, MetricsRow

FORMAT = "recombine-run"
FORMAT_VERSION = 2
CHECKPOINT = "checkpoint.safetensors"
PREVIOUS_CHECKPOINT = "checkpoint-previous.safetensors"

_log = logging.getLogger(__name__)


def hash_config(config: Mapping[str, Any]) -> str:
    """The first 12 hexadecimal digits of SHA-256 of a configuration."""
    canonical = json.dumps(config, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(canonical.encode()).hexdigest()[:12]


class LockedError(InputError):
    """Another process is training the run."""


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
        """An existing run directory of this format and version."""
        run = cls(Path(path))
        if not run.path.is_dir():
            raise InputError(
                f"run directory {str(path)!r} does not exist: expected a folder that `recombine train` made"
            )
        if not (run.path / "config.json").exists() and (found := min(run.path.glob("*/config.json"), default=None)):
            raise InputError(f"{str(path)!r} is a folder of runs: expected one of them, such as {str(found.parent)!r}")
        _ = run.config
        return run

    @property
    def config(self) -> Json:
        """Names, versions and settings of task, model and training."""
        path = self.path / "config.json"
        config = read_json(path)
        if config.get("format") != FORMAT:
            raise InputError(f"{path} does not belong to a Recombine run: expected format {FORMAT!r}")
        if config.get("format_version") != FORMAT_VERSION:
            raise InputError(
                f"{self.path} has format version {config.get('format_version')!r}: expected {FORMAT_VERSION}"
            )
        if (fault := find_schema_error(config, ConfigFile, complete=False)) is not None:
            raise InputError(f"{path} is damaged: {fault}")
        return {part: config.get(part, {}) for part in ("task", "model", "training")}

    @property
    def origins(self) -> dict[str, str]:
        """Where the classes of the run came from, if they are not part of this package; by role, task or model."""
        origins: dict[str, str] = self.read_json("config.json").get("origins", {})
        return origins

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
        with open(self.path / "lock", "a") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise LockedError(
                    f"{self.path} is being trained by another process: expected to be the only one"
                ) from None
            yield

    def write_json(self, name: str, value: Mapping[str, Any]) -> None:
        write_json(self.path / name, value)

    def read_json(self, name: str, *, complete: bool = False) -> Json:
        """A file whose values have the declared types (`schema.py`); with `complete`, no key may be missing."""
        return read_json(self.path / name, FILES.get(name, Json), complete=complete)

    def write_bytes(self, name: str, content: bytes) -> None:
        replace_file(self.path / name, content)

    def append_metrics(self, row: MetricsRow) -> None:
        """Add a row. A score that is not a number is left out, because JSON has none."""
        finite = {
            split: {name: value for name, value in scores.items() if math.isfinite(value)}
            for split, scores in row.get("scores", {}).items()
        }
        with open(self.path / "metrics.jsonl", "a") as file:
            file.write(json.dumps({**row, "scores": finite} if "scores" in row else row, allow_nan=False) + "\n")

    def read_metrics(self, *, damaged: Literal["refuse", "drop"] = "refuse") -> list[Json]:
        """The rows in order; a last line that a kill cut short is left out. `drop` leaves out all rows from damage on."""
        path = self.path / "metrics.jsonl"
        lines = read_file(path).splitlines(keepends=True) if path.exists() else []
        rows: list[Json] = []
        for number, line in enumerate(lines, start=1):
            try:
                rows.append(parse_json(line, MetricsRow, f"{path} line {number}"))
            except InputError as error:
                if number == len(lines) and not line.endswith(b"\n"):
                    break
                if damaged == "refuse":
                    raise
                _log.warning("%s; it and the rows after it are dropped", error)
                break
        return rows

    def rewind_metrics(self, step: int) -> None:
        """Drop the rows after a step, because a resumed run writes them again."""
        rows = self.read_metrics(damaged="drop")
        kept = [json.dumps(row) + "\n" for row in rows if row["step"] <= step]
        self.write_bytes("metrics.jsonl", "".join(kept).encode())

    def save_checkpoint(self, tensors: Mapping[str, Tensor], info: CheckpointInfo) -> None:
        """Write a checkpoint; the one before it is kept until `drop_previous_checkpoint`."""
        content = encode_checkpoint(tensors, info, config_hash=hash_config(self.config))
        self._sync_metrics()  # rows before a checkpoint are not written again by a run that resumes from it
        self._keep_checkpoint()
        self.write_bytes(CHECKPOINT, content)
        self.write_json("checkpoint.json", info)

    def load_checkpoint(
        self, device: torch.device | str = "cpu", *, fall_back: bool = False
    ) -> tuple[dict[str, Tensor], CheckpointInfo] | None:
        """The last checkpoint with its info, or None if there is none yet. Damage is an error.

        With `fall_back`, a checkpoint that is missing or damaged is replaced by the one before it, if that is intact.
        """
        path, previous = self.path / CHECKPOINT, self.path / PREVIOUS_CHECKPOINT
        config_hash = hash_config(self.config)
        try:
            if path.exists():
                return read_checkpoint(path, config_hash=config_hash, device=device)
        except DamagedError as error:
            if not (fall_back and previous.exists()):
                raise
            _log.warning("%s; going on from the checkpoint before it", error)
        if not (fall_back and previous.exists()):
            return None
        return read_checkpoint(previous, config_hash=config_hash, device=device)

    def _sync_metrics(self) -> None:
        with contextlib.suppress(FileNotFoundError), open(self.path / "metrics.jsonl", "rb+") as file:
            os.fsync(file.fileno())

    def _keep_checkpoint(self) -> None:
        """Give the last checkpoint a second name, so that writing a new one never leaves the run without any."""
        temporary = self.path / f".{PREVIOUS_CHECKPOINT}.{os.getpid()}.tmp"
        with contextlib.suppress(OSError):  # there is none yet, or the file system has no links
            os.link(self.path / CHECKPOINT, temporary)
            os.replace(temporary, self.path / PREVIOUS_CHECKPOINT)

    def drop_previous_checkpoint(self) -> None:
        """Delete the checkpoint before the last one, which a finished run does not need."""
        (self.path / PREVIOUS_CHECKPOINT).unlink(missing_ok=True)


def find_runs(folder: Path | str) -> list[RunDirectory]:
    """The runs in a folder and its subfolders, by path; the folder may also be a run itself.

    A run of another format version, or one whose configuration is damaged, is left out with a warning.
    """
    folder = Path(folder)
    if not folder.is_dir():
        raise InputError(f"{str(folder)!r} is not a folder: expected one that holds run directories")
    runs = []
    for path in sorted(folder.rglob("config.json")):
        try:
            if read_json(path).get("format") != FORMAT:
                continue
            runs.append(RunDirectory.open(path.parent))
        except InputError as error:
            _log.warning("left out: %s", error)
    return runs


class DamagedError(InputError):
    """A checkpoint that cannot be used: truncated, altered, or of another run."""


def encode_checkpoint(tensors: Mapping[str, Tensor], info: CheckpointInfo, *, config_hash: str) -> bytes:
    """The content of a checkpoint file."""
    plain = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    header = {"info": json.dumps(info), "config": config_hash}
    return save(plain, {**header, "sha256": digest_tensors(plain, header)})


def read_checkpoint(
    path: Path, *, config_hash: str, device: torch.device | str = "cpu"
) -> tuple[dict[str, Tensor], CheckpointInfo]:
    """The tensors and the info of a checkpoint, if it is intact and belongs to the configuration."""
    try:
        header, info = read_header(path)
        sha256 = header.pop("sha256", None)
        tensors = load_file(path)
    except (safetensors.SafetensorError, OSError) as error:
        raise _unreadable(path, error) from None
    if sha256 != digest_tensors(tensors, header):
        raise DamagedError(f"{path} is damaged: its content does not match its SHA-256")
    if header.get("config") != config_hash:
        raise DamagedError(f"{path} belongs to another run: expected the checkpoint of the configuration next to it")
    return {name: tensor.to(device) for name, tensor in tensors.items()}, info


def read_header(path: Path) -> tuple[dict[str, str], CheckpointInfo]:
    """The header of a checkpoint, and the info in it. Neither is compared with the digest here."""
    try:
        require_regular(path)
        with safetensors.safe_open(path, framework="pt") as file:
            header: dict[str, str] = dict(file.metadata() or {})
        return header, parse_json(header["info"], CheckpointInfo, str(path))
    except InputError as error:
        raise DamagedError(str(error)) from None
    except (safetensors.SafetensorError, KeyError, OSError) as error:
        raise _unreadable(path, error) from None


def _unreadable(path: Path, error: Exception) -> DamagedError:
    return DamagedError(f"{path} cannot be read ({error}): expected a whole checkpoint of a Recombine run")


def digest_tensors(tensors: Mapping[str, Tensor], header: Mapping[str, Any] | None = None) -> str:
    """SHA-256 of tensors with their names, types and shapes, and of a header; about as fast as reading them from a disk."""
    digest = hashlib.sha256(json.dumps(header or {}, sort_keys=True).encode())
    for name in sorted(tensors):
        tensor = tensors[name].detach().cpu().contiguous()
        digest.update(f"\0{name} {tensor.dtype} {tuple(tensor.shape)}\0".encode())
        content: Any = tensor.reshape(-1).view(torch.uint8).numpy()  # no copy
        digest.update(content)
    return digest.hexdigest()


def record_environment(run: RunDirectory, device: torch.device, step: int, num_processes: int = 1) -> None:
    """Write `environment.json`. It keeps the environments of earlier steps; a change is logged."""
    current = describe_environment(device, num_processes)
    history: list[Json] = []
    if step > 0 and (run.path / "environment.json").exists():
        stored = run.read_json("environment.json")
        stretches = [*stored.pop("previous", []), stored]
        history = [stretch for stretch in stretches if stretch.get("first_step", 0) < step]
    latest = {**current, "first_step": step}
    if history:
        if changes := describe_changes(history[-1], current):
            _log.warning("%s resumes at step %d in another environment: %s", run.path, step, changes)
        else:
            latest = history.pop()
    run.write_json("environment.json", {**latest, "previous": history})


def describe_changes(before: Json, after: Json) -> str:
    """The differences between two environments, in one line."""

    def shorten(value: object) -> str:
        return text if len(text := str(value)) <= 24 else f"{text[:12]}…"

    changed = [name for name in after if before.get(name) != after[name]]
    return ", ".join(f"{name} {shorten(before.get(name))} → {shorten(after[name])}" for name in changed)


SOURCE_SUFFIXES = (".py", ".c", ".h")


def describe_environment(device: torch.device | str, num_processes: int = 1) -> Json:
    """The environment of this process, for computations on `device` by this number of processes."""
    return {
        "recombine": metadata.version("recombine"),
        "source_sha256": hash_source(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "platform": platform.platform(),
        "processor": compiler.name_processor(),
        "device": str(device),
        "num_threads": torch.get_num_threads(),
        "num_processes": num_processes,
        "kernel": describe_kernel(device),
    }


@cache  # it is the source that this process has loaded
def hash_source() -> str:
    """SHA-256 of the package's Python and C source, the same from a checkout and from an installed wheel."""
    return hash_folder(Path(__file__).parent.parent)


def hash_folder(root: Path) -> str:
    digest = hashlib.sha256()
    for path in sorted(path for path in root.rglob("*") if path.suffix in SOURCE_SUFFIXES):
        digest.update(str(path.relative_to(root).as_posix()).encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()


def describe_kernel(device: torch.device | str) -> str:
    """The attention kernel that training on `device` uses: its name, and how it was compiled or why it is not used."""
    chosen = os.environ.get("RECOMBINE_KERNEL", "auto")
    if chosen not in ("auto", "cpu"):
        return f"{chosen} (RECOMBINE_KERNEL)"
    if torch.device(device).type != "cpu":
        return "reference (the compiled kernel is for CPUs)"
    library = cpu_library.open_library()
    if not isinstance(library, ctypes.CDLL):
        return f"reference ({library})"
    build = Path(library._name).stem.rsplit("-", 1)[-1]  # the hash of the compiled file
    return f"cpu (build {build}, {_describe_compiler()})"


@cache
def _describe_compiler() -> str:
    command = compiler.find_compiler()
    if command is None:
        return "compiled earlier"
    shown = subprocess.run([*command, "--version"], capture_output=True, text=True, check=False).stdout
    return " ".join([*shown.splitlines()[:1], *compiler.FLAGS])
