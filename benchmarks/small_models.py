"""Small models: what a training step of one to ten milliseconds gains from `torch.compile`, and from stacking seeds.

    python benchmarks/small_models.py [TASK ...] [--scale tiny] [--seeds 4] [--threads N] [--seconds S]

Time per step and model, in milliseconds, batches left out:

    eager             what training does
    forward compiled  the same with `--compile`
    whole step        loss, gradient and AdamW in one compiled graph
    four steps        four of them in one compiled graph
    stacked           several seeds in one model by `torch.func.stack_module_state` and `vmap`
    stacked compiled  the same in one compiled graph

The three last ones go through `torch.func`, which sees through no kernel, so attention takes the reference path there.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.func import functional_call, grad_and_value, stack_module_state, vmap

from recombine.cli.bench import machine
from recombine.training.config import RunConfig, build_optimizer, default_run

TASKS = ("sequence_teacher", "hyperteacher", "goal_grid", "preference_grid", "in_context", "fuzzy_logic")
AT_ONCE = 4
BETAS, EPSILON, RATE, DECAY = (0.9, 0.999), 1e-8, 1e-3, 0.1

State = dict[str, dict[str, Tensor]]


def make_state(parameters: dict[str, Tensor]) -> State:
    """Parameters and moments; AdamW is written out below, since an optimizer is no function of tensors."""
    detached = {name: value.detach().clone() for name, value in parameters.items()}
    zeros = {name: torch.zeros_like(value) for name, value in detached.items()}
    return {"parameters": detached, "first": zeros, "second": {n: v.clone() for n, v in zeros.items()}}


def update(state: State, gradients: dict[str, Tensor], step: Tensor, extra_dimensions: int) -> State:
    """One step of AdamW; `extra_dimensions`: 1 if the parameters of several models are stacked."""
    new: State = {"parameters": {}, "first": {}, "second": {}}
    for name, gradient in gradients.items():
        parameter = state["parameters"][name]
        decay = DECAY if parameter.dim() - extra_dimensions > 1 else 0.0
        first = state["first"][name].lerp(gradient, 1 - BETAS[0])
        second = state["second"][name].lerp(gradient.square(), 1 - BETAS[1])
        size = (second / (1 - BETAS[1] ** step)).sqrt() + EPSILON
        new["parameters"][name] = parameter * (1 - RATE * decay) - RATE * first / (1 - BETAS[0] ** step) / size
        new["first"][name], new["second"][name] = first, second
    return new


def make_loss(
    config: RunConfig, model: torch.nn.Module, buffers: dict[str, Tensor], batch: Any
) -> Callable[..., Tensor]:
    def loss(parameters: dict[str, Tensor], inputs: Tensor) -> Tensor:
        predictions = functional_call(model, (parameters, buffers), (inputs,))
        return config.task.loss(predictions.float(), batch)

    return loss


def make_eager(config: RunConfig, compiled: bool = False) -> machine.Pass:
    model = config.build_model()
    forward = torch.compile(model, dynamic=False, fullgraph=True) if compiled else model
    optimizer = build_optimizer(model, weight_decay=DECAY)
    for group in optimizer.param_groups:
        group["lr"] = RATE
    batch = config.task.sample("train", 0, batch_size=config.training.batch_size)

    def run() -> None:
        loss = config.task.loss(forward(batch.inputs).float(), batch)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()

    return run


def make_whole(config: RunConfig, steps: int) -> machine.Pass:
    model = config.build_model()
    batch = config.task.sample("train", 0, batch_size=config.training.batch_size)
    differentiate = grad_and_value(make_loss(config, model, dict(model.named_buffers()), batch))

    @torch.compile(dynamic=False, fullgraph=True)
    def advance(state: State, step: Tensor) -> State:
        for _ in range(steps):
            gradients, _loss = differentiate(state["parameters"], batch.inputs)
            state = update(state, gradients, step, 0)
        return state

    return _keep_state(advance, make_state(dict(model.named_parameters())))


def make_stacked(config: RunConfig, seeds: int, compiled: bool) -> machine.Pass:
    models = [config.build_model() for _ in range(seeds)]
    parameters, buffers = stack_module_state(models)
    batch = config.task.sample("train", 0, batch_size=config.training.batch_size)
    inputs = batch.inputs.expand(seeds, *batch.inputs.shape).clone()
    shared = {name: value[0] for name, value in buffers.items()}
    differentiate = vmap(grad_and_value(make_loss(config, models[0], shared, batch)), randomness="different")

    def advance(state: State, step: Tensor) -> State:
        return update(state, differentiate(state["parameters"], inputs)[0], step, 1)

    function = torch.compile(advance, dynamic=False, fullgraph=True) if compiled else advance
    return _keep_state(function, make_state(parameters))


def _keep_state(advance: Callable[[State, Tensor], State], state: State) -> machine.Pass:
    step = torch.tensor(10.0)

    def run() -> None:
        nonlocal state
        state = advance(state, step)

    return run


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("tasks", nargs="*", default=TASKS)
    parser.add_argument("--scale", default="tiny")
    parser.add_argument("--seeds", type=int, default=4)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--seconds", type=float, default=1.0)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    print(machine.name_cpu())
    for name in options.tasks:
        torch._dynamo.reset()
        config = default_run(name, options.scale)
        makers = {
            "eager": (partial(make_eager, config), 1),
            "forward compiled": (partial(make_eager, config, compiled=True), 1),
            "whole step": (partial(make_whole, config, 1), 1),
            "four steps": (partial(make_whole, config, AT_ONCE), AT_ONCE),
            "stacked": (partial(make_stacked, config, options.seeds, False), options.seeds),
            "stacked compiled": (partial(make_stacked, config, options.seeds, True), options.seeds),
        }
        passes, counts = {}, {}
        for variant, (make, count) in makers.items():
            try:
                passes[variant], counts[variant] = make(), count
                passes[variant]()
            except Exception as error:  # what a variant cannot do is a result too
                passes.pop(variant, None)
                print(f"{name}: {variant}: {type(error).__name__}: {str(error).splitlines()[0][:100]}", flush=True)
        medians = machine.take_medians(machine.time_interleaved(passes, options.seconds))
        times = {variant: 1e3 * value / counts[variant] for variant, value in medians.items()}
        listed = "  ".join(f"{variant} {t:.2f} ({times['eager'] / t:.2f}x)" for variant, t in times.items())
        print(f"{name}: {listed}", flush=True)


if __name__ == "__main__":
    main()
