"""The experiments of each paper, in the order of the card of claims."""

from __future__ import annotations

from recombine_papers.experiment import PaperExperiment
from recombine_papers.hypernetwork.counts import PuzzleCounts
from recombine_papers.hypernetwork.fuzzy_logic import Dropout, Figure2C, FuzzyLogicComparison, SRavenComparison
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
from recombine_papers.scale.runs import Compositions, Decodability, Demo, Models, Supports, Widths
from recombine_papers.scale.sizes import Depths, Encodings, Grids, Modules, Surface
from recombine_papers.scale.theory import NeuronTheory

PAPERS: dict[str, tuple[type[PaperExperiment], ...]] = {
    "Attention as a Hypernetwork (arXiv 2406.05816)": (
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
    "When can transformers compositionally generalize in-context? (arXiv 2407.12275)": (
        InContextExperiment,
        InContextSupports,
        InContextTheory,
    ),
    "On Provable Length and Compositional Generalization (arXiv 2402.04875)": (
        LimitedCapacity,
        HigherCapacity,
        Corners,
        SequenceTheory,
        TrainingLengths,
        Diversity,
        Realisability,
    ),
    "Scaling can lead to compositional generalization (arXiv 2507.07207)": (
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
}


def create_experiments() -> dict[str, PaperExperiment]:
    """All experiments by name, with the headings of their papers."""
    experiments = {}
    for paper, classes in PAPERS.items():
        for experiment in (create() for create in classes):
            experiment.paper = paper
            experiments[experiment.name] = experiment
    return experiments


EXPERIMENTS = create_experiments()
