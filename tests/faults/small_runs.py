"""Small runs of several families with frequent checkpoints, and what is compared when two of them should be the same."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from recombine.models.language_model import LanguageModelConfig
from recombine.models.mlp import MLPConfig
from recombine.models.transformer import TransformerConfig
from recombine.tasks.fuzzy_logic import FuzzyLogic
from recombine.tasks.language.task import Language
from recombine.tasks.modular.hyperteacher import Hyperteacher
from recombine.tasks.sraven.task import SRaven
from recombine.training import run as execute
from recombine.training.config import RunConfig, TrainingConfig
from recombine.training.directory import RunDirectory
from recombine.training.run import Intervals, train_run

STEPS = 24
TRAINING = TrainingConfig(steps=STEPS, batch_size=4, warmup_steps=2)
TRANSFORMER = TransformerConfig(num_layers=1, embedding_dim=8, kqv_dim=8, mlp_dim=8, num_heads=2, attention="hyla")
TEACHER = Hyperteacher(num_modules=4, num_active=2, x_dim=3, teacher_dim=4, y_dim=2, num_samples=4)
TEXT = Language(text=(str(Path(__file__).parents[1] / "text"),), context_length=32, num_pairs=4, held_out_documents=0.3)
LANGUAGE_MODEL = LanguageModelConfig(num_layers=1, embedding_dim=8, kqv_dim=8, mlp_dim=8, num_heads=2, attention="hyla")
FAMILIES = {
    "fuzzy_logic": RunConfig(task=FuzzyLogic(num_examples=4), model=TRANSFORMER, training=TRAINING),
    "sraven": RunConfig(task=SRaven(num_features=2, num_values=4), model=TRANSFORMER, training=TRAINING),
    "hyperteacher": RunConfig(task=TEACHER, model=MLPConfig(num_layers=1, hidden_dim=8), training=TRAINING),
    "language": RunConfig(task=TEXT, model=LANGUAGE_MODEL, training=replace(TRAINING, precision="bf16")),
}
SIZES = ["--num-examples", "4", "--embedding-dim", "8", "--kqv-dim", "8", "--mlp-dim", "8", "--num-heads", "2"]
TRAIN = ["train", "fuzzy-logic", *SIZES, "--num-layers", "1", "--steps", "24", "--batch-size", "4", "-q"]
TRAIN += ["--learning-rate", "0.001"]
INTERVALS = Intervals(log_every=2, checkpoint_every=2, evaluate_every=12)


def check_often(monkeypatch: Any) -> None:
    """Log and save every two steps."""
    monkeypatch.setattr(execute, "choose_intervals", lambda *_: INTERVALS)


def train(config: RunConfig, out: Path) -> RunDirectory:
    return train_run(config, out=out, device="cpu", evaluation_instances=20)


def final_state(run: RunDirectory) -> dict[str, Any]:
    """Everything that must not depend on what happened on the way: parameters, moments, losses, scores. Not the times."""
    checkpoint = run.load_checkpoint()
    assert checkpoint is not None
    tensors, info = checkpoint
    times = ("seconds", "steps_per_second", "timed_seconds", "timed_steps")
    source = ("evaluation_source_sha256",)  # a file of the package may be edited while hundreds of runs are killed
    result = {name: value for name, value in run.read_json("result.json").items() if name not in times + source}
    rows = [{name: value for name, value in row.items() if name not in times} for row in run.read_metrics()]
    content = {name: tensor.numpy().tobytes() for name, tensor in tensors.items()}
    return {
        "tensors": content,
        "step": info["step"],
        "rows": rows,
        "result": result,
        "split": run.read_json("split.json"),
    }


def leftovers(run: RunDirectory) -> list[str]:
    """Files that a finished run should not have."""
    known = {"config.json", "split.json", "environment.json", "metrics.jsonl", "checkpoint.safetensors", "lock"}
    return sorted({path.name for path in run.path.iterdir()} - known - {"checkpoint.json", "result.json", "tokenizer"})
