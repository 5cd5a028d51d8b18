"""One training step: forward, loss, gradient, update; and the state that a checkpoint holds."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor, nn

from recombine.errors import InputError
from recombine.evaluate import check_predictions
from recombine.layers.dropout import DropoutKeys
from recombine.optim import build_optimizer, learning_rate
from recombine.parallel import ALONE, Group, gather, local_part, shard_like, spread
from recombine.precision import use_precision
from recombine.tasks import Task
from recombine.tasks.ahead import Ahead
from recombine.train.config import TrainingConfig
from recombine.train.together import StepsTogether

MOMENTS = ("step", "exp_avg", "exp_avg_sq")  # of AdamW, for each parameter


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
        group: Group = ALONE,
        shard: bool = False,
    ) -> None:
        self.task = task
        self.config = config
        self.device = torch.device(device)
        self.group = group
        self.is_sharded = shard
        self.is_compiled = compile
        rows = group.rows(config.batch_size)
        self.batches = Ahead(task, batch_size=config.batch_size, rows=rows, device=self.device)
        example = None if rows is None else task.sample("train", 0, rows=range(1), device=self.device).inputs
        self.model, self.forward = spread(model, group, self.device, shard=shard, compile=compile, example=example)
        self.optimizer = build_optimizer(self.model, weight_decay=config.weight_decay, betas=(0.9, config.beta2))
        self.dropout = DropoutKeys(self.model, first_row=0 if rows is None else rows.start)
        self.together: StepsTogether | None = None
        if compile_steps is not None:
            if group.size > 1:
                raise InputError(f"compile_steps is {compile_steps} with {group.size} processes: expected one process")
            self.together = StepsTogether(self.model, task, config, self.optimizer, compile_steps)
        self.step = 0
        self.agreed_to_stop = False

    def advance_to(self, last: int, total: Tensor | None = None, is_asked: Callable[[], bool] | None = None) -> Tensor:
        """Train until step `last`, or until all processes agree to stop; returns `total` plus the losses of the steps.

        The last few steps may be too few to take together. `is_asked` says whether this process was asked to stop.
        """
        total = torch.zeros((), device=self.device) if total is None else total
        asked = is_asked or (lambda: False)
        while self.together is not None and self.step + self.together.count <= last and not self.agreed_to_stop:
            steps = range(self.step, self.step + self.together.count)
            batches = [self.batches.take(step) for step in steps]
            total += self.together.run(batches, [self.rate_at(step) for step in steps], self.step)
            self.step += self.together.count
            self.agreed_to_stop = asked()
        while self.step < last and not self.agreed_to_stop:
            total += self.advance(stop=asked())
        return total

    def advance(self, *, stop: bool = False) -> Tensor:
        """One optimizer step; returns this process's share of its loss, still on the device.

        The processes tell each other in every step whether they were asked to `stop`, so that all stop at the same one.
        """
        config = self.config
        batch = self.batches.take(self.step)
        seed = self.task.seed if config.model_seed is None else config.model_seed
        with (
            use_precision(config.precision, self.device, compiled=self.is_compiled),
            self.dropout.at(seed, self.step),
        ):
            predictions = check_predictions(self.forward(batch.inputs), num_rows=len(batch))
        loss = self.task.loss(predictions.float(), batch)
        factor, self.agreed_to_stop = self.group.combine(self.task.loss_weight(batch), stop)
        self.optimizer.zero_grad(set_to_none=True)
        (loss if factor == 1 else loss * factor).backward()
        if config.gradient_clip is not None:
            nn.utils.clip_grad_norm_(self.model.parameters(), config.gradient_clip)
        for group in self.optimizer.param_groups:
            group["lr"] = self.rate_at(self.step)
        self.optimizer.step()
        self.step += 1
        return loss.detach() if self.group.size == 1 else loss.detach() * (factor / self.group.size)

    def rate_at(self, step: int) -> float:
        """The learning rate of a step, counted from 0."""
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
        """Parameters and optimizer moments under flat names. Processes with a part of the model each must all call this."""
        tensors = {f"model/{name}": value for name, value in self.model.state_dict().items()}
        for name, parameter in self.model.named_parameters():
            for key, value in self.optimizer.state.get(parameter, {}).items():
                tensors[f"optimizer/{key}/{name}"] = value
        if not self.is_sharded:
            return tensors
        whole = ((name, gather(tensor)) for name, tensor in tensors.items())
        return {name: tensor.cpu() for name, tensor in whole if self.group.is_leader}

    def load_state(self, tensors: dict[str, Tensor], step: int) -> None:
        """Continue from the tensors of a checkpoint."""
        check_moments(self.model, tensors, step)
        if self.is_sharded:
            tensors = shard_like(tensors, dict(self.model.named_parameters()))
        load_model(self.model, tensors)
        for name, parameter in self.model.named_parameters():
            moments = {key: tensors.get(f"optimizer/{key}/{name}") for key in MOMENTS}
            state = {key: tensor.to(self.device) for key, tensor in moments.items() if tensor is not None}
            self.optimizer.state[parameter] = state
        self.step = step

    def require_finite(self, loss: float) -> None:
        """Raise before anything that is not finite is saved."""
        broken = find_infinite(self.model)
        if self.group.any(broken is not None) or not math.isfinite(loss):
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
    if (broken := find_infinite(model)) is not None:
        raise InputError(f"the checkpoint has values of {broken} that are not finite: expected finite parameters")


def check_moments(model: nn.Module, tensors: dict[str, Tensor], step: int) -> None:
    """Require the moments in a checkpoint to fit: those of a parameter that was never used may be missing, all may not."""
    complaint = "the checkpoint does not fit the optimizer"
    if step > 0 and not any(name.startswith("optimizer/") for name in tensors):
        raise InputError(f"{complaint}: it is of step {step} and has no moments")
    for name, parameter in model.named_parameters():
        moments = {key: tensors[full] for key in MOMENTS if (full := f"optimizer/{key}/{name}") in tensors}
        if len(moments) not in (0, len(MOMENTS)):
            raise InputError(f"{complaint}: it lacks some of the moments of {name}")
        for key, value in moments.items():
            shape, dtype = ((), torch.float32) if key == "step" else (parameter.shape, parameter.dtype)
            if value.shape != shape or value.dtype != dtype:
                raise InputError(f"{complaint}: {key} of {name} is {tuple(value.shape)}, {value.dtype}")
            if value.isnan().any() or (key != "exp_avg" and (value < 0).any()):
                raise InputError(f"{complaint}: {key} of {name} is negative or NaN")


def find_infinite(model: nn.Module) -> str | None:
    """The first parameter with a value that is not finite; of a sharded model, in the part of this process."""
    for name, parameter in model.named_parameters():
        if not torch.isfinite(local_part(parameter)).all():
            return name
    return None
