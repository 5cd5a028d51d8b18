"""Scaling can lead to compositional generalization (arXiv 2507.07207): width, compositions, supports, models, and the demo.

The paper's sizes (16 modules, up to 3 active, 300,000 steps at a constant rate) are `--scale paper`. The smaller scales have
8 modules and inputs, 2 inputs per task in training batches, and a cosine at a higher rate, for the same orderings in minutes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

from recombine.foundation import Table, show_setting
from recombine.inside import diagnose_run, last_site
from recombine.models import ModelConfig
from recombine.sweeps import Record, mean_cell
from recombine.tasks import Hyperteacher, Scale, Support
from recombine.training import RunConfig, RunDirectory, default_run
from recombine_papers.base import Finished, Group
from recombine_papers.claims import Correlates, Lead, Level, Reads, with_excess
from recombine_papers.experiment import SeededExperiment
from recombine_papers.scale.decodability import measure_decodability
from recombine_papers.scale.tables import (
    METRIC,
    correlate_measured,
    draw_scale,
    tabulate_seeds,
)

NUM_INSTANCES = 4_000  # per split, to fit and score the decoders
WIDTHS: dict[Scale, tuple[int, ...]] = {
    "tiny": (16, 64, 256),
    "small": (16, 32, 64, 128, 256, 512),
    "paper": (128, 256, 512, 1024, 2048),
}
HELD_OUT: dict[Scale, tuple[float, ...]] = {
    "tiny": (0.85, 0.5, 0.125),
    "small": (0.85, 0.75, 0.5, 0.25, 0.125),
    "paper": (0.97, 0.9, 0.75, 0.5, 0.25, 0.125),
}


def hyperteacher(scale: Scale, model: str | None = None) -> RunConfig:
    """Section 2 of the paper, or smaller: see `Hyperteacher.preset`."""
    return default_run("hyperteacher", scale, model)


def change(run: RunConfig, model: dict[str, Any] | None = None, **task: Any) -> RunConfig:
    """The run with other choices of its model or its task."""
    changed: ModelConfig = replace(run.model, **(model or {}))
    return replace(run, task=replace(run.task, **task), model=changed)


SOURCE = "arXiv 2507.07207"
ABSTRACT = f"{SOURCE}, abstract"
BETTER, SUCCESS = 0.1, 0.95  # what counts as clearly better, and as success
GOOD = 0.9  # what counts as success in settings that are harder than the plain one


class ScaleExperiment(SeededExperiment):
    """Variants over seeds. The bounds of the claims are for `--scale small`."""

    metric = METRIC
    differs = "8 modules and inputs instead of 16, 4,000 steps at a higher learning rate instead of 300,000."
    known_before = "earlier runs of the same experiments."

    def summarise(self, finished: Finished) -> Table:
        return tabulate_seeds(finished)


class Widths(ScaleExperiment):
    name = "scale-width"
    core_hours = (0.0059, 0.077, 480)
    question = "Do wider networks recombine modules better?"
    claims = (
        *with_excess(
            Lead(
                text="wider networks recombine better",
                where="width 512 against 16",
                source=ABSTRACT,
                better={"width": 512},
                worse={"width": 16},
                by=BETTER,
            )
        ),
        Level(text="a wide network recombines modules", source=ABSTRACT, of={"width": 512}, low=SUCCESS),
    )

    def variants(self, scale: Scale) -> Iterator[Record]:
        for width in WIDTHS[scale]:
            yield Record(settings={"width": width}, config=change(hyperteacher(scale), {"hidden_dim": width}))


class Compositions(ScaleExperiment):
    name = "scale-compositions"
    core_hours = (0.0054, 0.048, 540)
    question = "Do networks trained on more compositions recombine modules better?"
    claims = with_excess(
        Lead(
            text="more training compositions lead to better recombination",
            where="81 against 14",
            source=ABSTRACT,
            better={"compositions": 81},
            worse={"compositions": 14},
            by=BETTER,
            paired=False,
        )
    )

    def variants(self, scale: Scale) -> Iterator[Record]:
        for held_out in HELD_OUT[scale]:
            config = change(hyperteacher(scale), held_out=held_out)
            yield Record(settings={"compositions": len(config.task.split.train)}, config=config)


class Supports(ScaleExperiment):
    """Each support, and a random one with no more training compositions than the disconnected one has."""

    name = "scale-supports"
    core_hours = (0.013, 0.065, 630)
    question = "Which training compositions let a network recombine modules?"
    known_before = "earlier runs of the same experiments; for supports that cover and connect all modules, all results."
    claims = (
        *(
            Level(
                text="training compositions that cover and connect all modules are enough",
                where=f"{support.replace('_', ' ')} support",
                source=ABSTRACT,
                of={"support": support},
                low=GOOD,
            )
            for support in ("random", "equal", "popular_modules", "unpopular_modules")
        ),
        *(
            claim
            for support, word in (("disconnected", "connected"), ("non_compositional", "covered"))
            for claim in with_excess(
                Lead(
                    text=f"modules must be {word} in training: {support.replace('_', '-')} support against a random one",
                    source=ABSTRACT,
                    better={"support": "random"},
                    worse={"support": support},
                    by=BETTER,
                    paired=False,
                )
            )
        ),
        Lead(
            text="the disconnected support fails because it is disconnected, not because it is small",
            source="our question",
            better={"support": "random_as_few_as_disconnected"},
            worse={"support": "disconnected"},
            by=BETTER,
            ours=True,
            paired=False,
        ),
    )

    def variants(self, scale: Scale) -> Iterator[Record]:
        base = hyperteacher(scale)
        configs = {support: change(base, support=support) for support in get_args(Support)}
        split = configs["disconnected"].task.split
        held_out = len(split.ood) / len(split.train + split.ood)
        configs["random_as_few_as_disconnected"] = change(base, held_out=held_out)
        for support, config in configs.items():
            yield Record(settings={"support": support}, config=config)


class Models(ScaleExperiment):
    name = "scale-models"
    core_hours = (0.04, 0.23, 240)
    question = "Which kind of network recombines modules?"
    claims = tuple(
        Level(
            text="networks of other kinds recombine modules too",
            where=model.replace("_", " "),
            source=f"{SOURCE}, models of the released code",
            of={"model": model},
            low=GOOD,
        )
        for model in Hyperteacher.models
        if model != "mlp"
    )

    def variants(self, scale: Scale) -> Iterator[Record]:
        for model in Hyperteacher.models:
            yield Record(settings={"model": model}, config=hyperteacher(scale, model))


class Decodability(ScaleExperiment):
    """The runs of widths, compositions and supports together. Runs that are the same are trained once."""

    known_before = (
        "earlier runs of the same experiments; for the correlation over all training compositions, its value."
    )

    name = "scale-decodability"
    core_hours = (0.024, 0.17, 1500)
    quantities = ("z_held_out",)
    question = "Do networks that recombine modules show them in their hidden layers?"
    claims = (
        *(
            Correlates(
                text="the better the modules can be decoded from the last layer, the better the network recombines",
                where=where,
                source=ABSTRACT,
                quantity="z_held_out",
                by=0.7,
                fair=fair,
            )
            for fair, where in (
                (True, "training compositions cover and connect all modules"),
                (False, "all training compositions"),
            )
        ),
        Reads(
            text="modules are linearly decodable where a network succeeds (width 512)",
            source=ABSTRACT,
            of={"width": 512},
            quantity="z_held_out",
            low=0.9,
        ),
    )

    def variants(self, scale: Scale) -> Iterator[Record]:
        for experiment in (Widths(), Compositions(), Supports()):
            yield from experiment.variants(scale)

    def summarise(self, finished: Finished) -> Table:
        return correlate_measured(finished)

    def measures(self, run: RunDirectory, device: str) -> dict[str, float]:
        sites = measure_decodability(run.path, num_instances=NUM_INSTANCES, device=device)["sites"]
        return {"z_held_out": sites[last_site(sites)]["ood"]}

    def figures(self, finished: Finished, folder: Path) -> list[Path]:
        return draw_scale(self.measure_runs(finished, "auto"), folder)


# The demo: its setting was chosen because it shows the phenomenon within a minute or two on two cores.
DEMO_HELD_OUT = 0.6
DEMO_STEPS = 3_000
DEMO_SIZES = {"mlp": {"hidden_dim": 256}, "hypernetwork": {"hidden_dim": 64}}
LOST = 0.9  # held-out score relative to the trained one, below which a network is said to fail


class Demo(SeededExperiment):
    """The smaller hyperteacher: a plain network that fails on held-out compositions, and a hypernetwork that does not."""

    name = "demo"
    core_hours = (0.02, 0.02, 0.02)
    question = "Two networks fit the compositions they were trained on. Do they recombine what they learned?"
    metric = "r2"
    compared = "model"

    def count_seeds(self, scale: Scale) -> int:
        return 3

    def variants(self, scale: Scale) -> Iterator[Record]:
        """One record per network; the demo has one size."""
        for model, sizes in DEMO_SIZES.items():
            run = change(hyperteacher("small", model), dict(sizes), held_out=DEMO_HELD_OUT)
            run = replace(run, training=replace(run.training, steps=DEMO_STEPS))
            yield Record(settings={"model": model}, config=run)

    def tables(self, finished: Finished, device: str) -> list[Table]:
        return [*super().tables(finished, device), self.conclude(finished)]

    def conclude(self, finished: Finished) -> Table:
        """The verdict on each network, and what it means in a sentence."""
        rows = []
        for group in finished.groups:
            verdicts = Counter(diagnose_run(run.run.path).verdict for run in group.runs)
            shown = ", ".join(f"{verdict} ({count} of {len(group.runs)})" for verdict, count in verdicts.items())
            rows.append((show_setting(str(group.settings["model"])), shown, self.describe(group)))
        return Table(title="In words", columns=("model", "verdict", "what happened"), rows=tuple(rows))

    def describe(self, group: Group) -> str:
        """What the mean scores say; nothing that they do not bear out."""
        trained = mean_cell(group.scores("test", self.metric))
        held_out = mean_cell(group.scores("ood", self.metric))
        assert trained is not None
        assert held_out is not None
        kept = held_out.value / trained.value
        ending = "so it recombines the modules" if kept >= LOST else "so it fits what it saw and fails on the rest"
        return f"keeps {100 * kept:.0f} % of its R² on compositions it never saw, {ending}"
