"""Probe a run: examine its trained model next to the same model before training, and keep what was found.

`probe.json` and `probe.npz` are kept in the run directory as `cache` describes. The key of `probe.json` is also in
`probe.npz`, so that two files of different probes are never taken for one.
"""

from __future__ import annotations

import io
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import numpy as np

from recombine.archives import read_npz
from recombine.errors import InputError
from recombine.probe.cache import Measurement, MeasurementKey
from recombine.probe.examination import FORMAT_VERSION, Examination, Say, say_nothing
from recombine.probe.examine import NUM_INSTANCES, examine
from recombine.probe.schema import Probe
from recombine.probe.structure import NUM_SAMPLED
from recombine.registry import Code
from recombine.run import RunConfig, load_run
from recombine.store import Json, RunDirectory

PROBE = Measurement(name="probe", version=FORMAT_VERSION, content=Probe)
ARRAYS_FILE = "probe.npz"


class NotKeptError(OSError):
    """A probe that could not be written. Its `numbers` took minutes and can still be shown."""

    def __init__(self, error: OSError, numbers: Json) -> None:
        super().__init__(error.errno, error.strerror, error.filename)
        self.numbers = numbers


def probe_run(
    path: Path | str,
    *,
    num_instances: int = NUM_INSTANCES,
    num_pictured: int = NUM_SAMPLED,
    tsne: bool = True,
    save_activations: bool = False,
    device: str = "auto",
    say: Say = say_nothing,
    code: Sequence[Code] = (),
) -> Json:
    """The contents of `probe.json` (see `schema.Probe`): as kept if the arguments are the same, else examined anew.

    `code` names the run's classes from outside the package. Where nothing can be written, a `NotKeptError` has the contents.
    """
    arguments: dict[str, Any] = {
        "num_instances": num_instances,
        "num_pictured": num_pictured,
        "tsne": tsne,
        "save_activations": save_activations,
    }
    run = RunDirectory.open(path)
    key = PROBE.make_key(run, RunConfig.from_dict(run.config, code), arguments)
    kept = PROBE.read(run, key)
    if kept is not None and is_of(run, kept["key"]):
        return kept
    run, config, model = load_run(path, device, code=code)
    examination = examine(model, config.task, untrained=config.build_model(), device=device, say=say, **arguments)
    numbers = {"run": run.path.name, "task": config.task.name, "label": config.model.label, **examination.numbers}
    try:
        run.write_bytes(ARRAYS_FILE, pack_arrays(examination, key))
        PROBE.write(run, key, numbers)
    except OSError as error:
        raise NotKeptError(error, numbers) from error
    return run.read_json(PROBE.file)


def is_probed(run: RunDirectory, *, code: Sequence[Code] = ()) -> bool:
    """Whether a run has a probe of its current checkpoint and of the current code, whatever the arguments."""
    kept = PROBE.read_current(run, RunConfig.from_dict(run.config, code))
    return kept is not None and is_of(run, kept["key"])


def read_probe(run: RunDirectory) -> Probe | None:
    """`probe.json` of the current checkpoint; None if the run was not probed, or not since it was trained further.

    Needs no class of the run: versions of its code are compared by `is_probed` alone.
    """
    return cast(Probe | None, PROBE.read_current(run))


def pack_arrays(examination: Examination, key: MeasurementKey) -> bytes:
    """The arrays of an examination as an npz file, with the key of its numbers."""
    content = io.BytesIO()
    np.savez_compressed(content, allow_pickle=False, key=np.array(json.dumps(key)), **examination.arrays)
    return content.getvalue()


def is_of(run: RunDirectory, key: Mapping[str, Any]) -> bool:
    """Whether the arrays were written together with the numbers of this key."""
    try:
        return bool(json.loads(str(read_npz(run.path / ARRAYS_FILE)["key"])) == key)
    except (InputError, KeyError, ValueError, RecursionError):
        return False
