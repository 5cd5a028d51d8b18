"""The grid worlds of Scale leads to compositional generalization (arXiv 2507.07207): defaults at each scale.

The paper's preference grid: 16 preferences, up to 3 at once, 16 kinds of objects, an MLP of 2 x 1024, rate 1e-4 and weight
decay 1e-3 held constant, 3 million steps. The goal grid was released without a sweep: it borrows these. `small` and
`tiny` are smaller worlds, narrower models and higher rates, for minutes and seconds on a processor.
"""

from __future__ import annotations

from collections.abc import Callable

from recombine.models import HypernetworkConfig, MLPConfig, ModelConfig, TaskTransformerConfig
from recombine.recipes.experiment import Scale
from recombine.run import RunConfig
from recombine.tasks import GoalGrid, PreferenceGrid, Task
from recombine.train import TrainingConfig


def list_models(scale: Scale) -> dict[str, ModelConfig]:
    """The paper's architectures, the MLP first; all act step by step, or see earlier steps only."""
    if scale == "paper":
        return {
            "mlp": MLPConfig(num_layers=2, hidden_dim=1024),
            "task_transformer": TaskTransformerConfig(),
            "hypernetwork": HypernetworkConfig(hidden_dim=256),
        }
    width = {"tiny": 128, "small": 512}[scale]
    return {
        "mlp": MLPConfig(num_layers=2, hidden_dim=width),
        "task_transformer": TaskTransformerConfig(num_layers=2, embedding_dim=128, kqv_dim=64, mlp_dim=256),
        "hypernetwork": HypernetworkConfig(hidden_dim=width // 8),
    }


def train_on(task: Task, scale: Scale) -> dict[str, RunConfig]:
    """A run of each architecture."""
    training = TrainingConfig(
        steps={"tiny": 1_500, "small": 20_000, "paper": 3_000_000}[scale],
        learning_rate=1e-4 if scale == "paper" else 1e-3,
        weight_decay=1e-3 if scale == "paper" else 1e-2,
        warmup_steps=0 if scale == "paper" else 100,
        schedule="constant" if scale == "paper" else "cosine",
    )
    return {kind: RunConfig(task=task, model=model, training=training) for kind, model in list_models(scale).items()}


def preference_grid(scale: Scale) -> dict[str, RunConfig]:
    """`small` has 8 preferences and kinds of objects, `tiny` has 4 of each and two objects on a map."""
    tasks = {
        "tiny": PreferenceGrid(num_modules=4, num_active=2, num_features=4, num_objects=2, horizon=6),
        "small": PreferenceGrid(num_modules=8, num_features=8),
        "paper": PreferenceGrid(),
    }
    return train_on(tasks[scale], scale)


def goal_grid(scale: Scale) -> dict[str, RunConfig]:
    """`small` has mazes of 7 x 7, `tiny` of 5 x 5 and three values of each part but the quadrant."""
    tiny = GoalGrid(grid_size=5, horizon=6, num_distractors=2, num_interactions=3, num_mazes=3, num_objects=3)
    tasks = {
        "tiny": tiny,
        "small": GoalGrid(grid_size=7, horizon=10, num_distractors=3),
        "paper": GoalGrid(),
    }
    return train_on(tasks[scale], scale)


DEFAULTS: dict[str, Callable[[Scale], dict[str, RunConfig]]] = {
    "preference_grid": preference_grid,
    "goal_grid": goal_grid,
}
EXPERIMENTS = ()
