"""The experiments of each paper, in the order of the card of claims."""

from __future__ import annotations

from dataclasses import dataclass

from recombine_papers.experiment import PaperExperiment
from recombine_papers.hypernetwork.counts import PuzzleCounts
from recombine_papers.hypernetwork.figure_2c import Figure2C
from recombine_papers.hypernetwork.fuzzy_logic import Dropout, FuzzyLogicComparison, SRavenComparison
from recombine_papers.hypernetwork.language import LanguageModelling
from recombine_papers.hypernetwork.rules import Figure5
from recombine_papers.hypernetwork.sraven import (
    Depth,
    Features,
    Figure4,
    Heads,
    HeldOut,
    SRavenDropout,
    SRavenPaper,
)
from recombine_papers.hypernetwork.table_a1 import TableA1, TableA1SRaven
from recombine_papers.hypernetwork.terms import Figure2B
from recombine_papers.hypernetwork.theory import HypernetworkTheory
from recombine_papers.in_context.runs import InContextExperiment, InContextSupports
from recombine_papers.in_context.theory import InContextTheory
from recombine_papers.length.runs import (
    Corners,
    Diversity,
    HigherCapacity,
    LimitedCapacity,
    Realisability,
    TrainingLengths,
)
from recombine_papers.length.theory import SequenceTheory
from recombine_papers.scale.demo import Demo
from recombine_papers.scale.runs import Compositions, Decodability, Models, Supports, Widths
from recombine_papers.scale.sizes import Depths, Grids, Modules
from recombine_papers.scale.surface import Encodings, Surface
from recombine_papers.scale.theory import NeuronTheory


@dataclass(frozen=True)
class Paper:
    """A paper and the experiments on its claims."""

    title: str
    arxiv: str
    experiments: tuple[type[PaperExperiment], ...]

    @property
    def heading(self) -> str:
        return f"{self.title} (arXiv {self.arxiv})"


PAPERS = (
    Paper(
        "Attention as a Hypernetwork",
        "2406.05816",
        (
            FuzzyLogicComparison,
            SRavenComparison,
            Dropout,
            SRavenPaper,
            SRavenDropout,
            Figure2B,
            Figure2C,
            Figure5,
            Figure4,
            Heads,
            Depth,
            Features,
            HeldOut,
            LanguageModelling,
            PuzzleCounts,
            TableA1,
            TableA1SRaven,
            HypernetworkTheory,
        ),
    ),
    Paper(
        "When can transformers compositionally generalize in-context?",
        "2407.12275",
        (InContextExperiment, InContextSupports, InContextTheory),
    ),
    Paper(
        "On Provable Length and Compositional Generalization",
        "2402.04875",
        (LimitedCapacity, HigherCapacity, Corners, SequenceTheory, TrainingLengths, Diversity, Realisability),
    ),
    Paper(
        "Scaling can lead to compositional generalization",
        "2507.07207",
        (
            Demo,
            Grids,
            Widths,
            Compositions,
            Supports,
            Models,
            Decodability,
            Modules,
            Depths,
            Surface,
            Encodings,
            NeuronTheory,
        ),
    ),
)
EXPERIMENTS = {experiment.name: experiment() for paper in PAPERS for experiment in paper.experiments}
HEADINGS = {experiment.name: paper.heading for paper in PAPERS for experiment in paper.experiments}


def paper_of(experiment: PaperExperiment) -> str:
    """The title and number of the paper that an experiment belongs to."""
    return HEADINGS.get(experiment.name, "Other experiments")
