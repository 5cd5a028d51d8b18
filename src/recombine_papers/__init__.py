"""The experiments of four papers on compositional generalisation, made with the public API of `recombine`."""

from __future__ import annotations

from recombine.sweeps import Experiment

EXPERIMENTS: dict[str, Experiment]


def __getattr__(name: str) -> object:
    if name == "EXPERIMENTS":  # importing all experiments takes a second
        from recombine_papers.registry import EXPERIMENTS

        return EXPERIMENTS
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
