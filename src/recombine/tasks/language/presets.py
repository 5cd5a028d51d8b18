"""Sizes of the language task: a test, the small setting of the authors' release, and the paper's.

`paper`: table A3 of Attention as a Hypernetwork with what NanoDO, its code base, sets besides (arXiv 2406.05816, section 5):
512 tokens, no biases, Xavier-uniform weights, second moments with 0.98, 256 rows per step for about 10⁶ steps (131 billion
tokens). `small`: the released WikiText experiment, 8 layers of width 128 with a relative position bias and SwiGLU. Its
documents were cut and padded; here they are packed. `tiny` is for tests.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from recombine.errors import check_choice
from recombine.tasks.base import Preset, Scale

if TYPE_CHECKING:
    from recombine.tasks.language.task import Language

TASKS: dict[Scale, dict[str, Any]] = {
    "tiny": {"tokenizer": "bytes", "context_length": 128, "num_pairs": 4},
    "small": {"tokenizer": "sentencepiece", "vocabulary": 6144, "context_length": 256},
    "paper": {
        "tokenizer": "sentencepiece",
        "vocabulary": 32_000,
        "context_length": 512,
        "grammar_fraction": 0.01,
        "recall_fraction": 0.01,
    },
}
MODELS: dict[Scale, dict[str, Any]] = {
    "tiny": {"num_layers": 2, "embedding_dim": 64, "kqv_dim": 64, "mlp_dim": 128, "num_heads": 4},
    "small": {
        "num_layers": 8,
        "embedding_dim": 128,
        "kqv_dim": 128,
        "mlp_dim": 256,
        "num_heads": 16,
        "feedforward": "swiglu",
        "position": "relative",
    },
    "paper": {
        "num_layers": 6,
        "embedding_dim": 512,
        "kqv_dim": 512,
        "mlp_dim": 2048,
        "num_heads": 8,
        "biases": False,
        "initialisation": "xavier",
    },
}
TRAINING: dict[Scale, dict[str, Any]] = {
    "tiny": {"steps": 200, "batch_size": 8, "warmup_steps": 20},
    "small": {"steps": 50_000, "batch_size": 128, "warmup_steps": 1_000},
    "paper": {
        "steps": 1_000_000,
        "batch_size": 256,
        "warmup_steps": 1_000,
        "beta2": 0.98,
        "precision": "bf16",
    },
}


def language_preset(task: type[Language], scale: Scale, model: str) -> Preset:
    """The run of a scale; only the language model has sizes."""
    check_choice("model for task 'language'", model, task.models)
    return Preset(task=task(**TASKS[scale]), model=model, sizes=MODELS[scale], training=TRAINING[scale])
