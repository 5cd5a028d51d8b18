"""Models by name, and how one is built for a task."""

from __future__ import annotations

import torch
from torch import nn

from recombine.discovery import find_classes
from recombine.models.base import ModelConfig
from recombine.models.causal_attention import CausalAttention, CausalAttentionConfig
from recombine.models.deep_set import DeepSet, DeepSetConfig
from recombine.models.hypernetwork import Hypernetwork, HypernetworkConfig
from recombine.models.hypernetwork_transformer import HypernetworkTransformer, HypernetworkTransformerConfig
from recombine.models.language_model import LanguageModel, LanguageModelConfig
from recombine.models.mlp import MLPConfig, MultilayerPerceptron
from recombine.models.outside import OutsideModule
from recombine.models.recurrent import RecurrentConfig, RecurrentNetwork, StateSpaceConfig, StateSpaceModel
from recombine.models.sequence_model import SequenceModel
from recombine.models.size import check_size
from recombine.models.task_transformer import TaskTransformer, TaskTransformerConfig
from recombine.models.transformer import Transformer, TransformerConfig, count_parameters
from recombine.tasks.base import Task

MODELS: dict[str, type[ModelConfig]] = {
    config.kind: config for config in find_classes(__name__, __path__, ModelConfig) if config is not OutsideModule
}


def build_model(config: ModelConfig, task: Task, *, seed: int) -> nn.Module:
    """Build the model of a configuration for a task. The same seed gives the same initial parameters on every device."""
    with torch.random.fork_rng(devices=()):
        config.check_task(task)
        check_size(config, task)
        torch.manual_seed(seed)
        return config.build(task)


__all__ = [
    "MODELS",
    "CausalAttention",
    "CausalAttentionConfig",
    "DeepSet",
    "DeepSetConfig",
    "Hypernetwork",
    "HypernetworkConfig",
    "HypernetworkTransformer",
    "HypernetworkTransformerConfig",
    "LanguageModel",
    "LanguageModelConfig",
    "MLPConfig",
    "ModelConfig",
    "MultilayerPerceptron",
    "RecurrentConfig",
    "RecurrentNetwork",
    "SequenceModel",
    "StateSpaceConfig",
    "StateSpaceModel",
    "TaskTransformer",
    "TaskTransformerConfig",
    "Transformer",
    "TransformerConfig",
    "build_model",
    "check_size",
    "count_parameters",
]
