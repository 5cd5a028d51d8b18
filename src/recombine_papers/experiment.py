"""Experiments on the claims of a paper: with runs (`PaperExperiment`, `SeededExperiment`) or without (`Calculation`)."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from statistics import NormalDist
from typing import ClassVar

from recombine.foundation import InputError, Table, check_choice
from recombine.sweeps import Record, Setting, over_seeds
from recombine.tasks import SCALES, Scale
from recombine.training import CONFIDENCE, hash_config
from recombine_papers import stored
from recombine_papers.base import Experiment, Finished, compare_scores, list_references
from recombine_papers.claims import Claim, tabulate_claims


class PaperExperiment(Experiment):
    """An experiment with claims. `recombine reproduce claims` stores the results of its finished runs and judges the claims.

    Experiments of other packages and files are treated in the same way.
    """

    paper: str = "Other experiments"
    """The heading of the experiment on the card of claims: the title of the paper, with its number on arXiv."""
    claims: ClassVar[tuple[Claim, ...]] = ()
    """The claims of the paper that the runs decide, with bounds that are set before the runs are made."""
    quantities: ClassVar[Collection[str]] = ()
    """The names of the numbers that `measures` returns and claims read."""
    differs: ClassVar[str] = ""
    """How the setting differs from the paper's."""
    known_before: ClassVar[str] = ""
    """The results that were known when the bounds of the claims were set; empty if there were none."""
    smaller: ClassVar[Mapping[str, Setting]] = {}
    """Settings of claims that are below the paper's size also at scale `paper`, such as fewer steps."""
    figures_need_runs: ClassVar[bool] = False
    """Whether figures read the networks themselves; otherwise stored results are enough."""

    def __init__(self) -> None:
        self.check_quantities(self.quantities)

    def check_quantities(self, known: Collection[str]) -> None:
        """Refuse claims about numbers that the experiment does not have."""
        for name in dict.fromkeys(name for claim in self.claims for name in claim.quantities):
            check_choice(f"quantity in the claims of {self.name!r}", name, list(known))

    @property
    def judged_scales(self) -> tuple[Scale, ...]:
        """The scales for which the bounds of the claims are meant: the default scale and larger ones."""
        return SCALES[SCALES.index(self.default_scale) :]

    def has_size_of_paper(self, claim: Claim, finished: Finished) -> bool:
        """Whether the runs are those of scale `paper`, and the claim is not about a smaller setting."""
        planned = {hash_config(record.config.identity) for record in self.records("paper")}
        reached = {hash_config(run.record.config.identity) for run in finished.runs} <= planned
        return reached and not any(
            settings.get(name) == value for settings in claim.variants for name, value in self.smaller.items()
        )

    def command(self, scale: Scale) -> str:
        """The command that runs the experiment."""
        return f"recombine reproduce {self.name} --scale {scale}"

    def describe_score(self, scale: Scale) -> str:
        """The metric and the split of the main score, and which direction is better."""
        task = next(iter(self.records(scale))).config.task
        metric = task.metric(self.metric)
        better = "higher" if metric.higher_is_better else "lower"
        split = task.split_title(self.split)
        return f"{metric.title} on {split[0].lower()}{split[1:]}, {better} is better"

    def tables(self, finished: Finished, device: str) -> list[Table]:
        """The verdicts on the claims, the table of the documentation, and scores that need no training."""
        measured = self.measure_runs(finished, device)
        claims = [tabulate_claims(self.claims, self, measured)] if self.claims else []
        return [*claims, self.summarise(measured), list_references(self, measured)]

    def summarise(self, finished: Finished) -> Table:
        """One table for the documentation, from scores and measured numbers alone, so that stored results suffice."""
        return compare_scores(self, finished)

    def store(self, results: Path, scale: Scale, runs: Path) -> list[Path]:
        """Add the finished runs below a folder to the stored results; returns the files that changed."""
        changed = stored.write_results(results, self, scale, stored.collect(self, scale, runs))
        return [stored.results_path(results, self, scale)] if changed else []

    def read(self, results: Path, scale: Scale) -> Finished:
        """The stored results that are still current."""
        return stored.read_results(results, self, scale)

    def stored_name(self, scale: Scale) -> str:
        """The name of the file of stored results."""
        return stored.results_path(Path(), self, scale).name

    def describe_stored(self, results: Path) -> list[stored.FileCells]:
        """The row of `results/README.md` of each file of stored results."""
        return stored.describe_files(self, results)


class SeededExperiment(PaperExperiment):
    """An experiment whose variants are all repeated with the same number of seeds: one at `tiny`, otherwise three."""

    @abstractmethod
    def variants(self, scale: Scale) -> Iterator[Record]:
        """The runs with one seed, the most important first."""

    def count_seeds(self, scale: Scale) -> int:
        return 1 if scale == "tiny" else 3

    def records(self, scale: Scale) -> Iterator[Record]:
        return over_seeds(self.variants(scale), range(self.count_seeds(scale)))


class Calculation(PaperExperiment):
    """Numbers by name, one per seed, that need no run: constructions and counts, which take seconds.

    `results/<name>.json` stores them together with the version of the calculation; another version computes them again.
    """

    metric = ""
    known_before = "all numbers: they are exact, or known from docs/theory.md."
    version: ClassVar[int] = 1
    num_seeds: ClassVar[int] = 3

    def __init__(self) -> None:
        """The names of the numbers are known when they are computed, and checked then."""

    @abstractmethod
    def compute(self, seed: int) -> Mapping[str, float]:
        """The numbers with one seed."""

    def complete(self, finished: Finished) -> Finished:
        """The numbers of all seeds."""
        rows = [dict(self.compute(seed)) for seed in range(self.num_seeds)]
        names = list(rows[0]) if rows else []
        if not names or any(list(row) != names for row in rows):
            raise InputError(f"experiment {self.name!r} computes different numbers per seed: expected the same names")
        if odd := [name for row in rows for name, value in row.items() if not math.isfinite(value)]:
            raise InputError(f"experiment {self.name!r} computes a number that is not finite: {odd[0]}")
        self.check_quantities(names)
        return Finished(finished.runs, computed={name: tuple(row[name] for row in rows) for name in names})

    @property
    def judged_scales(self) -> tuple[Scale, ...]:
        return (self.default_scale,)

    def records(self, scale: Scale) -> Iterator[Record]:
        return iter(())

    def store(self, results: Path, scale: Scale, runs: Path) -> list[Path]:
        return [stored.numbers_path(results, self)] if stored.write_numbers(results, self) else []

    def read(self, results: Path, scale: Scale) -> Finished:
        return stored.read_computed(results, self)

    def stored_name(self, scale: Scale) -> str:
        return stored.numbers_path(Path(), self).name

    def describe_stored(self, results: Path) -> list[stored.FileCells]:
        return stored.describe_numbers(self, results)

    def command(self, scale: Scale) -> str:
        return f"recombine reproduce {self.name}"

    def describe_score(self, scale: Scale) -> str:
        return ""

    def tables(self, finished: Finished, device: str) -> list[Table]:
        return [self.summarise(finished)]

    def summarise(self, finished: Finished) -> Table:
        return tabulate_claims(self.claims, self, finished)


def share_with_interval(name: str, share: float, total: int) -> dict[str, float]:
    """A share of a sample as three numbers: itself, and its 95 % interval after Wilson (1927)."""
    z = NormalDist().inv_cdf((1 + CONFIDENCE) / 2)
    centre = (share + z**2 / (2 * total)) / (1 + z**2 / total)
    half = z / (1 + z**2 / total) * math.sqrt(share * (1 - share) / total + (z / (2 * total)) ** 2)
    return {name: share, f"{name}_low": max(0.0, centre - half), f"{name}_high": min(1.0, centre + half)}
