"""The directory of a run, written atomically and read strictly. `schema.py` has the types of its JSON files.

    runs/<name>-<hash of the configuration>/
        config.json  split.json  environment.json       configuration, compositions, and the code and machine
        metrics.jsonl                                    one JSON object per line, written during training
        checkpoint.safetensors  checkpoint.json          the last checkpoint, and its step and times for people to read
        checkpoint-previous.safetensors                  the one before it, during training
        result.json                                      written when the run is finished

Every JSON file and every row of metrics has a digest (`foundation/files.py`) whose owner is the run, by the hash of its
configuration. The header of a checkpoint has its step and times (`info`), the same hash (`config`), and SHA-256 over both and
over every tensor (`sha256`), so a kill between two writes cannot combine tensors with another step. Runs from versions without
digests are checked by what they have: the hash of the configuration in the header of the checkpoint, and the sums that the
scores were computed from. Reading JSON needs no torch.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import math
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from recombine.foundation.errors import InputError, find_schema_error
from recombine.foundation.files import (
    METRICS,
    RESULT,
    add_digest,
    check_digest,
    open_file,
    parse_json,
    read_json,
    read_stored,
    remove_abandoned,
    replace_file,
    temporary_path,
    write_json,
)
from recombine.training.schema import FILES, CheckpointInfo, ConfigFile, Json, MetricsRow

if TYPE_CHECKING:
    import torch
    from torch import Tensor

FORMAT = "recombine-run"
FORMAT_VERSION = 2
CHECKPOINT = "checkpoint.safetensors"
PREVIOUS_CHECKPOINT = "checkpoint-previous.safetensors"
CONFIG_OWNER = "config"  # of its digest; that of all other files is its hash
MAX_LINE = 1 << 20  # bytes of a row of metrics
MAX_HEADER = 100 << 20  # bytes of the header of a checkpoint, as safetensors limits it

_log = logging.getLogger(__name__)


def hash_config(config: Mapping[str, Any]) -> str:
    """The first 12 hexadecimal digits of SHA-256 of a configuration."""
    canonical = json.dumps(config, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(canonical.encode()).hexdigest()[:12]


class LockedError(InputError):
    """Another process is training the run."""


class ForeignError(InputError):
    """A folder with a `config.json` of something else than a run."""


class DamagedError(InputError):
    """A checkpoint that cannot be used: truncated, altered, or of another run."""


class RunDirectory:
    """One run on disk."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._config: tuple[object, Json, str] | None = None  # stamp of the file, content, hash

    @classmethod
    def create(cls, root: Path, name: str, config: Json, *, identity: Json | None = None) -> RunDirectory:
        """The directory of a configuration, named by the hash of its identity: a new one, or the one that is there."""
        run = cls(Path(root) / f"{name}-{hash_config(config if identity is None else identity)}")
        try:
            run.path.mkdir(parents=True, exist_ok=True)
            if not (run.path / "config.json").exists():
                contents = {"format": FORMAT, "format_version": FORMAT_VERSION, **config}
                run.write_json("config.json", contents)
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
        return _parts(self._read_config())

    @property
    def identity(self) -> str:
        """The hash of the configuration, which is the owner of the run's files."""
        self._read_config()
        assert self._config is not None
        return self._config[2]

    @property
    def origins(self) -> dict[str, str]:
        """Where the classes of the run came from, if they are not part of this package; by role, task or model."""
        origins: dict[str, str] = self._read_config().get("origins", {})
        return origins

    def _read_config(self) -> Json:
        """The content of `config.json`, read again only if the file has changed."""
        path = self.path / "config.json"
        with contextlib.suppress(OSError):
            status = path.stat()
            stamp = (status.st_ino, status.st_mtime_ns, status.st_size)
            if self._config is not None and self._config[0] == stamp:
                return self._config[1]
        stored = read_stored(path)
        content: Json = parse_json(stored, Json, str(path))
        if content.get("format") != FORMAT:
            raise ForeignError(f"{path} does not belong to a Recombine run: expected format {FORMAT!r}")
        if content.get("format_version") != FORMAT_VERSION:
            raise InputError(
                f"{self.path} has format version {content.get('format_version')!r}: expected {FORMAT_VERSION}"
            )
        if (fault := find_schema_error(content, ConfigFile, complete=False)) is not None:
            raise InputError(f"{path} is damaged: {fault}")
        owner = hash_config(_parts(content))
        if content.pop("digest", None) is not None:
            check_digest(stored, CONFIG_OWNER, str(path))
        elif (self.path / CHECKPOINT).exists():  # from a version without digests
            with contextlib.suppress(DamagedError):  # damage is named when it is loaded
                if read_header(self.path / CHECKPOINT)[0].get("config") != owner:
                    raise InputError(f"{path} holds another configuration than the run was trained with")
        self._config = stamp, content, owner
        return content

    @property
    def finished(self) -> bool:
        return (self.path / RESULT).exists()

    @contextlib.contextmanager
    def lock(self) -> Iterator[None]:
        """Keep two processes from training the same run at once; a killed process leaves no lock behind."""
        try:
            import fcntl
        except ImportError:  # no such locks on this platform
            yield
            return
        with open_file(self.path / "lock", "ab") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise LockedError(
                    f"{self.path} is being trained by another process: expected to be the only one"
                ) from None
            remove_abandoned(self.path, ".*.tmp")
            yield

    def write_json(self, name: str, value: Mapping[str, Any]) -> None:
        """Write a file with the digest of this run."""
        write_json(self.path / name, value, owner=CONFIG_OWNER if name == "config.json" else self.identity)

    def read_json(self, name: str, *, complete: bool = False) -> Json:
        """A file of this run whose values have the declared types (`schema.py`); with `complete`, no key may be missing.

        Scores that are not those of the sums in the same file are an error.
        """
        if name == "config.json":
            return dict(self._read_config())
        content: Json = read_json(self.path / name, FILES.get(name, Json), complete=complete, owner=self.identity)
        if name == RESULT and (fault := find_false_score(content)) is not None:
            raise InputError(f"{self.path / name} is damaged: {fault}")
        return content

    def write_bytes(self, name: str, content: bytes) -> None:
        replace_file(self.path / name, content)

    def append_metrics(self, row: MetricsRow) -> None:
        """Add a row. A score that is not a number is left out, because JSON has none."""
        finite = {
            split: {name: value for name, value in scores.items() if math.isfinite(value)}
            for split, scores in row.get("scores", {}).items()
        }
        text = json.dumps({**row, "scores": finite} if "scores" in row else row, allow_nan=False)
        with open_file(self.path / METRICS, "ab") as file:
            file.write(f"{add_digest(text, self.identity)}\n".encode())

    def read_metrics(self) -> list[Json]:
        """The rows in order; a last line that a kill cut short is left out."""
        return list(self.iterate_metrics())

    def iterate_metrics(self) -> Iterator[Json]:
        """The same, one row at a time, because there may be millions."""
        return (row for row, _ in self._read_rows())

    def _read_rows(self) -> Iterator[tuple[Json, int]]:
        """The rows, each with the position of its end in the file."""
        path, end, step = self.path / METRICS, 0, -1
        if not path.exists():
            return
        with open_file(path) as file:
            for number, line in enumerate(iter(lambda: file.readline(MAX_LINE), b""), start=1):
                source = f"{path} line {number}"
                if not line.endswith(b"\n") and len(line) < MAX_LINE:
                    return
                row: Json = parse_json(line, MetricsRow, source, owner=self.identity)
                if row["step"] <= step:
                    raise InputError(f"{source} is damaged: step is {row['step']} after step {step}")
                step, end = row["step"], end + len(line)
                yield row, end

    def rewind_metrics(self, step: int) -> None:
        """Drop the rows after a step, because a resumed run writes them again, and all rows from damage on."""
        end = 0
        try:
            for row, position in self._read_rows():
                if row["step"] > step:
                    break
                end = position
        except InputError as error:
            _log.warning("%s; it and the rows after it are dropped", error)
        if (self.path / METRICS).exists():
            with open_file(self.path / METRICS, "rb+") as file:
                file.truncate(end)

    def save_checkpoint(self, tensors: Mapping[str, Tensor], info: CheckpointInfo) -> None:
        """Write a checkpoint; the one before it is kept until `drop_previous_checkpoint`."""
        content = encode_checkpoint(tensors, info, config_hash=self.identity)
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
        try:
            if path.exists():
                return read_checkpoint(path, config_hash=self.identity, device=device)
        except DamagedError as error:
            if not (fall_back and previous.exists()):
                raise
            _log.warning("%s; going on from the checkpoint before it", error)
        if not (fall_back and previous.exists()):
            return None
        return read_checkpoint(previous, config_hash=self.identity, device=device)

    def _sync_metrics(self) -> None:
        with contextlib.suppress(FileNotFoundError), open_file(self.path / METRICS, "rb+") as file:
            os.fsync(file.fileno())

    def _keep_checkpoint(self) -> None:
        """Give the last checkpoint a second name, so that writing a new one never leaves the run without any."""
        temporary = temporary_path(self.path / PREVIOUS_CHECKPOINT)
        with contextlib.suppress(OSError):  # there is none yet, or the file system has no links
            os.link(self.path / CHECKPOINT, temporary)
            os.replace(temporary, self.path / PREVIOUS_CHECKPOINT)
        temporary.unlink(missing_ok=True)

    def drop_previous_checkpoint(self) -> None:
        """Delete the checkpoint before the last one, which a finished run does not need."""
        if (self.path / PREVIOUS_CHECKPOINT).exists():
            with contextlib.suppress(OSError):  # the folder is read-only, and the run is complete all the same
                (self.path / PREVIOUS_CHECKPOINT).unlink()


def _parts(config: Json) -> Json:
    """What determines the run, without its format and the places of its code."""
    return {part: config.get(part, {}) for part in ("task", "model", "training")}


def find_false_score(result: Json) -> str | None:
    """What is wrong with scores that do not follow from the sums in the same `result.json`, in words, or None."""
    scores = result.get("scores", {})
    for split, metrics in result.get("composition_sums", {}).items():
        for name, sums in metrics.items():
            if len(sums) != 2 or len(sums[0]) != len(sums[1]) or not any(sums[1]):
                return f"composition_sums.{split}.{name}: expected numerators and as many denominators, not all 0"
            if name not in scores.get(split, {}):
                continue
            value, expected = scores[split][name]["value"], sum(sums[0]) / sum(sums[1])
            if not math.isclose(value, expected, rel_tol=1e-6, abs_tol=1e-9):
                return f"scores.{split}.{name} is {value:.6g}, and its sums give {expected:.6g}"
    return None


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
            runs.append(RunDirectory.open(path.parent))
        except ForeignError:
            continue
        except InputError as error:
            _log.warning("left out: %s", error)
    return runs


def read_header(path: Path) -> tuple[dict[str, str], CheckpointInfo]:
    """The header of a checkpoint, and the info in it. Neither is compared with the digest here."""
    try:
        with open_file(path) as file:
            size = int.from_bytes(file.read(8), "little")
            header = json.loads(file.read(size) if size <= MAX_HEADER else b"")
        metadata: dict[str, str] = header["__metadata__"]
        return dict(metadata), parse_json(metadata["info"], CheckpointInfo, str(path))
    except InputError as error:
        raise DamagedError(str(error)) from None
    except (KeyError, TypeError, ValueError, RecursionError, OSError) as error:
        raise DamagedError(f"{path} cannot be read ({error}): expected a whole checkpoint of a Recombine run") from None


def encode_checkpoint(tensors: Mapping[str, Tensor], info: CheckpointInfo, *, config_hash: str) -> bytes:
    """The content of a checkpoint file."""
    from safetensors.torch import save

    plain = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    header = {"info": json.dumps(info), "config": config_hash}
    return save(plain, {**header, "sha256": digest_tensors(plain, header)})


def read_checkpoint(
    path: Path, *, config_hash: str, device: torch.device | str = "cpu"
) -> tuple[dict[str, Tensor], CheckpointInfo]:
    """The tensors and the info of a checkpoint, if it is intact and belongs to the configuration."""
    import safetensors
    from safetensors.torch import load_file

    header, info = read_header(path)
    sha256 = header.pop("sha256", None)
    try:
        tensors = load_file(path)
    except (safetensors.SafetensorError, OSError) as error:
        raise DamagedError(f"{path} cannot be read ({error}): expected a whole checkpoint of a Recombine run") from None
    if sha256 != digest_tensors(tensors, header):
        raise DamagedError(f"{path} is damaged: its content does not match its SHA-256")
    if header.get("config") != config_hash:
        raise DamagedError(f"{path} belongs to another run: expected the checkpoint of the configuration next to it")
    return {name: tensor.to(device) for name, tensor in tensors.items()}, info


def digest_tensors(tensors: Mapping[str, Tensor], header: Mapping[str, Any] | None = None) -> str:
    """SHA-256 of tensors with their names, types and shapes, and of a header; about as fast as reading them from a disk."""
    import torch

    digest = hashlib.sha256(json.dumps(header or {}, sort_keys=True).encode())
    for name in sorted(tensors):
        tensor = tensors[name].detach().cpu().contiguous()
        digest.update(f"\0{name} {tensor.dtype} {tuple(tensor.shape)}\0".encode())
        content: Any = tensor.reshape(-1).view(torch.uint8).numpy()  # no copy
        digest.update(content)
    return digest.hexdigest()
