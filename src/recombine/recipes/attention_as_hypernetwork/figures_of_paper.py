"""Figures 2B, 2C, 5C, 5D and A5 of the paper as experiments.

The paper prints curves and no numbers for them, so the claims are its sentences, with bounds of our choice. Fractions held
out and numbers of features on SRAVEN are our choice too, because the text does not give them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

from recombine.probe import is_probed, probe_run
from recombine.recipes.attention_as_hypernetwork.evidence import CLOSE, DROPOUTS, LEAD
from recombine.recipes.attention_as_hypernetwork.runs import ATTENTIONS, change_model, change_task
from recombine.recipes.claims import Close, Fall, Lead, Level
from recombine.recipes.experiment import Experiment, Finished, Record, Setting
from recombine.recipes.measured_claims import Reads
from recombine.run import default_run
from recombine.store import Json, RunDirectory
from recombine.tables import Table, Value
from recombine.tasks.base import Scale

EXAMPLES = (16, 32, 64, 96)  # tokens per sequence, the query included
FUZZY_HELD_OUT = (0.3, 0.5, 0.7)
HEADS = (16, 8, 4, 2, 1)
FEATURES = (2, 3, 4)
SRAVEN_HELD_OUT = (0.25, 0.5, 0.7)
SOLVED, FAILED = 0.8, 0.2


class Figure2B(Experiment):
    """Terms decoded from the latent code of the query, in the setting of the release: 96 tokens, 50 % held out."""

    name = "figure-2b"
    question = "Can the terms of a function be decoded from the latent code of the query?"
    metric = "r2"
    compared = "attention"
    default_scale = "paper"
    margin = 0.1
    """The claim counts as seen where F1 is this much above the untrained network and above the majority."""
    claims = tuple(
        Reads(
            text=f"terms are decodable from the query's own code ({attention} attention, dropout {rate:g})",
            source="figure 2B",
            of={"attention": attention, "dropout": rate},
            quantity="f1_lead",
            low=0.1,
        )
        for rate in DROPOUTS[::-1]
        for attention in ATTENTIONS
    )
    differs = "one seed; the decoder weighs both classes alike, and the untrained network is subtracted."

    def records(self, scale: Scale) -> Iterator[Record]:
        base = change_task(default_run("fuzzy_logic", scale), num_examples=96, held_out=0.5)
        for rate in DROPOUTS[::-1]:
            for attention in ATTENTIONS:
                config = change_model(base, attention=attention, attention_dropout=rate)
                yield Record(settings={"attention": attention, "dropout": rate}, config=config)

    def tables(self, finished: Finished, device: str) -> list[Table]:
        probes = finished.measure(lambda run: read_probe(run, device))
        return [self.tabulate_decoders(finished, probes), *super().tables(finished, device)]

    def measures(self, run: RunDirectory, device: str) -> dict[str, float]:
        """F1 of the best layer on functions with the same query, above the better of untrained network and majority."""
        decoders = [d for instances, _, d in list_code_decoders(read_probe(run, device)) if instances == "same query"]
        leads = [
            decoder["ood"]["f1"]
            - max(decoder["ood"].get(name, {}).get("f1", 0.0) for name in ("untrained", "majority"))
            for decoder in decoders
        ]
        return {"f1_lead": max(leads)} if leads else {}

    def tabulate_decoders(self, finished: Finished, probes: Mapping[Path, Json]) -> Table:
        """F1 on held-out functions, for every kind of instances and every layer that has codes."""
        rows: list[tuple[Value, ...]] = []
        for run in finished.runs:
            settings = (*finished.show_settings(run.record.settings), run.record.seed)
            for instances, site, decoder in list_code_decoders(probes[run.run.path]):
                trained = decoder["ood"].get("f1")
                references = [decoder["ood"].get(name, {}).get("f1") for name in ("untrained", "majority")]
                known = [value for value in references if value is not None]
                seen = bool(known) and trained is not None and trained >= max(known) + self.margin
                rows.append((*settings, instances, site, trained, *references, "seen" if seen else "not seen"))
        return Table(
            title="F1 of the terms, decoded from the query's code of itself, on held-out functions",
            columns=(*finished.setting_columns, "seed", "instances", "layer", "F1", "untrained", "majority", "verdict"),
            rows=tuple(rows),
            note=f"seen: F1 at least {self.margin} above the untrained network and the majority",
        )


def read_probe(run: RunDirectory, device: str) -> Json:
    """What the probe found in a run, without pictures; probed once."""
    if not is_probed(run):
        probe_run(run.path, tsne=False, device=device)
    return run.read_json("probe.json")


def list_code_decoders(probe: Json) -> Iterator[tuple[str, str, Json]]:
    """Kind of instances, layer and scores of every decoder of latent codes in `probe.json`."""
    for key, decoders in probe.items():
        if not key.startswith("decoders"):
            continue
        instances = key.removeprefix("decoders").lstrip("_").replace("_", " ") or "all"
        for site, decoder in decoders.items():
            if site.startswith("codes."):
                yield instances, site, decoder


class Figure2C(Experiment):
    """Numbers of examples and fractions held out. Figure A3 has the other splits of the same runs."""

    name = "figure-2c"
    question = "How do examples and held-out combinations change what attention recombines?"
    metric = "r2"
    compared = "attention"
    claims = (
        *(
            Level(
                text=f"{attention} attention solves the task given enough examples (30 % held out)",
                source="section 3, figure 2C",
                of={"attention": attention, "examples": 96, "held_out": 0.3},
                low=SOLVED,
            )
            for attention in ATTENTIONS
        ),
        *(
            Lead(
                text=f"HYLA declines less than {attention} attention when 70 % are held out ({examples} examples)",
                source="section 3, figure 2C",
                better={"attention": "hyla", "examples": examples, "held_out": 0.7},
                worse={"attention": attention, "examples": examples, "held_out": 0.7},
                by=LEAD,
            )
            for attention in ("softmax", "linear")
            for examples in EXAMPLES
        ),
        Close(
            text="on trained combinations, HYLA and softmax attention differ little (32 examples, 70 % held out)",
            source="section 3, figure A3B",
            first={"attention": "hyla", "examples": 32, "held_out": 0.7},
            second={"attention": "softmax", "examples": 32, "held_out": 0.7},
            within=CLOSE,
            split="test",
        ),
        *(
            Level(
                text=f"{attention} attention fails on unknown terms (32 examples, 70 % held out)",
                source="section 3, figure A3C",
                of={"attention": attention, "examples": 32, "held_out": 0.7},
                high=FAILED,
                split="unknown",
            )
            for attention in ATTENTIONS
        ),
    )

    def records(self, scale: Scale) -> Iterator[Record]:
        base = default_run("fuzzy_logic", scale)
        for held_out in FUZZY_HELD_OUT[::-1]:
            for examples in EXAMPLES:
                for attention in ATTENTIONS:
                    config = change_task(base, num_examples=examples, held_out=held_out)
                    settings: dict[str, Setting] = {"attention": attention, "examples": examples, "held_out": held_out}
                    yield Record(settings=settings, config=change_model(config, attention=attention))


class Heads(Experiment):
    """Figure 5C. Queries, keys and values have the same number of features over all heads together."""

    name = "heads"
    question = "Does a single head, which leaves no hypernetwork, hamper recombination?"
    metric = "accuracy"
    compared = "heads"
    claims = tuple(
        Lead(
            text=f"with {attention} attention, a single head recombines worse than {heads}",
            source="section 4, figure 5C",
            better={"attention": attention, "heads": heads},
            worse={"attention": attention, "heads": 1},
            by=LEAD,
        )
        for attention in ATTENTIONS
        for heads in (8, 2)
    )

    def records(self, scale: Scale) -> Iterator[Record]:
        base = default_run("sraven", scale)
        most = base.model.num_heads  # type: ignore[attr-defined]
        for attention in ATTENTIONS:
            for heads in (heads for heads in HEADS if heads <= most):
                config = change_model(base, attention=attention, num_heads=heads)
                yield Record(settings={"attention": attention, "heads": heads}, config=config)


class Features(Experiment):
    """Figure 5D: the number of features, each with a rule of its own."""

    name = "features"
    question = "Does the number of features make Raven matrices harder to recombine?"
    metric = "accuracy"
    compared = "attention"
    claims = tuple(
        Fall(
            text=f"with {attention} attention, four features are harder than two",
            source="section 4, figure 5D",
            higher={"attention": attention, "features": 2},
            lower={"attention": attention, "features": 4},
            by=LEAD,
        )
        for attention in ATTENTIONS
    )

    def records(self, scale: Scale) -> Iterator[Record]:
        for features in FEATURES:
            for attention in ATTENTIONS:
                config = change_task(default_run("sraven", scale), num_features=features)
                settings: dict[str, Setting] = {"attention": attention, "features": features}
                yield Record(settings=settings, config=change_model(config, attention=attention))


class HeldOut(Experiment):
    """Figure A5: the fraction of rule combinations held out."""

    name = "held-out"
    question = "How many combinations of rules can be held out from training?"
    metric = "accuracy"
    compared = "attention"
    claims = tuple(
        Fall(
            text=f"with {attention} attention, accuracy falls when 70 % are held out instead of 25 %",
            source="figure A5",
            higher={"attention": attention, "held_out": 0.25},
            lower={"attention": attention, "held_out": 0.7},
            by=LEAD,
        )
        for attention in ATTENTIONS
    )

    def records(self, scale: Scale) -> Iterator[Record]:
        for held_out in SRAVEN_HELD_OUT:
            for attention in ATTENTIONS:
                config = change_task(default_run("sraven", scale), held_out=held_out)
                settings: dict[str, Setting] = {"attention": attention, "held_out": held_out}
                yield Record(settings=settings, config=change_model(config, attention=attention))
