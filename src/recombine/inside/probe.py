"""Everything that can be asked of one model, in order: collect, decode, picture, ablate, swap.

`examine` takes any model on any task, `examine_activations` a file of activations. Both return an `Examination`, whose
numbers are described in `recombine.inside.result`. A part that cannot be done is skipped with its reason.

Probe a run: examine its trained model next to the same model before training, and keep what was found.

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
import torch
from torch import nn

from recombine.foundation.errors import InputError
from recombine.foundation.files import read_npz
from recombine.foundation.progress import track
from recombine.inside.cache import Measurement, MeasurementKey
from recombine.inside.collect import can_intervene, collect_activations, has_codes, show_codes
from recombine.inside.decode import MAX_FITTING_ROWS, decode_components, find_best_site, keep_scores
from recombine.inside.intervene import measure_ablations, measure_swaps
from recombine.inside.result import (
    FORMAT_VERSION,
    SPLITS,
    VARIANT_KEYS,
    DecoderKey,
    Examination,
    Observations,
    Probe,
    Say,
    load_observations,
    say_nothing,
    start_numbers,
)
from recombine.inside.structure import (
    NUM_SAMPLED,
    PERPLEXITY,
    embed,
    measure_similarity,
    measure_structure,
    sample_rows,
)
from recombine.models.registry import Code
from recombine.tasks.base import Task
from recombine.tasks.reading import Reading, Variant
from recombine.training.benchmark import load_run
from recombine.training.config import RunConfig
from recombine.training.devices import resolve_device
from recombine.training.directory import RunDirectory
from recombine.training.schema import Json

NUM_INSTANCES = 4_000
MAX_VARIANT_INSTANCES = 2_000  # per split, of variants, whose codes alone are decoded


def examine(
    model: nn.Module,
    task: Task,
    *,
    untrained: nn.Module | None = None,
    sites: Sequence[str] | None = None,
    num_instances: int = NUM_INSTANCES,
    num_pictured: int = NUM_SAMPLED,
    tsne: bool = True,
    save_activations: bool = False,
    device: str = "auto",
    say: Say = say_nothing,
) -> Examination:
    """Examine a model on a task; `sites` names submodules to look at, `untrained` a model to compare with."""
    torch_device = resolve_device(device)
    model, reading = model.to(torch_device), task.reading()
    model = model if has_codes(model) else show_codes(model)
    examination = Examination(numbers=start_numbers(num_instances, reading), say=say)
    with examination.part("collect"):
        observations = collect_activations(
            model, reading, num_instances=num_instances, sites=sites, device=torch_device
        )
    if "collect" in examination.numbers["skipped"]:
        raise InputError(examination.numbers["skipped"]["collect"])
    examination.describe(observations)
    _decode(examination, "decoders", observations, task.seed)
    variants = reading.variants if has_codes(model) else {}
    observed = {name: _decode_variant(examination, name, model, variant) for name, variant in variants.items()}
    before: dict[str, Observations | None] = {}
    if untrained is not None:
        untrained = untrained.to(torch_device)
        before["all"] = _decode_untrained(examination, "decoders", untrained, reading, num_instances, sites)
        for name, variant in variants.items():
            num_variant = min(num_instances, MAX_VARIANT_INSTANCES)
            before[name] = _decode_untrained(examination, VARIANT_KEYS[name], untrained, variant, num_variant, ())
    examination.arrays |= observations.as_arrays(kinds=("",) if save_activations else ("codes",))
    _picture(examination, observed.get("pictured") or observations, task.seed, tsne, size=num_pictured)
    _compare_structure(examination, before.get("pictured" if observed.get("pictured") else "all"), num_pictured)
    _intervene(examination, model, task, reading, torch_device)
    return examination.close()


def examine_activations(path: Path | str, *, tsne: bool = True, seed: int = 0, say: Say = say_nothing) -> Examination:
    """Examine activations from a file (see `observations`), of any model anywhere."""
    observations = load_observations(path)
    examination = Examination(numbers=start_numbers(len(observations.split)), say=say)
    examination.describe(observations)
    _decode(examination, "decoders", observations, seed)
    if "decoders" not in examination.numbers:
        raise InputError(f"{path}: {examination.numbers['skipped']['decode']}")
    _picture(examination, observations, seed, tsne, kinds=("",))
    return examination.close()


def _decode(examination: Examination, key: DecoderKey, observations: Observations, seed: int) -> None:
    numbers = examination.numbers
    with examination.part("decode"):
        decoders = decode_components(observations, seed=seed)
        numbers[key] = decoders
        numbers["best_site"] = numbers.get("best_site") or find_best_site(decoders)


def _decode_variant(examination: Examination, name: Variant, model: nn.Module, variant: Reading) -> Observations | None:
    """Decode the codes of other instances."""
    num_instances = min(examination.numbers["num_instances"], MAX_VARIANT_INSTANCES)
    observations = None
    with examination.part("collect"):
        device = next(model.parameters()).device
        observations = collect_activations(model, variant, num_instances=num_instances, sites=(), device=device)
    if observations is None:
        return None
    _decode(examination, VARIANT_KEYS[name], observations, variant.task.seed)
    examination.numbers["reading"][name] = variant.instances
    return observations


def _decode_untrained(
    examination: Examination,
    key: DecoderKey,
    model: nn.Module,
    reading: Reading,
    num_instances: int,
    sites: Sequence[str] | None,
) -> Observations | None:
    """Add the scores that the same network had before training, fitted on as many rows; returns what was read from it."""
    num_instances = min(num_instances, 2 * MAX_FITTING_ROWS)
    observations = None
    with examination.part("collect"):
        device = next(model.parameters()).device
        observations = collect_activations(model, reading, num_instances=num_instances, sites=sites, device=device)
    if observations is None:
        return None
    with examination.part("decode"):
        decoders = examination.numbers.get(key) or {}
        for site, untrained in decode_components(observations, seed=reading.task.seed, controlled=False).items():
            for split in SPLITS:
                if site in decoders and split in decoders[site] and split in untrained:
                    decoders[site][split]["untrained"] = keep_scores(untrained[split])
    return observations


def _compare_structure(examination: Examination, untrained: Observations | None, size: int) -> None:
    """Add the purity that the codes of the same network had before training."""
    structure = examination.numbers.get("structure")
    if untrained is None or not structure:
        return
    rows = sample_rows(untrained, size)
    with examination.part("structure"):
        for site, colours in structure.items():
            if site in untrained.activations:
                before = measure_structure(untrained, site, rows)
                for colour in ("target", "module"):
                    if colour in colours and colour in before:
                        colours[colour]["untrained"] = before[colour]["purity"]


def _picture(
    examination: Examination,
    observations: Observations,
    seed: int,
    tsne: bool,
    kinds: tuple[str, ...] = ("codes.",),
    size: int = NUM_SAMPLED,
) -> None:
    """Structure, similarity and t-SNE of the codes."""
    sites = [name for name in observations.activations if name.startswith(kinds)]
    rows = sample_rows(observations, size)
    numbers = examination.numbers
    if not sites or len(rows) < 2:
        numbers["skipped"]["structure"] = "there are no latent codes" if not sites else "there are too few rows"
        return
    with examination.part("structure"):
        numbers["structure"] = {site: measure_structure(observations, site, rows) for site in sites}
        if observations.binary:
            numbers["similarity"] = {site: measure_similarity(observations, site) for site in sites}
    examination.arrays |= _sample_arrays(observations, rows, kinds)
    if not tsne:
        numbers["skipped"]["tsne"] = "not asked for"
        return
    with examination.part("tsne"):
        for site in track(sites, "t-SNE of sites"):
            examination.arrays[f"tsne.{site}"] = embed(observations.activations[site][rows], seed=seed)
        numbers["tsne"] = {"sites": sites, "num_rows": len(rows), "perplexity": PERPLEXITY}


def _sample_arrays(observations: Observations, rows: np.ndarray, kinds: tuple[str, ...]) -> Mapping[str, np.ndarray]:
    """The columns and codes of the rows that are pictured."""
    columns = {
        f"sample.{name}": values[rows]
        for name, values in observations.as_arrays(kinds=kinds).items()
        if len(values) == len(observations.split)
    }
    return {
        **columns,
        "sample.compositions": np.array(observations.compositions),
        "sample.modules": np.array(observations.modules),
    }


def _intervene(examination: Examination, model: nn.Module, task: Task, reading: Reading, device: torch.device) -> None:
    """Ablate and swap codes."""
    numbers = examination.numbers
    if not can_intervene(model):
        reason = "the codes of this model cannot be changed (its forward takes no code_maps)"
        numbers["skipped"] |= {"ablate": reason, "swap": reason}
        return
    num_instances = numbers["num_instances"]
    with examination.part("ablate"):
        batch = task.sample("test", 0, batch_size=1)
        metric = reading.choose_metric(task.metrics(task.chance(batch), batch))
        numbers["ablations"] = measure_ablations(model, task, metric=metric, num_instances=num_instances, device=device)
    with examination.part("swap"):
        numbers["swap"] = measure_swaps(model, reading, num_instances=num_instances, device=device)


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
