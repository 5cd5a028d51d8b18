"""One training step: forward, loss, gradient, update; and the state that a checkpoint holds."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor, nn

from recombine.errors import InputError
from recombine.layers.dropout import DropoutKeys
from recombine.optim import build_optimizer, learning_rate
from recombine.precision import use_precision
from recombine.tasks import Task
from recombine.tasks.ahead import Ahead
from recombine.train.config import TrainingConfig
from recombine.train.together import StepsTogether


class DivergedError(RuntimeError):
    """Training met a loss or a parameter that is not finite."""


class Trainer:
    """A module, its optimizer and its clock."""

    def __init__(
        self,
        model: nn.Module,
        task: Task,
        config: TrainingConfig,
        device: torch.device | str,
        *,
        compile: bool = False,
        compile_steps: int | None = None,
    ) -> None:
        self.model = model.to(device)
        # a whole graph or an error: past its limit of recompilations torch would otherwise go on eagerly and say nothing
        self.forward: Callable[[Tensor], Tensor] = (
            torch.compile(self.model, dynamic=False, fullgraph=True) if compile else self.model
        )
        self.task = task
        self.config = config
        self.device = torch.device(device)
        self.batches = Ahead(task, batch_size=config.batch_size, device=self.device)
        self.optimizer = build_optimizer(model, weight_decay=config.weight_decay, betas=(0.9, config.beta2))
        self.dropout = DropoutKeys(model)
        self.together: StepsTogether | None = None
        if compile_steps is not None:
            self.together = StepsTogether(self.model, task, config, self.optimizer, compile_steps)
        self.step = 0

    def advance_to(self, last: int) -> Tensor:
        """Train until step `last`; returns the sum of the losses. The last few steps may be too few to take together."""
        total = torch.zeros((), device=self.device)
        while self.together is not None and self.step + self.together.count <= last:
            steps = range(self.step, self.step + self.together.count)
            batches = [self.batches.take(step) for step in steps]
            total += self.together.run(batches, [self.rate_at(step) for step in steps], self.step)
            self.step += self.together.count
        while self.step < last:
            total += self.advance()
        return total

    def advance(self) -> Tensor:
        """One optimizer step; returns its loss, still on the device."""
        config = self.config
        batch = self.batches.take(self.step)
        seed = self.task.seed if config.model_seed is None else config.model_seed
        with (
            use_precision(config.precision, self.device, compiled=self.forward is not self.model),
            self.dropout.at(seed, self.step),
        ):
            predictions = self.forward(batch.inputs)
        loss = self.task.loss(predictions.float(), batch)
        self.optimizer.zero_grad(set_to_none=True)
        loss.backward()
        if config.gradient_clip is not None:
            nn.utils.clip_grad_norm_(self.model.parameters(), config.gradient_clip)
        for group in self.optimizer.param_groups:
            group["lr"] = self.rate
        self.optimizer.step()
        self.step += 1
        return loss.detach()

    @property
    def rate(self) -> float:
        """The learning rate of the next step."""
        return self.rate_at(self.step)

    def rate_at(self, step: int) -> float:
        config = self.config
        return learning_rate(
            step,
            peak=config.learning_rate,
            steps=config.steps,
            warmup_steps=config.warmup_steps,
            final_fraction=config.final_fraction,
            schedule=config.schedule,
        )

    def state(self) -> dict[str, Tensor]:
        """Parameters and optimizer moments under flat names."""
        tensors = {f"model/{name}": value for name, value in self.model.state_dict().items()}
        for name, parameter in self.model.named_parameters():
            for key, value in self.optimizer.state.get(parameter, {}).items():
                tensors[f"optimizer/{key}/{name}"] = value
        return tensors

    def load_state(self, tensors: dict[str, Tensor], step: int) -> None:
        """Continue from the tensors of a checkpoint."""
        load_model(self.model, tensors)
        for name, parameter in self.model.named_parameters():
            moments = {key: tensors.get(f"optimizer/{key}/{name}") for key in ("step", "exp_avg", "exp_avg_sq")}
            state = {key: tensor for key, tensor in moments.items() if tensor is not None}
            shapes = {key: tensor.shape for key, tensor in state.items() if key != "step"}
            if len(state) not in (0, len(moments)) or any(shape != parameter.shape for shape in shapes.values()):
                raise InputError(
                    f"the checkpoint does not fit the optimizer: it lacks or misshapes the moments of {name}"
                )
            self.optimizer.state[parameter] = state
        self.step = step

    def require_finite(self, loss: float) -> None:
        """Raise before anything that is not finite is saved."""
        parameters = self.model.named_parameters()
        broken = next((name for name, parameter in parameters if not torch.isfinite(parameter).all()), None)
        if broken or not math.isfinite(loss):
            what = f"parameter {broken}" if broken else f"loss {loss}"
            raise DivergedError(
                f"training diverged before step {self.step}: {what} is not finite; try a lower learning rate"
            )


def load_model(model: nn.Module, tensors: dict[str, Tensor]) -> None:
    """Fill a model from a checkpoint's tensors; every name, shape and type must agree, and parameters must be finite."""
    state = {name.removeprefix("model/"): value for name, value in tensors.items() if name.startswith("model/")}
    for name, value in model.state_dict().items():
        if name in state and state[name].dtype != value.dtype:
            raise InputError(f"the checkpoint does not fit the model: {name} is {state[name].dtype}, not {value.dtype}")
    try:
        model.load_state_dict(state)
    except RuntimeError as error:
        raise InputError(f"the checkpoint does not fit the model: {str(error).splitlines()[-1].strip()}") from None
    for name, parameter in model.named_parameters():
        if not torch.isfinite(parameter).all():
            raise InputError(f"the checkpoint has values of {name} that are not finite: expected finite parameters")
