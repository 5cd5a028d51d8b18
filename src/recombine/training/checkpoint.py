"""A checkpoint as bytes: tensors in safetensors format, protected by a digest.

The header carries the step and the times (`info`), the hash of the run's configuration (`config`), and SHA-256 over both
and over every tensor's name, type, shape and content (`sha256`). A flipped bit, a removed tensor or the checkpoint of
another run is therefore noticed when it is loaded.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

import safetensors
import torch
from safetensors.torch import load_file, save
from torch import Tensor

from recombine.foundation.errors import InputError, find_schema_error
from recombine.foundation.files import require_regular
from recombine.training.schema import CheckpointInfo


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
        info = json.loads(header["info"])
    except (safetensors.SafetensorError, KeyError, ValueError, OSError, RecursionError) as error:
        raise _unreadable(path, error) from None
    fault = find_schema_error(info, CheckpointInfo, complete=False)
    if fault is None and "step" not in info:
        fault = "it does not say at which step it was saved"
    if fault is not None:
        raise DamagedError(f"{path} is damaged: {fault}")
    return header, cast(CheckpointInfo, info)


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
