"""How well the strengths of modules can be decoded from each layer of a run: ridge regression on trained compositions.

The fast part of `probe_run`, for many runs at once: no pictures, no interventions. A module that no training composition has
cannot be learned by a decoder either and is left out. R² is 0 where held-out compositions have no other module.
`decodability.json` has the keys of `Decodability`.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TypedDict, cast

from torch import nn

from recombine.inside import (
    SPLITS,
    Measurement,
    MeasurementKey,
    SiteDecoder,
    collect_activations,
    decode_components,
    find_best_site,
)
from recombine.models import Code
from recombine.tasks import Task
from recombine.training import Json, load_run

DECODABILITY = Measurement(name="decodability", version=1)
NUM_INSTANCES = 2_000


class SplitR2(TypedDict):
    """R² pooled over the modules that are trained."""

    id: float
    ood: float


class SiteR2(SplitR2):
    """R² of a site, and that of the same site before training."""

    untrained: SplitR2


class DecodabilityNumbers(TypedDict):
    """What is measured."""

    num_instances: int
    best_site: str  # with the best score on training compositions left out of the fit: id and ood are not looked at
    sites: dict[str, SiteR2]


class Decodability(DecodabilityNumbers):
    """`decodability.json`."""

    key: MeasurementKey


def measure_decodability(
    path: Path | str, *, num_instances: int = NUM_INSTANCES, device: str = "auto", code: Sequence[Code] = ()
) -> Json:
    """The decodability of each layer of a run (see `Decodability`), kept in its directory."""

    def measure() -> DecodabilityNumbers:
        _, config, model = load_run(path, device, code=code)
        trained = decode_sites(model, config.task, num_instances=num_instances)
        untrained_model = config.build_model().to(next(model.parameters()).device)
        untrained = decode_sites(untrained_model, config.task, num_instances=num_instances)
        sites: dict[str, SiteR2] = {
            site: {**_read_r2(decoder), "untrained": _read_r2(untrained[site])} for site, decoder in trained.items()
        }
        best = find_best_site(trained, metrics=("r2",)) or next(iter(trained))
        return {"num_instances": num_instances, "best_site": best, "sites": sites}

    return DECODABILITY.load_or_measure(path, {"num_instances": num_instances}, measure, code=code)


def decode_sites(model: nn.Module, task: Task, *, num_instances: int) -> dict[str, SiteDecoder]:
    """Decoders of the residual stream of each layer and of the code of a bottleneck; of other models, of every site."""
    device = next(model.parameters()).device
    activations = collect_activations(model, task.reading(), num_instances=num_instances, device=device)
    decoders = decode_components(activations, seed=task.seed, controlled=False)
    chosen = {site: decoder for site, decoder in decoders.items() if site == "code" or site.startswith("residual.")}
    return chosen or decoders


def _read_r2(decoder: SiteDecoder) -> SplitR2:
    return cast(SplitR2, {split: decoder[split]["r2"] for split in SPLITS})
