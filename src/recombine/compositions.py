"""Compositions of modules, and splits of them with certificates.

A *composition* is a sorted tuple of module numbers: a set (fuzzy-logic terms) or a multiset (SRAVEN rules).
Compositional generalisation is the score on compositions held out of training whose modules were all trained, so a
split must show

- coverage: every module that may be trained occurs in some training composition,
- connectivity: whether the graph of modules that co-occur in training is connected (not required, but reported),
- disjointness: no composition is in two splits.

The order in which compositions are held out comes from SHA-256 of (seed, redraw, composition), never from a library's
random generator. A split is therefore the same on every version, platform and device.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property

from recombine.foundation.errors import InputError, format_count, require

Composition = tuple[int, ...]

MAX_REDRAWS = 10_000
MAX_COMPOSITIONS = 200_000


def all_sets(num_modules: int, sizes: int | Iterable[int]) -> tuple[Composition, ...]:
    """Every set of distinct modules of the given size or sizes, in lexicographic order of (size, modules)."""
    return _enumerate(itertools.combinations, num_modules, sizes)


def all_multisets(num_modules: int, sizes: int | Iterable[int]) -> tuple[Composition, ...]:
    """Every multiset of modules of the given size or sizes, in lexicographic order of (size, modules)."""
    return _enumerate(itertools.combinations_with_replacement, num_modules, sizes)


def _enumerate(
    combine: Callable[[range, int], Iterable[Composition]], num_modules: int, sizes: int | Iterable[int]
) -> tuple[Composition, ...]:
    sizes = (sizes,) if isinstance(sizes, int) else tuple(sizes)
    if num_modules < 1 or not sizes or min(sizes) < 1:
        raise InputError(f"{num_modules} modules in compositions of {sizes}: expected both to be at least 1")
    check_number(num_modules, sizes, repeated=combine is itertools.combinations_with_replacement)
    return tuple(itertools.chain.from_iterable(combine(range(num_modules), size) for size in sizes))


def check_number(num_modules: int, sizes: Sequence[int], *, repeated: bool = False) -> None:
    """Raise an error if there are too many sets (or multisets, `repeated`) of modules of these sizes to list them."""
    counts = (math.comb(num_modules + size - 1 if repeated else num_modules, size) for size in sizes)
    too_many = next((count for count in itertools.accumulate(counts) if count > MAX_COMPOSITIONS), None)
    if too_many is not None:
        shown = f"{sizes[0]}" if len(sizes) == 1 else f"{sizes[0]} to {sizes[-1]}"
        raise InputError(
            f"{format_count(num_modules)} modules, {shown} at once, make {format_count(too_many)} compositions"
            f"{' or more' if len(sizes) > 1 else ''}: expected at most {MAX_COMPOSITIONS:,}; use fewer modules, or fewer "
            "at once"
        )


@dataclass(frozen=True, kw_only=True)
class Certificate:
    """What a split guarantees, in numbers; `sha256` identifies the split in every result."""

    num_train: int
    num_ood: int
    num_unknown: int
    coverage: dict[int, int]  # module -> number of training compositions it occurs in
    num_components: int  # of the graph of modules that co-occur in training
    overlap: int
    redraws: int
    sha256: str

    @property
    def min_coverage(self) -> int:
        return min(self.coverage.values())

    @property
    def connected(self) -> bool:
        return self.num_components == 1

    def as_dict(self) -> dict[str, object]:
        coverage = {str(module): count for module, count in self.coverage.items()}
        derived = {"covered": self.min_coverage > 0, "min_coverage": self.min_coverage, "connected": self.connected}
        return {**asdict(self), **derived, "coverage": coverage}


@dataclass(frozen=True, kw_only=True)
class CompositionSplit:
    """Compositions for training (`train`), held out (`ood`) and with modules never trained (`unknown`)."""

    train: tuple[Composition, ...]
    ood: tuple[Composition, ...]
    unknown: tuple[Composition, ...] = ()
    redraws: int = 0

    def compositions(self, split: str) -> tuple[Composition, ...]:
        """The compositions that a split of a task draws from; `test` shares those of `train`."""
        return {"train": self.train, "test": self.train, "ood": self.ood, "unknown": self.unknown}[split]

    @property
    def only_larger(self) -> bool:
        """Whether the unknown compositions consist of trained modules only, more of them at once than in training."""
        trained = {module for composition in self.train for module in composition}
        return all(trained.issuperset(composition) for composition in self.unknown)

    @cached_property
    def certificate(self) -> Certificate:
        """Counts, coverage, connectivity and hash, computed from the compositions alone."""
        modules = sorted({module for composition in self.train + self.ood for module in composition})
        return Certificate(
            num_train=len(self.train),
            num_ood=len(self.ood),
            num_unknown=len(self.unknown),
            coverage=count_coverage(self.train, modules),
            num_components=count_components(self.train, modules),
            overlap=len(self.train + self.ood + self.unknown) - len({*self.train, *self.ood, *self.unknown}),
            redraws=self.redraws,
            sha256=hash_compositions(train=self.train, ood=self.ood, unknown=self.unknown),
        )


def split_compositions(
    compositions: Sequence[Composition],
    *,
    held_out: float,
    seed: int,
    unknown: Sequence[Composition] = (),
    connected: bool = False,
) -> CompositionSplit:
    """Hold out a fraction (rounded down) of the compositions, so that training still covers every module.

    An order that leaves a module uncovered is redrawn, deterministically. With `connected`, so is an order whose graph of
    co-occurring modules is not connected. A fraction for which no order is found is an error.
    """
    require(isinstance(seed, int) and not isinstance(seed, bool), "seed", seed, "a whole number")
    _check_compositions(compositions, unknown)
    num_held_out = count_held_out(held_out, len(compositions))
    num_train = len(compositions) - num_held_out
    modules = sorted({module for composition in compositions for module in composition})
    largest = max(len(set(composition)) for composition in compositions)
    fewest = -(-(len(modules) - connected) // max(1, largest - connected))  # as a tree, if connected
    if num_train < fewest:
        raise InputError(
            f"held-out fraction is {held_out}, which leaves {num_train} training compositions: expected at least "
            f"{fewest}, the fewest that can {'cover and connect' if connected else 'cover'} {len(modules)} modules"
        )
    for redraw in range(MAX_REDRAWS):
        ordered = order_by_hash(compositions, seed=seed, redraw=redraw)
        train = ordered[num_held_out:]
        covered = min(count_coverage(train, modules).values()) > 0
        if covered and (not connected or count_components(train, modules) == 1):
            return CompositionSplit(
                train=tuple(sorted(train)),
                ood=tuple(sorted(ordered[:num_held_out])),
                unknown=tuple(sorted(unknown)),
                redraws=redraw,
            )
    raise InputError(
        f"held-out fraction is {held_out}, which leaves {num_train} training compositions: in {MAX_REDRAWS} draws none "
        f"{'covered and connected' if connected else 'covered'} all {len(modules)} modules; expected a smaller fraction"
    )


def count_held_out(held_out: float, num_compositions: int) -> int:
    """The number of compositions that a fraction holds out, rounded down; none is an error."""
    if not isinstance(held_out, int | float) or not 0 < held_out < 1:
        percent = f"; did you mean {held_out / 100:g}?" if isinstance(held_out, float) and 1 < held_out < 100 else ""
        raise InputError(f"held-out fraction is {held_out!r}: expected a number strictly between 0 and 1{percent}")
    count = int(held_out * num_compositions + 1e-9)
    if count == 0:
        raise InputError(
            f"held-out fraction is {held_out} of {num_compositions} compositions, which is none: "
            f"expected at least {1 / num_compositions:.3g}"
        )
    return count


def _check_compositions(compositions: Sequence[Composition], unknown: Sequence[Composition]) -> None:
    """Require distinct sorted tuples of module numbers: the same modules twice could be both trained and held out."""
    if not compositions:
        raise InputError("there are no compositions: expected at least one")
    seen: set[Composition] = set()
    for composition in (*compositions, *unknown):
        numbers = isinstance(composition, tuple) and all(type(module) is int for module in composition)
        if not numbers or not composition or list(composition) != sorted(composition):
            raise InputError(f"composition {composition!r}: expected a sorted tuple of module numbers")
        if composition in seen:
            raise InputError(f"composition {composition!r} is listed twice: expected different ones")
        seen.add(composition)


def order_by_hash(compositions: Iterable[Composition], *, seed: int, redraw: int = 0) -> list[Composition]:
    """A pseudorandom order that depends on the arguments only."""

    def digest(composition: Composition) -> bytes:
        modules = ",".join(map(str, composition))
        return hashlib.sha256(f"recombine/{seed}/{redraw}/{modules}".encode()).digest()

    return sorted(compositions, key=digest)


def hash_compositions(**groups: Sequence[Composition]) -> str:
    """SHA-256 of named groups of compositions, independent of their order."""
    canonical = {name: sorted(map(list, group)) for name, group in groups.items()}
    return hashlib.sha256(json.dumps(canonical, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def count_coverage(compositions: Iterable[Composition], modules: Iterable[int]) -> dict[int, int]:
    """The number of compositions in which each module occurs."""
    counts = dict.fromkeys(modules, 0)
    for composition in compositions:
        for module in set(composition):
            counts[module] += 1
    return counts


def count_components(compositions: Iterable[Composition], modules: Iterable[int]) -> int:
    """Number of connected components of the graph whose edges join modules that co-occur in a composition."""
    parent = {module: module for module in modules}

    def root(module: int) -> int:
        while parent[module] != module:
            module = parent[module]
        return module

    for composition in compositions:
        for module in composition[1:]:
            parent[root(module)] = root(composition[0])
    return len({root(module) for module in parent})
