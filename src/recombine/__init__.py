"""Recombine: does a network recombine what it learned into compositions it has never seen, and if not, why not?"""

from __future__ import annotations

from importlib import import_module, metadata
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from recombine.attention.convert import convert
    from recombine.attention.hyla import HypernetworkAttention
    from recombine.attention.layer import Attention
    from recombine.attention.view import HypernetworkView, hypernetwork_view
    from recombine.compositions import CompositionSplit, all_sets, split_compositions
    from recombine.foundation.errors import InputError
    from recombine.inside.probe import examine, examine_activations, probe_run
    from recombine.inside.result import Examination
    from recombine.inside.verdict import Diagnosis, diagnose_run
    from recombine.models.base import ModelConfig, Site
    from recombine.models.transformer import Transformer, TransformerConfig
    from recombine.random import Stream
    from recombine.sweeps.choose import train_runs
    from recombine.sweeps.records import Record, grid, over_seeds, search
    from recombine.tasks.base import Preset, Task
    from recombine.tasks.batch import Batch, Metric, Ratio, measure_r2
    from recombine.tasks.fuzzy_logic import FuzzyLogic
    from recombine.tasks.grids.goal import GoalGrid
    from recombine.tasks.grids.preference import PreferenceGrid
    from recombine.tasks.modular.hyperteacher import Hyperteacher
    from recombine.tasks.modular.in_context import InContext
    from recombine.tasks.sequences.teacher import SequenceTeacher
    from recombine.tasks.sraven.task import SRaven
    from recombine.training.benchmark import Benchmark, benchmark, load_run
    from recombine.training.config import RunConfig, TrainingConfig, default_run
    from recombine.training.directory import RunDirectory
    from recombine.training.run import train_run
    from recombine.training.score import Score, score

# name -> module; imported on first use, so that `import recombine` takes almost no time
_PUBLIC = {
    "Attention": "recombine.attention.layer",
    "Batch": "recombine.tasks.batch",
    "Benchmark": "recombine.training.benchmark",
    "CompositionSplit": "recombine.compositions",
    "Diagnosis": "recombine.inside.verdict",
    "Examination": "recombine.inside.result",
    "FuzzyLogic": "recombine.tasks.fuzzy_logic",
    "GoalGrid": "recombine.tasks.grids.goal",
    "HypernetworkAttention": "recombine.attention.hyla",
    "HypernetworkView": "recombine.attention.view",
    "Hyperteacher": "recombine.tasks.modular.hyperteacher",
    "InContext": "recombine.tasks.modular.in_context",
    "InputError": "recombine.foundation.errors",
    "Metric": "recombine.tasks.batch",
    "ModelConfig": "recombine.models.base",
    "PreferenceGrid": "recombine.tasks.grids.preference",
    "Preset": "recombine.tasks.base",
    "Ratio": "recombine.tasks.batch",
    "Record": "recombine.sweeps.records",
    "RunConfig": "recombine.training.config",
    "RunDirectory": "recombine.training.directory",
    "SRaven": "recombine.tasks.sraven.task",
    "Score": "recombine.training.score",
    "SequenceTeacher": "recombine.tasks.sequences.teacher",
    "Site": "recombine.models.base",
    "Stream": "recombine.random",
    "Task": "recombine.tasks.base",
    "TrainingConfig": "recombine.training.config",
    "Transformer": "recombine.models.transformer",
    "TransformerConfig": "recombine.models.transformer",
    "all_sets": "recombine.compositions",
    "benchmark": "recombine.training.benchmark",
    "convert": "recombine.attention.convert",
    "default_run": "recombine.training.config",
    "diagnose_run": "recombine.inside.verdict",
    "examine": "recombine.inside.probe",
    "examine_activations": "recombine.inside.probe",
    "grid": "recombine.sweeps.records",
    "hypernetwork_view": "recombine.attention.view",
    "load_run": "recombine.training.benchmark",
    "measure_r2": "recombine.tasks.batch",
    "over_seeds": "recombine.sweeps.records",
    "probe_run": "recombine.inside.probe",
    "score": "recombine.training.score",
    "search": "recombine.sweeps.records",
    "split_compositions": "recombine.compositions",
    "train_run": "recombine.training.run",
    "train_runs": "recombine.sweeps.choose",
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
    "train_run",
    "train_runs",
]


def __getattr__(name: str) -> object:
    if name == "__version__":
        return metadata.version("recombine")
    if name not in _PUBLIC:
        raise AttributeError(f"module 'recombine' has no attribute {name!r}")
    return getattr(import_module(_PUBLIC[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
