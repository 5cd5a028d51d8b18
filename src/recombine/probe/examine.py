"""All that can be asked of one model, in order: look, decode, picture, ablate, swap; what cannot be done says why.

`examine` takes any model on any task, `examine_activations` a file of activations, and `probe_run` a run directory, where it
leaves `probe.json` and `probe.npz`. Their keys are in the docstring of `recombine.probe`.
"""

from __future__ import annotations

import io
import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from recombine.errors import InputError
from recombine.probe.ablate import measure_ablations
from recombine.probe.collect import can_intervene, collect, has_codes
from recombine.probe.decode import MAX_FITTING_ROWS, decode
from recombine.probe.observations import Observations, load_observations
from recombine.probe.readings import Reading, read_task
from recombine.probe.structure import (
    NUM_SAMPLED,
    PERPLEXITY,
    embed,
    measure_similarity,
    measure_structure,
    sample_rows,
)
from recombine.probe.swap import SWAPS
from recombine.registry import Code
from recombine.run import load_run, resolve_device
from recombine.store import Json, RunDirectory
from recombine.tasks import Task

FORMAT_VERSION = 2
NUM_INSTANCES = 4_000
MAX_VARIANT = 2_000  # instances a split of other readings, of which only the codes are read

Say = Callable[[str], None]


def _say_nothing(_: str) -> None:
    pass


@dataclass(kw_only=True)
class Examination:
    """What was found: numbers for `probe.json`, arrays for `probe.npz`."""

    numbers: Json
    arrays: dict[str, np.ndarray] = field(default_factory=dict)
    say: Say = _say_nothing

    @contextmanager
    def part(self, name: str) -> Iterator[None]:
        """Time one part; what a user's model or data does not allow is recorded, and the rest goes on."""
        self.say(name)
        start = time.perf_counter()
        try:
            yield
        except InputError as error:
            self.numbers["skipped"][name] = str(error)
        seconds = self.numbers["seconds"]
        seconds[name] = round(seconds.get(name, 0) + time.perf_counter() - start, 3)

    def close(self) -> Examination:
        """Add up, and keep what JSON cannot say (NaN of a broken model) out of the numbers."""
        self.numbers = _finite(self.numbers)
        seconds = self.numbers["seconds"]
        seconds["total"] = round(sum(seconds.values()), 3)
        self.numbers["tsne_share"] = round(seconds.get("tsne", 0) / max(seconds["total"], 1e-9), 4)
        return self


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _finite(each) for key, each in value.items()}
    if isinstance(value, list):
        return [_finite(each) for each in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


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
    say: Say = _say_nothing,
) -> Examination:
    """Examine a model on a task; `sites` names submodules to look at, `untrained` a model to compare with."""
    place = resolve_device(device)
    reading = read_task(task)
    found = Examination(numbers=_start(num_instances, reading), say=say)
    with found.part("collect"):
        observations = collect(model.to(place), reading, num_instances=num_instances, sites=sites, device=place)
    if "collect" in found.numbers["skipped"]:
        raise InputError(found.numbers["skipped"]["collect"])
    _describe(found, observations)
    _decode(found, "decoders", observations, task.seed)
    pictured, fewer = observations, min(num_instances, MAX_VARIANT)
    variants = reading.variants if has_codes(model) else {}
    for name, variant in variants.items():
        with found.part("collect"):
            seen = collect(model, variant, num_instances=fewer, sites=(), device=place)
        _decode(found, f"decoders_{name}", seen, task.seed)
        found.numbers["reading"][name] = variant.instances
        pictured = seen if name == "pictured" else pictured
    if untrained is not None:
        untrained = untrained.to(place)
        _decode_untrained(found, "decoders", untrained, reading, num_instances, task.seed, sites)
        for name, variant in variants.items():
            _decode_untrained(found, f"decoders_{name}", untrained, variant, fewer, task.seed, ())
    found.arrays |= observations.as_arrays(kinds=("",) if save_activations else ("codes",))
    _picture(found, pictured, task.seed, tsne, size=num_pictured)
    _intervene(found, model, task, reading, num_instances, place)
    return found.close()


def examine_activations(path: Path | str, *, tsne: bool = True, seed: int = 0, say: Say = _say_nothing) -> Examination:
    """Examine activations from a file (see `observations`), of any model anywhere."""
    observations = load_observations(path)
    found = Examination(numbers=_start(len(observations.split), None), say=say)
    _describe(found, observations)
    _decode(found, "decoders", observations, seed)
    if "decoders" not in found.numbers:
        raise InputError(f"{path}: {found.numbers['skipped']['decode']}")
    _picture(found, observations, seed, tsne, kinds=("",))
    return found.close()


def probe_run(
    path: Path | str,
    *,
    num_instances: int = NUM_INSTANCES,
    num_pictured: int = NUM_SAMPLED,
    tsne: bool = True,
    save_activations: bool = False,
    device: str = "auto",
    say: Say = _say_nothing,
    code: Sequence[Code] = (),
) -> Json:
    """Examine a trained run beside its untrained self, and leave `probe.json` and `probe.npz` in its directory."""
    run, config, model = load_run(path, device, code=code)
    found = examine(
        model,
        config.task,
        untrained=config.build_model(),
        num_instances=num_instances,
        num_pictured=num_pictured,
        tsne=tsne,
        save_activations=save_activations,
        device=device,
        say=say,
    )
    about = {"run": run.path.name, "task": config.task.name, "label": config.model.label}
    numbers = {**about, **found.numbers}
    content = io.BytesIO()
    np.savez_compressed(content, allow_pickle=False, **found.arrays)
    run.write_bytes("probe.npz", content.getvalue())
    run.write_json("probe.json", numbers)
    return numbers


def is_probed(run: RunDirectory) -> bool:
    """Whether a run has the files of a probe of this version."""
    if not all((run.path / name).exists() for name in ("probe.json", "probe.npz")):
        return False
    return run.read_json("probe.json").get("version") == FORMAT_VERSION


def _start(num_instances: int, reading: Reading | None) -> Json:
    about = {} if reading is None else {"reading": reading.as_dict()}
    return {"version": FORMAT_VERSION, "num_instances": num_instances, **about, "skipped": {}, "seconds": {}}


def _describe(found: Examination, observations: Observations) -> None:
    found.numbers["skipped"] |= observations.skipped
    if not observations.count_compositions("ood"):
        found.numbers["skipped"]["ood"] = "there are no rows of ood: nothing can be said about new compositions"
    found.numbers["modules"] = list(observations.modules)
    found.numbers["num_compositions"] = {
        split: observations.count_compositions(split) for split in ("fit", "id", "ood")
    }
    found.numbers["sites"] = [
        {"name": name, "kind": kind or name, "layer": int(layer) if layer.isdigit() else None}
        for name in observations.activations
        for kind, _, layer in [name.rpartition(".")]
    ]


def _decode(found: Examination, key: str, observations: Observations, seed: int) -> None:
    with found.part("decode"):
        found.numbers[key] = decode(observations, seed=seed)
        found.numbers["best_site"] = found.numbers.get("best_site") or _find_best(found.numbers[key])


def _find_best(decoders: Json) -> str | None:
    """The site from which training compositions left out of the fit are decoded best."""
    metric = next(
        (name for name in ("f1", "r2") if any(name in each["cross_validated"] for each in decoders.values())), None
    )
    if metric is None:
        return None
    return max(decoders, key=lambda site: decoders[site]["cross_validated"].get(metric, -np.inf))


def _decode_untrained(
    found: Examination,
    key: str,
    model: nn.Module,
    reading: Reading,
    num_instances: int,
    seed: int,
    sites: Sequence[str] | None,
) -> None:
    """The scores that the same network had before training, fitted on as many rows."""
    num_instances = min(num_instances, 2 * MAX_FITTING_ROWS)
    with found.part("collect"):
        place = next(model.parameters()).device
        observations = collect(model, reading, num_instances=num_instances, sites=sites, device=place)
    with found.part("decode"):
        for site, each in decode(observations, seed=seed, controlled=False).items():
            for split in ("id", "ood"):
                if site in found.numbers.get(key, {}) and split in each:
                    scores = {name: value for name, value in each[split].items() if not isinstance(value, dict)}
                    found.numbers[key][site][split]["untrained"] = scores


def _picture(
    found: Examination,
    observations: Observations,
    seed: int,
    tsne: bool,
    kinds: tuple[str, ...] = ("codes.",),
    size: int = NUM_SAMPLED,
) -> None:
    """Structure, similarity and t-SNE of the codes."""
    sites = [name for name in observations.activations if name.startswith(kinds)]
    rows = sample_rows(observations, size)
    numbers: dict[str, Any] = found.numbers
    if not sites or len(rows) < 2:
        numbers["skipped"]["structure"] = "there are no latent codes" if not sites else "there are too few rows"
        return
    with found.part("structure"):
        numbers["structure"] = {site: measure_structure(observations, site, rows) for site in sites}
        if observations.binary:
            numbers["similarity"] = {site: measure_similarity(observations, site) for site in sites}
    chosen = {
        name: values
        for name, values in observations.as_arrays(kinds=kinds).items()
        if len(values) == len(observations.split)
    }
    found.arrays |= {f"sample.{name}": values[rows] for name, values in chosen.items()}
    found.arrays["sample.compositions"] = np.array(observations.compositions)
    found.arrays["sample.modules"] = np.array(observations.modules)
    if not tsne:
        numbers["skipped"]["tsne"] = "not asked for"
        return
    with found.part("tsne"):
        for site in sites:
            found.arrays[f"tsne.{site}"] = embed(observations.activations[site][rows], seed=seed)
        numbers["tsne"] = {"sites": sites, "num_rows": len(rows), "perplexity": PERPLEXITY}


def _intervene(
    found: Examination, model: nn.Module, task: Task, reading: Reading, num_instances: int, place: torch.device
) -> None:
    if not can_intervene(model):
        reason = f"the codes of {type(model).__name__} cannot be changed: its forward takes no code_maps"
        found.numbers["skipped"] |= {"ablate": reason, "swap": reason}
        return
    with found.part("ablate"):
        batch = task.sample("test", 0, batch_size=1)
        metric = reading.choose_metric(dict(task.metrics(task.chance(batch), batch)))
        found.numbers["ablations"] = measure_ablations(
            model, task, metric=metric, num_instances=num_instances, device=place
        )
    with found.part("swap"):
        if task.name not in SWAPS:
            raise InputError(f"task {task.name!r} has no swap experiment: expected one of {', '.join(SWAPS)}")
        found.numbers["swap"] = SWAPS[task.name](model, reading, num_instances=num_instances, device=place)
