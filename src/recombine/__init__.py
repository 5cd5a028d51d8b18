"""Recombine: does a network recombine what it learned into combinations it has never seen, and if not, why not?"""

from __future__ import annotations

from importlib import import_module, metadata
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from recombine.diagnose import Diagnosis, diagnose_run
    from recombine.errors import InputError
    from recombine.evaluate import Score, score
    from recombine.layers.attention import Attention
    from recombine.layers.hypernetwork_attention import HypernetworkAttention, convert
    from recombine.layers.hypernetwork_view import HypernetworkView, hypernetwork_view
    from recombine.models.transformer import Transformer, TransformerConfig
    from recombine.probe import Examination, examine, examine_activations, probe_run
    from recombine.run import RunConfig, benchmark, load_run, train_run
    from recombine.tasks import FuzzyLogic, GoalGrid, PreferenceGrid, SRaven
    from recombine.train import TrainingConfig

# name -> module; imported on first use, so that `import recombine` costs next to nothing
_PUBLIC = {
    "Attention": "layers.attention",
    "Diagnosis": "diagnose",
    "Examination": "probe",
    "FuzzyLogic": "tasks",
    "GoalGrid": "tasks",
    "HypernetworkAttention": "layers.hypernetwork_attention",
    "HypernetworkView": "layers.hypernetwork_view",
    "InputError": "errors",
    "PreferenceGrid": "tasks",
    "RunConfig": "run",
    "SRaven": "tasks",
    "Score": "evaluate",
    "TrainingConfig": "train",
    "Transformer": "models.transformer",
    "TransformerConfig": "models.transformer",
    "benchmark": "run",
    "convert": "layers.hypernetwork_attention",
    "diagnose_run": "diagnose",
    "examine": "probe",
    "examine_activations": "probe",
    "hypernetwork_view": "layers.hypernetwork_view",
    "load_run": "run",
    "probe_run": "probe",
    "score": "evaluate",
    "train_run": "run",
}

__all__ = [
    "Attention",
    "Diagnosis",
    "Examination",
    "FuzzyLogic",
    "GoalGrid",
    "HypernetworkAttention",
    "HypernetworkView",
    "InputError",
    "PreferenceGrid",
    "RunConfig",
    "SRaven",
    "Score",
    "TrainingConfig",
    "Transformer",
    "TransformerConfig",
    "__version__",
    "benchmark",
    "convert",
    "diagnose_run",
    "examine",
    "examine_activations",
    "hypernetwork_view",
    "load_run",
    "probe_run",
    "score",
    "train_run",
]


def __getattr__(name: str) -> object:
    if name == "__version__":
        return metadata.version("recombine")
    if name not in _PUBLIC:
        raise AttributeError(f"module 'recombine' has no attribute {name!r}")
    return getattr(import_module(f"recombine.{_PUBLIC[name]}"), name)


def __dir__() -> list[str]:
    return sorted(__all__)
