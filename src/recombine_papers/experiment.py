"""An experiment on the claims of a paper: its runs also decide claims, and their results are stored in `results/`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from recombine.foundation import Table
from recombine.sweeps import Experiment, Finished, compare_scores
from recombine.tasks import SCALES, Scale

if TYPE_CHECKING:
    from recombine_papers.claims import Claim


class PaperExperiment(Experiment):
    """An experiment with claims. `recombine reproduce claims` collects its finished runs and judges the claims."""

    claims: ClassVar[tuple[Claim, ...]] = ()
    """The claims of the paper that the runs decide, with bounds that are set before the runs are made."""
    differs: ClassVar[str] = ""
    """How the setting differs from the paper's."""
    known_before: ClassVar[str] = ""
    """The results that were known when the bounds of the claims were set; empty if there were none."""
    figures_need_runs: ClassVar[bool] = False
    """Whether figures read the networks themselves; otherwise stored results are enough."""

    @property
    def judged_scales(self) -> tuple[Scale, ...]:
        """The scales for which the bounds of the claims are meant: the default scale and larger ones."""
        return SCALES[SCALES.index(self.default_scale) :]

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
        """The claims, followed by the tables of every experiment."""
        return [*self.claim_tables(finished, device), *super().tables(finished, device)]

    def claim_tables(self, finished: Finished, device: str) -> list[Table]:
        """The table of claims; none if the experiment has no claims."""
        from recombine_papers.claims import tabulate_claims

        return [tabulate_claims(self.claims, self, self.measure_runs(finished, device))] if self.claims else []

    def summarise(self, finished: Finished) -> Table:
        """One table for the documentation, from scores and measured numbers alone, so that stored results suffice."""
        return compare_scores(self, finished)

    def store(self, results: Path, scale: Scale, runs: Path) -> list[Path]:
        """Add the finished runs below a folder to the stored results; returns the files that changed."""
        from recombine_papers.stored import collect, results_path, write_results

        changed = write_results(results, self, scale, collect(self, scale, runs))
        return [results_path(results, self, scale)] if changed else []

    def read(self, results: Path, scale: Scale) -> Finished:
        """The stored results that are still current."""
        from recombine_papers.stored import read_results

        return read_results(results, self, scale)

    def describe_stored(self, results: Path) -> list[str]:
        """One row of `results/README.md` per file of stored results."""
        from recombine_papers.stored import describe_files

        return describe_files(self, results)
