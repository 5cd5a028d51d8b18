"""Bring a model of your own: any module from a task's inputs to predictions gets ID, OOD, chance, ceiling and intervals."""

from torch import nn

import recombine

task = recombine.FuzzyLogic(num_examples=16)
model = nn.Sequential(nn.Flatten(), nn.Linear(16 * task.input_dim, 256), nn.ReLU(), nn.Linear(256, 1))
scores = recombine.benchmark(model, task, training=recombine.TrainingConfig(steps=1_000), evaluation_instances=4_000)

for split in ("test", "ood"):
    score = scores[split]["r2"]
    print(f"{split:5} R² {score.value:.3f}  95 % interval {score.low:.3f} to {score.high:.3f}", end="  ")
    print(f"chance {score.chance:.3f}  ceiling {score.ceiling:.3f}")
