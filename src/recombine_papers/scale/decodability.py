"""How well the strengths of modules can be decoded from each layer of a run: ridge regression on trained compositions.

The fast part of `probe_run`, for many runs at once: no pictures, no interventions. A module that no training composition has
cannot be learned by a decoder either and is left out. R² is 0 where held-out compositions have no other module.
"""

from __future__ import annotations

from pathlib import Path

from torch import nn

from recombine.inside import (
    SPLITS,
    Measurement,
    SiteDecoder,
    collect_activations,
    decode_components,
    find_best_site,
)
from recombine.tasks import Task
from recombine.training import Json
from recombine_papers.base import load_networks

DECODABILITY = Measurement(name="decodability", version=1)
NUM_INSTANCES = 2_000


def measure_decodability(path: Path | str, *, num_instances: int = NUM_INSTANCES, device: str = "auto") -> Json:
    """R² of each site after and before training, and the best site, stored in `decodability.json` of the run.

    The best site has the highest score on training compositions left out of the fit: neither `id` nor `ood` is looked at.
    """

    def measure() -> Json:
        config, *networks = load_networks(path, device)
        trained, untrained = (decode_sites(model, config.task, num_instances=num_instances) for model in networks)
        sites = {
            site: {**_read_r2(decoder), "untrained": _read_r2(untrained[site])} for site, decoder in trained.items()
        }
        best = find_best_site(trained, metrics=("r2",)) or next(iter(trained))
        return {"num_instances": num_instances, "best_site": best, "sites": sites}

    return DECODABILITY.load_or_measure(path, {"num_instances": num_instances}, measure)


def decode_sites(model: nn.Module, task: Task, *, num_instances: int) -> dict[str, SiteDecoder]:
    """Decoders of the residual stream of each layer and of the code of a bottleneck; of other models, of every site."""
    device = next(model.parameters()).device
    activations = collect_activations(model, task.reading(), num_instances=num_instances, device=device)
    decoders = decode_components(activations, seed=task.seed, controlled=False)
    chosen = {site: decoder for site, decoder in decoders.items() if site == "code" or site.startswith("residual.")}
    return chosen or decoders


def _read_r2(decoder: SiteDecoder) -> Json:
    return {split: decoder[split]["r2"] for split in SPLITS}
