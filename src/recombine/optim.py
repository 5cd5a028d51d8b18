"""AdamW with its parameter groups, and the learning rate schedule (Attention as a Hypernetwork, table A3).

The learning rate rises linearly from 0 during warm-up and falls along half a cosine to `final_fraction` of its peak.
Weight decay is not applied to parameters of one dimension: biases and norms. (The authors' release also decays the biases
of the attention projections, because there they have two dimensions.)
"""

from __future__ import annotations

import math
from typing import Literal

import torch
from torch import nn

Schedule = Literal["cosine", "constant"]


def learning_rate(
    step: int, *, peak: float, steps: int, warmup_steps: int, final_fraction: float, schedule: Schedule
) -> float:
    """The learning rate at a step, counted from 0."""
    if step < warmup_steps:
        return peak * step / warmup_steps
    if schedule == "constant":
        return peak
    progress = min(1.0, (step - warmup_steps) / max(1, steps - warmup_steps))
    cosine = 0.5 * (1 + math.cos(math.pi * progress))
    return peak * (final_fraction + (1 - final_fraction) * cosine)


def build_optimizer(
    model: nn.Module, *, weight_decay: float, betas: tuple[float, float] = (0.9, 0.999)
) -> torch.optim.AdamW:
    """Fused AdamW with two parameter groups: with and without weight decay."""
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    groups = [
        {"params": [p for p in parameters if p.ndim > 1], "weight_decay": weight_decay},
        {"params": [p for p in parameters if p.ndim <= 1], "weight_decay": 0.0},
    ]
    return torch.optim.AdamW([g for g in groups if g["params"]], lr=0.0, betas=betas, eps=1e-8, fused=True)
