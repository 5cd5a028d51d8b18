"""Fuzz everything that parses a file, guided by coverage: `python tests/faults/fuzz_parsers.py -max_total_time=3600`.

Needs atheris. The first byte chooses the parser, the rest is its file. Anything but a value or an InputError is a failure:
it is written to standard error once, and the fuzzer goes on.
"""

from __future__ import annotations

import io
import json
import logging
import os
import random
import sys
import tempfile
import traceback
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import atheris
import numpy as np
import pyarrow as pa
import torch

with atheris.instrument_imports(include=["recombine"]):
    from recombine.foundation.errors import InputError
    from recombine.foundation.files import read_npz
    from recombine.inside.collect import load_activations
    from recombine.integrations.exchange.export import encode_parquet, read_columns
    from recombine.integrations.exchange.predictions import read_predictions
    from recombine.integrations.huggingface.prompts import read_prompts
    from recombine.sweeps.status import SweepReader, choose_best
    from recombine.training.benchmark import load_config
    from recombine.training.config import default_run
    from recombine.training.directory import RunDirectory, encode_checkpoint, read_checkpoint
    from recombine.training.schema import CheckpointInfo
    from recombine_papers.stored import read_lines

from mutations import damage

FOLDER = Path(tempfile.mkdtemp(dir="/dev/shm" if os.access("/dev/shm", os.W_OK) else None))
RUN = RunDirectory(FOLDER / "run")
PLAN = b"""{"format": "recombine-sweep", "format_version": 1, "source": "here", "runs": [
    {"run": "a-1", "settings": {"x": 1}, "searched": ["x"], "seed": 0, "steps": 10, "metric": "r2", "higher_is_better": true}
]}"""


def in_run(name: str, read: Callable[[RunDirectory], object]) -> Callable[[bytes], None]:
    def parse(content: bytes) -> None:
        (RUN.path / name).write_bytes(content)
        read(RUN)

    return parse


def in_file(name: str, read: Callable[[Path], object]) -> Callable[[bytes], None]:
    def parse(content: bytes) -> None:
        (FOLDER / name).write_bytes(content)
        read(FOLDER / name)

    return parse


def in_sweep(name: str) -> Callable[[bytes], None]:
    """The status of a sweep of one run, with one of its files."""
    folder = FOLDER / "sweep" / name.replace("/", "-")

    def parse(content: bytes) -> None:
        (folder / "a-1").mkdir(parents=True, exist_ok=True)
        (folder / "sweep.json").write_bytes(PLAN)
        (folder / name).write_bytes(content)
        status = SweepReader(folder).read()
        _ = status.best, status.seconds_left, choose_best(status).as_text()

    return parse


PARSERS: list[Callable[[bytes], None]] = [
    in_run("config.json", load_config),
    in_run("result.json", lambda run: run.read_json("result.json", complete=True)),
    in_run("split.json", lambda run: run.read_json("split.json", complete=True)),
    in_run("metrics.jsonl", lambda run: run.rewind_metrics(10)),
    in_file("checkpoint.safetensors", lambda path: read_checkpoint(path, config_hash="")),
    in_file("arrays.npz", read_npz),
    in_file("arrays.npz", load_activations),
    *(in_file(f"table.{suffix}", read_columns) for suffix in ("csv", "jsonl", "npz", "parquet")),
    *(in_file(f"table.{suffix}", read_predictions) for suffix in ("csv", "jsonl", "npz", "parquet")),
    in_sweep("sweep.json"),
    in_sweep("a-1/result.json"),
    in_sweep("a-1/metrics.jsonl"),
    in_file("prompts.jsonl", read_prompts),
    in_file("stored.jsonl", read_lines),
]
seen: Counter[str] = Counter()


def try_one(data: bytes) -> None:
    if not data:
        return
    number = data[0] % len(PARSERS)
    try:
        PARSERS[number](data[1:])
    except InputError:
        pass
    except Exception as error:
        trace = traceback.extract_tb(error.__traceback__)
        place = next(
            (f"{frame.filename}:{frame.lineno}" for frame in reversed(trace) if "/recombine/" in frame.filename), ""
        )
        key = f"{type(error).__name__} at {place}"
        seen[key] += 1
        if seen[key] == 1:
            print(f"FAILURE parser {number}: {key}: {error!r:.200} input {data[:200]!r}", file=sys.stderr, flush=True)


def mutate(data: bytes, max_size: int, seed: int) -> bytes:
    """Half the time as libFuzzer does, half the time with knowledge of JSON."""
    draw = random.Random(seed)
    if not data or draw.random() < 0.5:
        return atheris.Mutate(data, max_size)
    return (data[:1] + damage(data[1:], draw))[:max_size]


def seeds() -> list[bytes]:
    """A valid file for some parsers, to start from."""
    config = default_run("fuzzy_logic", "tiny").as_dict()
    valid = {0: json.dumps({"format": "recombine-run", "format_version": 2, "origins": {}, **config}).encode()}
    valid[3] = b'{"step": 1, "loss": 0.5, "learning_rate": 0.1, "seconds": 1.0}\n' * 3
    arrays = io.BytesIO()
    labels, split = np.array([0, 1, 0, 1]), np.array(["fit", "fit", "id", "ood"])
    np.savez(arrays, activations=np.ones((4, 2), np.float32), labels=labels, split=split)
    valid |= dict.fromkeys((5, 6, 9), arrays.getvalue())
    info: CheckpointInfo = {"step": 1, "loss": 0.5, "seconds": 1.0, "timed_steps": 1, "timed_seconds": 1.0}
    valid[4] = encode_checkpoint({"a": torch.ones(3)}, info, config_hash="")
    valid[10] = encode_parquet(pa.table({"instance": ["a", "b"], "prediction": [[0.5], [1.0]]}))
    valid[7] = b"instance,prediction\na,0.5\nb,[1]\n"
    valid[8] = b'{"instance": "a", "prediction": [0.5]}\n'
    valid[11] = f"row_id,answer\na-0-of-1-{0:012x},0.5\n".encode()
    valid[12] = f'{{"row_id": "a-0-of-1-{0:012x}", "answer": [0.5]}}\n'.encode()
    valid[14] = encode_parquet(pa.table({"row_id": [f"a-0-of-1-{0:012x}"], "answer": [[0.5]]}))
    valid[15] = PLAN
    valid[16] = b'{"seconds": 1.0, "scores": {"test": {"r2": {"value": 0.5}}}, "metrics": {"r2": {"title": "R2"}}}'
    valid[17] = b'{"step": 1, "seconds": 0.5}\n'
    valid[18] = b'{"text": "a b", "labels": ["a", "b"]}\n' * 4
    valid[19] = b'{"hash": "a", "seed": 0, "result": {"seconds": 1, "steps": 1, "scores": {}}, "measured": {}}\n'
    return [bytes([number]) + content for number, content in valid.items()]


def main() -> None:
    logging.disable()
    RUN.path.mkdir()
    corpus = FOLDER / "corpus"
    corpus.mkdir()
    for number, content in enumerate(seeds()):
        (corpus / str(number)).write_bytes(content)
    atheris.Setup([*sys.argv, str(corpus)], try_one, custom_mutator=mutate)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
