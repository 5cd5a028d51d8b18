"""Figures 2D and A2 in numbers: do the latent codes of the query cluster by term, more than by target?

A number is the share of the ten nearest codes of the last layer that have the same term, or the same target
(`probe.structure`), less what it is by chance. Codes are those of held-out functions that share their query, as in the
authors' code, or their examples, as in the text of section 3.2:

    terms_same_query              the same term, functions with the same query (`pictured`: with the same examples)
    terms_untrained_same_query    of the same network before training
    target_same_query             the same target, in bins
"""

from __future__ import annotations

from torch import nn

from recombine.probe.cache import Measurement
from recombine.probe.collect import collect
from recombine.probe.sites import last_site
from recombine.probe.structure import NUM_SAMPLED, measure_structure
from recombine.run import load_run
from recombine.store import Json, RunDirectory
from recombine.tasks.reading import Reading, Variant

NUM_INSTANCES = 2_000
TERM_NEIGHBOURS = Measurement(name="term_neighbours", version=1)
SHARED: dict[Variant, str] = {
    "same_query": "same query, as in the authors' code",
    "pictured": "same examples, as in section 3.2",
}


def read_neighbours(run: RunDirectory, device: str) -> dict[str, float]:
    """How much codes cluster by term and by target, before and after training; measured once."""

    def measure() -> Json:
        _, config, model = load_run(run.path, device)
        untrained = config.build_model().to(next(model.parameters()).device)
        numbers: Json = {}
        for shared in SHARED:
            reading = config.task.reading().variants[shared]
            after, before = (find_neighbours(network, reading) for network in (model, untrained))
            numbers |= {f"{name}_{shared}": value for name, value in after.items()}
            numbers |= {f"{name}_untrained_{shared}": value for name, value in before.items()}
        return numbers

    kept = TERM_NEIGHBOURS.keep(run.path, {"num_instances": NUM_INSTANCES}, measure)
    return {name: value for name, value in kept.items() if name != "key"}


def find_neighbours(model: nn.Module, reading: Reading) -> dict[str, float]:
    """The share of nearest codes with the same term and with the same target, above chance."""
    device = next(model.parameters()).device
    observations = collect(model, reading, num_instances=NUM_INSTANCES, sites=(), device=device)
    rows = observations.rows("ood")[:NUM_SAMPLED]
    structure = measure_structure(observations, last_site(observations.activations), rows)
    kinds = {"terms": structure["module"], "target": structure["target"]}
    return {
        name: kind["purity"] - kind["chance"]
        for name, kind in kinds.items()
        if kind["purity"] is not None and kind["chance"] is not None
    }
