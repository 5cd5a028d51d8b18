# %% [markdown]
# # Test your model
#
# Any `torch.nn.Module` that maps a task's inputs to predictions can be tested. Here it is a plain multilayer
# perceptron on the hyperteacher: each task is a mixture of frozen modules, and the mixture is part of the input.
# Some compositions of modules are held out of training.

# %%
import torch
from torch import nn

import recombine

torch.manual_seed(0)
task = recombine.Hyperteacher.preset("small").task
batch = task.sample("train", 0, batch_size=2)
print("inputs", tuple(batch.inputs.shape), "targets", tuple(batch.targets.shape))

# %% [markdown]
# The last dimension of the inputs is `task.input_dim`, that of the predictions `task.output_dim`.

# %%
model = nn.Sequential(nn.Linear(task.input_dim, 256), nn.ReLU(), nn.Linear(256, task.output_dim))

# %% [markdown]
# `benchmark` trains it and scores it on seen and on held-out compositions, which takes less than a minute here. With
# `out="runs"` it also leaves a run directory, for `recombine report` and `recombine diagnose`.

# %%
STEPS = 3_000
training = recombine.TrainingConfig(steps=STEPS, learning_rate=3e-3)
scores = recombine.benchmark(model, task, training=training, evaluation_instances=500, progress=False)
for split in ("test", "ood"):
    score = scores[split]["r2"]
    print(f"{split}: R² {score.value:.3f} ({score.low:.3f} to {score.high:.3f})")
    print(f"  chance {score.chance:.3f}, ceiling {score.ceiling:.3f}")

# %% [markdown]
# Intervals are 95 %, over *compositions*: instances of one composition are not independent. A
# model that recombines has a score on `ood` close to that on `test`. [Why does it not
# generalise?](why_does_it_not_generalise.md) shows what to do if it does not.
#
# On the command line, a class in a file of your own works with every verb, for example
# `recombine train fuzzy-logic --model examples/own_model.py:AveragingConfig --scale tiny`.
