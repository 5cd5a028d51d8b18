"""How well the strengths of modules can be read from each layer of a run: ridge regression, fitted on trained combinations.

The quick part of `probe_run` for many runs at once: no pictures, no interventions. A module that no training combination has
cannot be learned by a decoder either, and is left out; R² is 0 where held-out combinations have no other.
It leaves `decodability.json`:

    sites       {site: {id, ood, untrained: {id, ood}}}   R² pooled over trained modules, of the run and its untrained self
    best_site   where training combinations left out of the fit are read best; chosen without looking at id or ood
"""

from __future__ import annotations

from pathlib import Path

from torch import nn

from recombine.probe.collect import collect
from recombine.probe.decode import decode
from recombine.probe.readings import read_task
from recombine.run import load_run
from recombine.store import Json
from recombine.tasks import Task

FILE = "decodability.json"
NUM_INSTANCES = 2_000


def measure_decodability(path: Path | str, *, num_instances: int = NUM_INSTANCES, device: str = "auto") -> Json:
    """What `decodability.json` of a run says, measured if it is not there yet."""
    run, config, model = load_run(path, device)
    if (run.path / FILE).exists():
        return run.read_json(FILE)
    trained = decode_sites(model, config.task, num_instances=num_instances)
    untrained_model = config.build_model().to(next(model.parameters()).device)
    untrained = decode_sites(untrained_model, config.task, num_instances=num_instances)
    sites = {site: {**_pick(scores), "untrained": _pick(untrained[site])} for site, scores in trained.items()}
    best = max(trained, key=lambda site: trained[site]["cross_validated"]["r2"])
    found = {"num_instances": num_instances, "best_site": best, "sites": sites}
    run.write_json(FILE, found)
    return found


def decode_sites(model: nn.Module, task: Task, *, num_instances: int) -> Json:
    """Decoders of the residual stream of each layer and of the code of a bottleneck; of other models, of every site."""
    place = next(model.parameters()).device
    observations = collect(model, read_task(task), num_instances=num_instances, device=place)
    decoders = decode(observations, seed=task.seed, controlled=False)
    chosen = {site: each for site, each in decoders.items() if site == "code" or site.startswith("residual.")}
    return chosen or decoders


def _pick(scores: Json) -> dict[str, float]:
    return {split: scores[split]["r2"] for split in ("id", "ood")}
