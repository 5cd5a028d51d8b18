"""Probe a model: collect activations, decode modules from them, embed the codes, ablate and swap them.

`probe_model` accepts any model and task, `probe_activations` a file of activations, and `probe_run` a run directory, where it
caches the result. All return a `ProbeResult`. A part that the model or the data does not allow is skipped with its reason.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from torch import nn

from recombine.foundation.display import track
from recombine.foundation.errors import InputError
from recombine.inside.collect import (
    ROW_SPLITS,
    Activations,
    can_intervene,
    collect_activations,
    expose_codes,
    has_codes,
    load_activations,
)
from recombine.inside.decode import MAX_FITTING_ROWS, decode_components, drop_baselines, find_best_site
from recombine.inside.intervene import measure_ablations, measure_swaps
from recombine.inside.result import (
    FORMAT_VERSION,
    PROBE,
    SPLITS,
    DecoderKey,
    Neighbourhood,
    ProbeNumbers,
    ProbeResult,
    ReadingDescription,
    SiteDecoder,
    describe_site,
)
from recombine.inside.structure import (
    NUM_SAMPLED,
    PERPLEXITY,
    embed,
    measure_similarity,
    measure_structure,
    sample_rows,
)
from recombine.models.base import Code
from recombine.tasks.base import Task
from recombine.tasks.reading import Reading
from recombine.training.benchmark import load_run
from recombine.training.directory import RunDirectory
from recombine.training.session import resolve_device

NUM_INSTANCES = 4_000
MAX_VARIANT_INSTANCES = 2_000  # per split, of variants, of which only the codes are decoded

Say = Callable[[str], None]


def probe_model(
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
    say: Say | None = None,
) -> ProbeResult:
    """Probe a model on a task. `sites` are names of submodules, `untrained` a model to compare with."""
    torch_device = resolve_device(device)
    model, reading = expose_codes(model.to(torch_device)), task.reading()
    untrained = None if untrained is None else untrained.to(torch_device)
    variants = reading.variants if has_codes(model) else {}
    num_variant = min(num_instances, MAX_VARIANT_INSTANCES)
    probe = _Probe(num_instances, say, reading)
    activations, before = probe.decode_reading("decoders", model, untrained, reading, num_instances, sites)
    if activations is None:
        raise InputError(probe.numbers["skipped"]["collect"])
    drawn: tuple[Activations, Activations | None] = activations, before
    for name, variant in variants.items():
        varied, before = probe.decode_reading(f"decoders_{name}", model, untrained, variant, num_variant, ())
        if varied is not None:
            probe.numbers["reading"][name] = variant.instances  # type: ignore[literal-required]
            drawn = (varied, before) if name == reading.pictured else drawn
    probe.arrays |= activations.columns(("",) if save_activations else ("codes",))
    probe.embed(*drawn, seed=task.seed, tsne=tsne, size=num_pictured)
    probe.intervene(model, task, reading, torch_device)
    return probe.finish()


def probe_activations(path: Path | str, *, tsne: bool = True, seed: int = 0, say: Say | None = None) -> ProbeResult:
    """Probe a file of activations of any model (see `recombine.inside.collect`)."""
    activations = load_activations(path)
    probe = _Probe(len(activations.split), say)
    probe.describe(activations)
    probe.decode("decoders", activations, seed)
    if "decoders" not in probe.numbers:
        raise InputError(f"{path}: {probe.numbers['skipped']['decode']}")
    probe.embed(activations, None, seed=seed, tsne=tsne, kinds=("",))
    return probe.finish()


class UnsavedProbeError(OSError):
    """A probe that could not be written. Its `result` took minutes and can still be shown."""

    def __init__(self, error: OSError, result: ProbeResult) -> None:
        super().__init__(error.errno, error.strerror, error.filename)
        self.result = result


def probe_run(
    path: Path | str,
    *,
    num_instances: int = NUM_INSTANCES,
    num_pictured: int = NUM_SAMPLED,
    tsne: bool = True,
    save_activations: bool = False,
    device: str = "auto",
    say: Say | None = None,
    code: Sequence[Code] = (),
) -> ProbeResult:
    """Probe the trained model of a run next to the same model before training; cached in the run directory.

    `code` names the run's classes from outside the package. If the files cannot be written, an `UnsavedProbeError` is raised.
    """
    arguments: dict[str, Any] = {
        "num_instances": num_instances,
        "num_pictured": num_pictured,
        "tsne": tsne,
        "save_activations": save_activations,
    }
    run = RunDirectory.open(path)
    key = PROBE.make_key(run, arguments, code)
    cached = ProbeResult.load(run, key)
    if cached is not None:
        return cached
    run, config, model = load_run(path, device, code=code)
    result = probe_model(model, config.task, untrained=config.build_model(), device=device, say=say, **arguments)
    result.numbers.update({"run": run.path.name, "task": config.task.name, "label": config.model.label})
    try:
        result.write(run, key)
    except OSError as error:
        raise UnsavedProbeError(error, result) from error
    return ProbeResult.load(run, key) or result


def is_probed(run: RunDirectory, *, num_instances: int | None = None, code: Sequence[Code] = ()) -> bool:
    """Whether a run has a probe of its current checkpoint and of the current code, on any or on so many instances."""
    try:
        stored = PROBE.load_current(run)
    except InputError:
        return False
    if stored is None or "key" not in stored or num_instances not in (None, stored["num_instances"]):
        return False
    return ProbeResult.load(run, PROBE.make_key(run, stored["key"]["arguments"], code)) is not None


class _Probe:
    """A probe in progress: its numbers and arrays, the time of each part, and the reasons for what was skipped."""

    def __init__(self, num_instances: int, say: Say | None, reading: Reading | None = None) -> None:
        self.say = say
        self.arrays: dict[str, np.ndarray] = {}
        self.numbers: ProbeNumbers = {
            "version": FORMAT_VERSION,
            "num_instances": num_instances,
            "modules": [],
            "num_compositions": {},
            "sites": [],
            "skipped": {},
            "seconds": {},
            "tsne_share": 0.0,
        }
        if reading is not None:
            described = {"instances": reading.instances, "codes": reading.codes, "labels": reading.labels}
            self.numbers["reading"] = cast(ReadingDescription, described)

    @contextmanager
    def part(self, name: str) -> Iterator[None]:
        """Time a part. If the model or the data does not allow it, record the reason and continue."""
        if self.say is not None:
            self.say(name)
        start = time.perf_counter()
        try:
            yield
        except InputError as error:
            self.numbers["skipped"][name] = str(error)
        seconds = self.numbers["seconds"]
        seconds[name] = round(seconds.get(name, 0.0) + time.perf_counter() - start, 3)

    def describe(self, activations: Activations) -> None:
        """Record sites, modules and numbers of compositions."""
        numbers = self.numbers
        numbers["skipped"] |= activations.skipped
        if not activations.count_compositions("ood"):
            numbers["skipped"]["ood"] = "there are no rows of ood: nothing can be said about new compositions"
        numbers["modules"] = list(activations.modules)
        numbers["num_compositions"] = {split: activations.count_compositions(split) for split in ROW_SPLITS}
        numbers["sites"] = [describe_site(name) for name in activations.by_site]

    def decode(self, key: DecoderKey, activations: Activations, seed: int) -> None:
        with self.part("decode"):
            decoders = decode_components(activations, seed=seed)
            self.numbers[key] = decoders  # type: ignore[literal-required]
            self.numbers["best_site"] = self.numbers.get("best_site") or find_best_site(decoders)

    def decode_reading(
        self,
        key: DecoderKey,
        model: nn.Module,
        untrained: nn.Module | None,
        reading: Reading,
        num_instances: int,
        sites: Sequence[str] | None,
    ) -> tuple[Activations | None, Activations | None]:
        """Decode the activations of a model and of the same model before training; returns both activations."""
        device = next(model.parameters()).device
        activations = before = None
        with self.part("collect"):
            activations = collect_activations(model, reading, num_instances=num_instances, sites=sites, device=device)
        if activations is None:
            return None, None
        if key == "decoders":
            self.describe(activations)
        self.decode(key, activations, reading.task.seed)
        if untrained is None:
            return activations, None
        num_instances = min(num_instances, 2 * MAX_FITTING_ROWS)  # the rows that the decoders are fitted on are as many
        with self.part("collect"):
            before = collect_activations(untrained, reading, num_instances=num_instances, sites=sites, device=device)
        if before is not None:
            with self.part("decode"):
                decoders: dict[str, SiteDecoder] = cast(Any, self.numbers).get(key, {})
                found = decode_components(before, seed=reading.task.seed, controlled=False)
                for site in decoders.keys() & found.keys():
                    for split in SPLITS:
                        if split in decoders[site] and split in found[site]:
                            decoders[site][split]["untrained"] = drop_baselines(found[site][split])
        return activations, before

    def embed(
        self,
        activations: Activations,
        before: Activations | None,
        *,
        seed: int,
        tsne: bool,
        kinds: tuple[str, ...] = ("codes.",),
        size: int = NUM_SAMPLED,
    ) -> None:
        """Structure, similarity and t-SNE of the codes, and the purity of those before training."""
        sites = [name for name in activations.by_site if name.startswith(kinds)]
        rows = sample_rows(activations, size)
        if not sites or len(rows) < 2:
            reason = "there are too few rows" if sites else "there are no latent codes"
            self.numbers["skipped"]["structure"] = reason
            return
        with self.part("structure"):
            structure = {site: measure_structure(activations, site, rows) for site in sites}
            if before is not None:
                for site in before.by_site.keys() & structure.keys():
                    untrained = measure_structure(before, site, sample_rows(before, size))
                    for colour, found in cast(dict[str, Neighbourhood], structure[site]).items():
                        found["untrained"] = cast(dict[str, Neighbourhood], untrained)[colour]["purity"]
            self.numbers["structure"] = structure
            if activations.binary:
                self.numbers["similarity"] = {site: measure_similarity(activations, site) for site in sites}
        self.arrays |= {f"sample.{name}": values for name, values in activations.columns(kinds, rows).items()}
        if not tsne:
            self.numbers["skipped"]["tsne"] = "not requested"
            return
        with self.part("tsne"):
            for site in track(sites, "t-SNE of sites"):
                self.arrays[f"tsne.{site}"] = embed(activations.by_site[site][rows], seed=seed)
            self.numbers["tsne"] = {"sites": sites, "num_rows": len(rows), "perplexity": PERPLEXITY}

    def intervene(self, model: nn.Module, task: Task, reading: Reading, device: torch.device) -> None:
        """Ablate and swap codes."""
        if not can_intervene(model):
            reason = "the codes of this model cannot be changed (its forward takes no code_maps)"
            self.numbers["skipped"] |= {"ablate": reason, "swap": reason}
            return
        options: dict[str, Any] = {"num_instances": self.numbers["num_instances"], "device": device}
        with self.part("ablate"):
            batch = task.sample("test", 0, batch_size=1)
            metrics = list(task.metrics(task.chance(batch), batch))
            metric = next((name for name in metrics if name.endswith("_pooled")), metrics[0])
            self.numbers["ablations"] = measure_ablations(model, task, metric=metric, **options)
        with self.part("swap"):
            self.numbers["swap"] = measure_swaps(model, reading, **options)

    def finish(self) -> ProbeResult:
        """Sum the times, and replace NaN and infinity, which JSON does not have, by None."""
        seconds = self.numbers["seconds"]
        total = seconds["total"] = round(sum(seconds.values()), 3)
        self.numbers["tsne_share"] = round(seconds.get("tsne", 0.0) / max(total, 1e-9), 4)
        return ProbeResult(numbers=_replace_nonfinite(self.numbers), arrays=self.arrays)


def _replace_nonfinite(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _replace_nonfinite(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_replace_nonfinite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
