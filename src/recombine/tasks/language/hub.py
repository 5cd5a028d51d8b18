"""Data sets of Hugging Face, read in streaming mode and kept as JSON lines that the rest of the code reads like any text.

`NAME:CONFIG` names a configuration of a data set, such as `allenai/c4:en`; a name may also be a local folder that the
package `datasets` can load. Documents are written in files of `DOCUMENTS_PER_FILE`, each whole or absent, so a download
that was stopped continues after its last whole file.
"""

from __future__ import annotations

import gzip
import hashlib
import itertools
import json
import logging
from pathlib import Path
from typing import Any

from recombine.errors import InputError
from recombine.extras import import_extra
from recombine.files import data_folder, replace_file
from recombine.tasks.language.sources import TEXT_FIELD

DOCUMENTS_PER_FILE = 10_000

_log = logging.getLogger(__name__)


def download_dataset(name: str, num_documents: int | None) -> Path:
    """The folder with the documents of a data set, downloaded where they are missing."""
    key = hashlib.sha256(f"{name} {num_documents}{_describe_files(name)}".encode()).hexdigest()[:16]
    folder = data_folder("language", "datasets", key)
    if (folder / "complete").exists():
        return folder
    first = len(list(folder.glob("*.jsonl.gz")))
    documents = iter(_open(name).skip(first * DOCUMENTS_PER_FILE))
    for number in itertools.count(first):
        room = DOCUMENTS_PER_FILE if num_documents is None else num_documents - number * DOCUMENTS_PER_FILE
        try:
            rows = list(itertools.islice(documents, max(0, min(room, DOCUMENTS_PER_FILE))))
        except Exception as error:  # of many kinds, as in `_open`
            raise InputError(
                f"dataset {name!r} cannot be read after {number * DOCUMENTS_PER_FILE} documents ({_reason(error)}): "
                "expected a connection that lasts; the same command goes on from there"
            ) from None
        texts = [_text_of(row, name) for row in rows]
        if texts:
            lines = "".join(json.dumps({TEXT_FIELD: text}) + "\n" for text in texts)
            replace_file(folder / f"{number:06d}.jsonl.gz", gzip.compress(lines.encode(), mtime=0))
            _log.info("%s: %d documents", name, number * DOCUMENTS_PER_FILE + len(texts))
        if len(texts) < DOCUMENTS_PER_FILE:
            break
    replace_file(folder / "complete", name.encode())
    return folder


def _open(name: str) -> Any:
    datasets = import_extra("datasets", extra="language", user=f"dataset {name!r}")
    path, _, config = (name, "", "") if Path(name).is_dir() else name.partition(":")
    try:
        return datasets.load_dataset(path, config or None, split="train", streaming=True, **_forbid_code(datasets))
    except Exception as error:  # of many kinds: no network, no such data set, no such configuration
        raise InputError(
            f"dataset {name!r} cannot be loaded ({_reason(error)}): expected the name of a data set with a split 'train'"
        ) from None


def _forbid_code(datasets: Any) -> dict[str, bool]:
    """Flags that keep a data set from running code of its own; since version 4 it cannot, and the flag is gone."""
    return {"trust_remote_code": False} if int(datasets.__version__.partition(".")[0]) < 4 else {}


def _reason(error: Exception) -> str:
    """The first line of an error."""
    return str(error).splitlines()[0] if str(error) else type(error).__name__


def _describe_files(name: str) -> str:
    """The files of a data set in a local folder with their sizes and times, so that another version of it is read again."""
    folder = Path(name)
    if not folder.is_dir():
        return ""
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    return json.dumps([[str(path), path.stat().st_size, path.stat().st_mtime_ns] for path in files])


def _text_of(row: Any, name: str) -> str:
    if not isinstance(row.get(TEXT_FIELD), str):
        raise InputError(
            f"dataset {name!r} has no text in {TEXT_FIELD!r}: expected such a column (its columns: {', '.join(row)})"
        )
    return str(row[TEXT_FIELD])
