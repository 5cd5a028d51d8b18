"""Costs that are kept in a file, so that they are known where nobody has measured them.

A `costs.json` holds the measured times of each size (see `estimate`), with the processor and the number of threads. The one
in `results` is about runs of claims that were not made. The one in this package is about all experiments
(`benchmarks/experiment_costs.py`).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path

from recombine.errors import InputError
from recombine.files import replace_file
from recombine.run import RunConfig, resolve_device
from recombine.store import Json, describe_environment, hash_config
from recombine.sweep.estimate import Cost, describe_size, measure_cost

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
