"""What runs cost on this machine, estimated from a few steps of each distinct size.

    seconds = steps * (seconds per step + seconds per batch) + evaluations during training + final evaluation

The time of an evaluation is a straight line through two short ones. Times depend on everything but the seed, the number of
steps and the hyperparameters of the optimizer. With one thread they are CPU times, which other work on the machine hardly
changes. They are kept in the cache folder under a hash of the size and of the environment: code, torch, processor and number
of threads.

Costs that are kept in a file, so that they are known where nobody has measured them.

A `costs.json` holds the measured times of each size (see `estimate`), with the processor and the number of threads. The one
in `results` is about runs of claims that were not made. The one in this package is about all experiments
(`benchmarks/experiment_costs.py`).
"""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import torch

from recombine.foundation.errors import InputError
from recombine.foundation.files import replace_file
from recombine.foundation.native import cache_directory
from recombine.training.config import RunConfig
from recombine.training.devices import resolve_device
from recombine.training.directory import describe_environment, hash_config
from recombine.training.loop import Trainer, intervals
from recombine.training.schema import Json
from recombine.training.score import evaluate_predictor

VERSION = 2
TRAINING_SIZES = ("batch_size", "precision", "gradient_clip")  # settings of the training that change the time of a step
MIN_STEPS, MAX_STEPS, SECONDS = 3, 50, 0.3  # how long steps are timed
NUM_INSTANCES = (32, 128)  # of the two short evaluations


@dataclass(frozen=True, kw_only=True)
class Cost:
    """Seconds that parts of a run take."""

    step: float
    interim: tuple[float, float]  # evaluation during training: fixed part, and part per instance
    final: tuple[float, float]  # the same with reference scores

    def total(self, config: RunConfig) -> float:
        """Seconds of a whole run."""
        steps = config.training.steps
        num_interim = max(1, steps // intervals(steps, config.task.training_evaluations)["evaluate_every"])
        interim = self.interim[0] + self.interim[1] * config.task.training_evaluation_instances
        return (
            steps * self.step + num_interim * interim + self.final[0] + self.final[1] * config.task.evaluation_instances
        )


@dataclass(frozen=True, kw_only=True)
class Estimate:
    """Estimated cost of several runs: seconds of each, one after the other."""

    seconds: tuple[float, ...]
    num_sizes: int
    num_elsewhere: int = 0  # sizes of which the cost on this machine is not known

    @property
    def total(self) -> float:
        return sum(self.seconds, 0.0)

    def wall(self, jobs: int) -> float:
        """Seconds if so many runs are trained at a time, each as fast as alone: at least the longest run."""
        return max(max(self.seconds, default=0.0), self.total / jobs)


def describe_size(config: RunConfig) -> Json:
    """What determines the time of a step."""
    identity = config.identity
    task = {name: value for name, value in identity["task"].items() if name != "seed"}
    training = {name: value for name, value in identity["training"].items() if name in TRAINING_SIZES}
    return {"task": task, "model": identity["model"], "training": training}


def estimate_runs(
    configs: Sequence[RunConfig],
    *,
    threads: int,
    device: str = "auto",
    measure: bool = True,
    elsewhere: Mapping[str, Cost] | None = None,
    watch: Callable[[int, int], None] | None = None,
) -> Estimate | None:
    """Estimate runs, measuring sizes that are not in the cache.

    Without `measure`, the cost of such a size is the one `elsewhere`, on another machine; if there is none, it returns None.
    `watch` is called with the number of sizes known so far and of all sizes.
    """
    cache = CostCache(threads=threads, device=device)
    sizes: dict[str, RunConfig] = {}
    keys = []
    for config in configs:
        keys.append(hash_config(describe_size(config)))
        sizes.setdefault(keys[-1], config)
    costs: dict[str, Cost] = {}
    num_elsewhere = 0
    for number, (key, config) in enumerate(sizes.items(), start=1):
        cost = cache.find(key)
        if cost is None and measure:
            cost = cache.keep(key, measure_cost(config, threads=threads, device=device))
        if cost is None:
            cost = (elsewhere or {}).get(key)
            num_elsewhere += 1
        if cost is None:
            return None
        costs[key] = cost
        if watch is not None:
            watch(number, len(sizes))
    totals = tuple(costs[key].total(config) for key, config in zip(keys, configs, strict=True))
    return Estimate(seconds=totals, num_sizes=len(sizes), num_elsewhere=num_elsewhere)


def measure_cost(config: RunConfig, *, threads: int, device: str = "auto") -> Cost:
    """Time a few steps and two short evaluations."""
    torch_device, before = resolve_device(device), torch.get_num_threads()
    torch.set_num_threads(threads)
    measure = partial(_time, time.process_time if torch_device.type == "cpu" and threads == 1 else time.perf_counter)
    try:
        model = config.build_model()
        trainer = Trainer(model, config.task, config.training, torch_device)
        trainer.advance().item()
        group = trainer.batches.group_size
        generate = measure(lambda: trainer.batches.make_group(group)) / group
        steps = list(_time_steps(trainer, measure))

        def evaluate(references: bool) -> tuple[float, float]:
            def once(num_instances: int) -> float:
                return measure(
                    lambda: evaluate_predictor(
                        model, config.task, num_instances=num_instances, references=references, device=torch_device
                    )
                )

            once(NUM_INSTANCES[0])  # what is computed once per task, such as the split
            few, many = map(once, NUM_INSTANCES)
            slope = max(0.0, (many - few) / (NUM_INSTANCES[1] - NUM_INSTANCES[0]))
            return max(0.0, few - slope * NUM_INSTANCES[0]), slope

        return Cost(step=median(steps) + generate, interim=evaluate(False), final=evaluate(True))
    finally:
        torch.set_num_threads(before)


def _time_steps(trainer: Trainer, measure: Callable[[Callable[[], Any]], float]) -> Iterable[float]:
    """Times of steps without the generation of their batches."""
    start = time.perf_counter()
    for number in range(MAX_STEPS):
        if number >= MIN_STEPS and time.perf_counter() - start > SECONDS:
            return
        trainer.batches.take(trainer.step)
        yield measure(lambda: trainer.advance().item())


def _time(clock: Callable[[], float], call: Callable[[], Any]) -> float:
    start = clock()
    call()
    return clock() - start


class CostCache:
    """Costs on disk. Without a writable cache folder, nothing is kept."""

    def __init__(self, *, threads: int, device: str) -> None:
        environment: Json = {**describe_environment(resolve_device(device)), "num_threads": threads}
        self.environment = hash_config({"version": VERSION, **environment})
        self.folder: Path | None = None
        with contextlib.suppress(InputError, OSError):
            self.folder = cache_directory() / "estimates"

    def find(self, key: str) -> Cost | None:
        if self.folder is None:
            return None
        try:
            stored = json.loads((self.folder / f"{self.environment}-{key}.json").read_bytes())
            return Cost(step=float(stored["step"]), interim=tuple(stored["interim"]), final=tuple(stored["final"]))
        except (OSError, ValueError, KeyError, TypeError, OverflowError, RecursionError):
            return None

    def keep(self, key: str, cost: Cost) -> Cost:
        if self.folder is not None:
            with contextlib.suppress(OSError):
                self.folder.mkdir(parents=True, exist_ok=True)
                replace_file(self.folder / f"{self.environment}-{key}.json", json.dumps(asdict(cost)).encode())
        return cost


THREADS = 1
DIGITS = 4  # of a time
PACKAGED = Path(__file__).parent


def costs_path(results: Path) -> Path:
    return results / "costs.json"


def read_costs(results: Path) -> Json:
    """What is kept: `sizes` by hash, and where they were measured."""
    path = costs_path(results)
    if not path.exists():
        return {"sizes": {}}
    try:
        kept: Json = json.loads(path.read_bytes())
        _ = parse_costs(kept)
    except (OSError, ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError) as error:
        raise InputError(f"{path} cannot be read ({error}): expected costs that `reproduce claims` wrote") from None
    return kept


def parse_cost(stored: Json) -> Cost:
    interim, final = ((float(fixed), float(each)) for fixed, each in (stored["interim"], stored["final"]))
    return Cost(step=float(stored["step"]), interim=interim, final=final)


def parse_costs(kept: Json) -> dict[str, Cost]:
    """Costs by the hash of their size."""
    return {key: parse_cost(cost) for key, cost in kept["sizes"].items()}


def estimate_hours(results: Path) -> Callable[[RunConfig], float | None]:
    """A function that gives the core-hours of a run, or None if its size has not been measured."""
    costs = parse_costs(read_costs(results))

    def estimate(config: RunConfig) -> float | None:
        cost = costs.get(hash_config(describe_size(config)))
        return None if cost is None else cost.total(config) * THREADS / 3600

    return estimate


def measure_costs(configs: Iterable[RunConfig], results: Path, say: Callable[[str], None]) -> None:
    """Measure every size that is not kept yet. The file is written after each, so that nothing is lost."""
    kept = read_costs(results)
    sizes = {hash_config(describe_size(config)): config for config in configs}
    missing = {key: config for key, config in sizes.items() if key not in kept["sizes"]}
    for number, (key, config) in enumerate(missing.items(), start=1):
        say(f"measuring size {number}/{len(missing)}: {config.name}")
        cost = measure_cost(config, threads=THREADS, device="cpu")
        environment = describe_environment(resolve_device("cpu"))
        kept["sizes"][key] = {"name": config.name, **_round(asdict(cost))}
        processors = [name for name in kept.get("processor", "").split(", ") if name]
        kept |= {
            "processor": ", ".join(dict.fromkeys((*processors, environment["processor"]))),  # of all sizes
            "threads": THREADS,
            "measured": datetime.now(UTC).date().isoformat(),
        }
        results.mkdir(parents=True, exist_ok=True)
        replace_file(costs_path(results), (json.dumps(kept, indent=1, sort_keys=True) + "\n").encode())


def _round(times: Json) -> Json:
    def shorten(value: float) -> float:
        return float(f"{value:.{DIGITS}g}")

    return {
        name: shorten(value) if isinstance(value, float) else tuple(map(shorten, value))
        for name, value in times.items()
    }
