"""Recombine: does a network recombine what it learned into compositions it has never seen, and if not, why not?"""

from __future__ import annotations

from importlib import import_module, metadata
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from recombine.compositions import CompositionSplit, all_sets, split_compositions
    from recombine.diagnose import Diagnosis, diagnose_run
    from recombine.engines import train_runs
    from recombine.errors import InputError
    from recombine.evaluate import Score, score
    from recombine.layers.attention import Attention
    from recombine.layers.convert import convert
    from recombine.layers.hypernetwork_attention import HypernetworkAttention
    from recombine.layers.hypernetwork_view import HypernetworkView, hypernetwork_view
    from recombine.models.base import ModelConfig, Site
    from recombine.models.transformer import Transformer, TransformerConfig
    from recombine.probe import Examination, examine, examine_activations, probe_run
    from recombine.recipes.attention_as_hypernetwork.grid import table_a3
    from recombine.recipes.grid import grid, search
    from recombine.recipes.record import Record, over_seeds
    from recombine.run import Benchmark, RunConfig, benchmark, default_run, load_run, train_run
    from recombine.store import RunDirectory
    from recombine.tasks import (
        Batch,
        FuzzyLogic,
        GoalGrid,
        Hyperteacher,
        InContext,
        PreferenceGrid,
        Ratio,
        SequenceTeacher,
        SRaven,
        Stream,
        Task,
    )
    from recombine.tasks.base import Metric, Preset, measure_r2
    from recombine.train import TrainingConfig

# name -> module; imported on first use, so that `import recombine` takes almost no time
_PUBLIC = {
    "Attention": "layers.attention",
    "Batch": "tasks",
    "Benchmark": "run",
    "CompositionSplit": "compositions",
    "Diagnosis": "diagnose",
    "Examination": "probe",
    "FuzzyLogic": "tasks",
    "GoalGrid": "tasks",
    "HypernetworkAttention": "layers.hypernetwork_attention",
    "HypernetworkView": "layers.hypernetwork_view",
    "Hyperteacher": "tasks",
    "InContext": "tasks",
    "InputError": "errors",
    "Metric": "tasks.base",
    "ModelConfig": "models.base",
    "PreferenceGrid": "tasks",
    "Preset": "tasks.base",
    "Ratio": "tasks",
    "Record": "recipes.record",
    "RunConfig": "run",
    "RunDirectory": "store",
    "SRaven": "tasks",
    "Score": "evaluate",
    "SequenceTeacher": "tasks",
    "Site": "models.base",
    "Stream": "tasks",
    "Task": "tasks",
    "TrainingConfig": "train",
    "Transformer": "models.transformer",
    "TransformerConfig": "models.transformer",
    "all_sets": "compositions",
    "benchmark": "run",
    "convert": "layers.convert",
    "default_run": "run",
    "diagnose_run": "diagnose",
    "examine": "probe",
    "examine_activations": "probe",
    "grid": "recipes.grid",
    "hypernetwork_view": "layers.hypernetwork_view",
    "load_run": "run",
    "measure_r2": "tasks.base",
    "over_seeds": "recipes.record",
    "probe_run": "probe",
    "score": "evaluate",
    "search": "recipes.grid",
    "split_compositions": "compositions",
    "table_a3": "recipes.attention_as_hypernetwork.grid",
    "train_run": "run",
    "train_runs": "engines",
}

__all__ = [
    "Attention",
    "Batch",
    "Benchmark",
    "CompositionSplit",
    "Diagnosis",
    "Examination",
    "FuzzyLogic",
    "GoalGrid",
    "HypernetworkAttention",
    "HypernetworkView",
    "Hyperteacher",
    "InContext",
    "InputError",
    "Metric",
    "ModelConfig",
    "PreferenceGrid",
    "Preset",
    "Ratio",
    "Record",
    "RunConfig",
    "RunDirectory",
    "SRaven",
    "Score",
    "SequenceTeacher",
    "Site",
    "Stream",
    "Task",
    "TrainingConfig",
    "Transformer",
    "TransformerConfig",
    "__version__",
    "all_sets",
    "benchmark",
    "convert",
    "default_run",
    "diagnose_run",
    "examine",
    "examine_activations",
    "grid",
    "hypernetwork_view",
    "load_run",
    "measure_r2",
    "over_seeds",
    "probe_run",
    "score",
    "search",
    "split_compositions",
    "table_a3",
    "train_run",
    "train_runs",
]


def __getattr__(name: str) -> object:
    if name == "__version__":
        return metadata.version("recombine")
    if name not in _PUBLIC:
        raise AttributeError(f"module 'recombine' has no attribute {name!r}")
    return getattr(import_module(f"recombine.{_PUBLIC[name]}"), name)


def __dir__() -> list[str]:
    return sorted(__all__)
