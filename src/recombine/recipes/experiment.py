"""What an experiment is: records to run, and the tables and figures made of the finished runs.

A `Record` is one run with its named settings as data. The same records reach the command line, the tables and the figures,
so that nothing is ever read back from text. To add an experiment, subclass `Experiment` and yield its records:

    class Widths(Experiment):
        name = "widths"
        question = "Do wider networks recombine modules better?"
        metric = "r2_pooled"
        compared = "width"

        def records(self, scale):
            for width in (16, 64):
                run = default_run("hyperteacher", scale)
                yield Record(settings={"width": width}, config=replace(run, model=replace(run.model, hidden_dim=width)))

A file in a folder of `recipes` is found by itself; one anywhere else is named on the command line:
`recombine reproduce path/to/file.py:Widths`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, cast

from recombine.recipes.finished import Finished, FinishedRun, Group
from recombine.recipes.record import (
    Published,
    Record,
    Setting,
    matches,
    over_seeds,
)
from recombine.store import RunDirectory
from recombine.tables import Table, describe_settings, show_setting
from recombine.tasks.base import SCALES, Scale, SplitName

if TYPE_CHECKING:
    from recombine.recipes.claims import Claim


class Experiment(ABC):
    """A question, the records that answer it, and the tables and figures made of the finished runs."""

    name: ClassVar[str]
    question: ClassVar[str]
    metric: ClassVar[str]
    split: ClassVar[str] = "ood"
    compared: ClassVar[str | None] = None
    """The setting whose values are compared: differences are to its first value, with all other settings equal."""
    default_scale: ClassVar[Scale] = "small"
    claims: ClassVar[tuple[Claim, ...]] = ()
    """The claims of the paper that the runs decide on, with bounds that are written down before the runs are made."""
    differs: ClassVar[str] = ""
    """How the setting differs from the paper's."""
    known_before: ClassVar[str] = ""
    """What was known of these runs when the bounds of the claims were set; empty if nothing was."""

    @property
    def judged_scales(self) -> tuple[Scale, ...]:
        """The scales that the bounds of the claims are meant for: the default scale and larger ones."""
        return SCALES[SCALES.index(self.default_scale) :]

    def command(self, scale: Scale) -> str:
        """The command that runs the experiment."""
        return f"recombine reproduce {self.name} --scale {scale}"

    @abstractmethod
    def records(self, scale: Scale) -> Iterable[Record]:
        """The runs of the experiment at a scale, the most important first."""

    def describe_score(self, scale: Scale) -> str:
        """What is scored, on which split, and which way is better."""
        task = next(iter(self.records(scale))).config.task
        metric = task.metric(self.metric)
        better = "higher" if metric.higher_is_better else "lower"
        split = task.split_title(cast(SplitName, self.split))
        return f"{metric.title} on {split[0].lower()}{split[1:]}, {better} is better"

    def measures(self, run: RunDirectory, device: str) -> Mapping[str, float]:
        """Numbers by name that are read from a run besides its scores, for the claims that need them."""
        return {}

    def complete(self, finished: Finished) -> Finished:
        """The finished runs with what the experiment computes without training."""
        return finished

    def store(self, results: Path, scale: Scale, runs: Path) -> list[Path]:
        """Add the finished runs below a folder to the stored results; returns the files that changed."""
        from recombine.recipes.stored import collect, results_path, write_results

        changed = write_results(results, self, scale, collect(self, scale, runs))
        return [results_path(results, self, scale)] if changed else []

    def read(self, results: Path, scale: Scale) -> Finished:
        """The stored results that are still current."""
        from recombine.recipes.stored import read_results

        return read_results(results, self, scale)

    def describe_stored(self, results: Path) -> list[str]:
        """One row of `results/README.md` per file of stored results."""
        from recombine.recipes.results_index import describe_files

        return describe_files(self, results)

    def tables(self, finished: Finished, device: str) -> list[Table]:
        """What the runs say; by default a comparison of one score. Networks run on `device`."""
        from recombine.recipes.comparison import compare_scores, list_references

        return [*self.claim_tables(finished, device), compare_scores(self, finished), list_references(self, finished)]

    def claim_tables(self, finished: Finished, device: str) -> list[Table]:
        """The table of claims, or none where the experiment has no claims."""
        from recombine.recipes.claims import tabulate_claims

        return [tabulate_claims(self.claims, self, self.measure_runs(finished, device))] if self.claims else []

    def measure_runs(self, finished: Finished, device: str) -> Finished:
        """The finished runs with the numbers that `measures` reads from them."""
        if type(self).measures is Experiment.measures or all(run.measured for run in finished.runs):
            return finished
        values = finished.measure(lambda run: self.measures(run, device))
        return replace(finished, runs=tuple(replace(run, measured=values[run.run.path]) for run in finished.runs))

    def answer(self, finished: Finished) -> str:
        """A sentence that answers the question, made of the numbers; empty while they do not answer it."""
        return ""

    def summarise(self, finished: Finished) -> Table:
        """One table for the documentation, made of scores and measured numbers alone, so that stored results give it."""
        from recombine.recipes.comparison import compare_scores

        return compare_scores(self, finished)

    def figures(self, finished: Finished, folder: Path) -> list[Path]:
        """Write the experiment's figures into a folder; returns their paths."""
        return []

    figures_need_runs: ClassVar[bool] = False
    """Whether figures read the networks themselves; otherwise stored results are enough."""

    @property
    def has_figures(self) -> bool:
        return type(self).figures is not Experiment.figures


__all__ = [
    "Experiment",
    "Finished",
    "FinishedRun",
    "Group",
    "Published",
    "Record",
    "Setting",
    "describe_settings",
    "matches",
    "over_seeds",
    "show_setting",
]
