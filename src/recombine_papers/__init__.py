"""The experiments of four papers on compositional generalisation, made with the public API of `recombine`."""

from __future__ import annotations

from recombine_papers.experiment import PaperExperiment

EXPERIMENTS: dict[str, PaperExperiment]


def __getattr__(name: str) -> object:
    if name == "EXPERIMENTS":  # importing all experiments takes a second
        from recombine_papers.registry import EXPERIMENTS

        return EXPERIMENTS
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
