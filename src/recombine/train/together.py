"""Several whole training steps in one compiled graph: forward, loss, gradient and AdamW, for small models.

A step of a small model is mostly the overhead of its calls. `torch.compile` of the forward pass alone does not remove it;
a graph of whole steps does (`benchmarks/small_models.py`). The update is that of `torch.optim.AdamW`, with its state, so
checkpoints are the same as those of ordinary training; numbers differ by rounding.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from recombine.errors import InputError, check_positive
from recombine.layers.dropout import DropoutKeys
from recombine.tasks import Batch, Task
from recombine.train.config import TrainingConfig


def can_trace() -> bool:
    """Whether this version of torch can compile a gradient as part of a graph."""
    return hasattr(torch._dynamo.config, "trace_autograd_ops")  # the import of torch._dynamo takes a second


class StepsTogether:
    """`count` steps of a model in one call."""

    def __init__(self, model: nn.Module, task: Task, config: TrainingConfig, optimizer: torch.optim.AdamW, count: int):
        check_positive(compile_steps=count)
        if not can_trace():
            raise InputError(f"torch {torch.__version__} cannot compile whole steps: expected a version that can, 2.13")
        if any(layer.rate > 0 for layer in DropoutKeys(model).layers):
            raise InputError(f"compile_steps is {count}: expected no attention_dropout with it, or no compile_steps")
        self.task, self.config, self.optimizer, self.count = task, config, optimizer, count
        self.model = model
        self._compiled: Callable[..., Tensor] = torch.compile(self._advance, dynamic=False, fullgraph=True)

    def run(self, batches: Sequence[Batch], rates: Sequence[float], step: int) -> Tensor:
        """The sum of the losses of steps `step` to `step + count - 1`, still on the device."""
        state = self._open_state()
        torch._dynamo.config.trace_autograd_ops = True
        total = self._compiled(list(batches), state, self._find_factors(rates, step))
        torch._foreach_add_([self.optimizer.state[parameter]["step"] for parameter in state], self.count)
        return total

    def _open_state(self) -> dict[Any, tuple[Tensor, Tensor, float]]:
        """Moments and weight decay of each parameter; zeros before the first step, as in torch's optimizer."""
        moments = {}
        for group in self.optimizer.param_groups:
            for parameter in group["params"]:
                state = self.optimizer.state[parameter]
                if not state:
                    state["step"] = torch.zeros((), device=parameter.device)
                    state["exp_avg"], state["exp_avg_sq"] = torch.zeros_like(parameter), torch.zeros_like(parameter)
                moments[parameter] = (state["exp_avg"], state["exp_avg_sq"], group["weight_decay"])
        return moments

    def _find_factors(self, rates: Sequence[float], step: int) -> Tensor:
        """For each step its rate, its rate divided by the correction of the first moments, and that of the second ones."""
        beta1, beta2 = 0.9, self.config.beta2
        rows = [
            (rate, rate / (1 - beta1 ** (step + i + 1)), math.sqrt(1 - beta2 ** (step + i + 1)))
            for i, rate in enumerate(rates)
        ]
        return torch.tensor(rows, device=next(self.model.parameters()).device)

    def _advance(self, batches: list[Batch], state: dict[Any, tuple[Tensor, Tensor, float]], factors: Tensor) -> Tensor:
        total = torch.zeros((), device=factors.device)
        parameters = list(state)
        for i, batch in enumerate(batches):
            with torch.autocast(factors.device.type, torch.bfloat16, enabled=self.config.precision == "bf16"):
                predictions = self.model(batch.inputs)
            loss = self.task.loss(predictions.float(), batch)
            gradients = self._clip(torch.autograd.grad(loss, parameters))
            with torch.no_grad():
                for parameter, gradient in zip(parameters, gradients, strict=True):
                    self._update(parameter, gradient, state[parameter], factors[i])
            total = total + loss.detach()
        return total

    def _clip(self, gradients: Sequence[Tensor]) -> Sequence[Tensor]:
        if self.config.gradient_clip is None:
            return gradients
        norm = torch.stack([gradient.square().sum() for gradient in gradients]).sum().sqrt()
        factor = (self.config.gradient_clip / (norm + 1e-6)).clamp(max=1.0)
        return [gradient * factor for gradient in gradients]

    def _update(
        self, parameter: Tensor, gradient: Tensor, state: tuple[Tensor, Tensor, float], factors: Tensor
    ) -> None:
        first, second, decay = state
        rate, corrected_rate, correction = factors.unbind()
        first.lerp_(gradient, 0.1)
        second.mul_(self.config.beta2).addcmul_(gradient, gradient, value=1 - self.config.beta2)
        size = second.sqrt() / correction + 1e-8
        parameter.mul_(1 - rate * decay).sub_(corrected_rate * first / size)
