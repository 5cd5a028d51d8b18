"""Which compositions of modules are trained: rings, two separate halves, or as given.

A ring of M modules in compositions of K advances by K - 1, so that neighbours share exactly one module. It exists if
K >= 2 and K - 1 divides M, and it holds something out only if there are other compositions.
"""

from __future__ import annotations

from typing import Literal, get_args

from recombine.compositions import Composition, all_sets, count_coverage
from recombine.errors import InputError, check_choice

Support = Literal["connected", "disconnected", "custom"]


def choose_support(
    support: Support, combinations: str, *, num_modules: int, num_active: int
) -> tuple[Composition, ...]:
    """The trained compositions, sorted. A support that cannot exist or holds nothing out is an error."""
    check_choice("support", support, get_args(Support))
    if (support == "custom") != bool(combinations.strip()):
        raise InputError(
            f"support is {support!r} and combinations are {combinations!r}: expected combinations for 'custom' "
            "and for no other support"
        )
    if support == "connected":
        train = build_ring(range(num_modules), num_active)
    elif support == "disconnected":
        train = build_halves(num_modules, num_active)
    else:
        train = parse_compositions(combinations, num_modules=num_modules, num_active=num_active)
    if len(train) == len(all_sets(num_modules, num_active)):
        raise InputError(
            f"support {support!r} of {num_active} of {num_modules} modules holds nothing out: expected more modules"
        )
    return train


def build_ring(modules: range, num_active: int) -> tuple[Composition, ...]:
    """Compositions around a ring of modules, each sharing one module with the next."""
    count, step = len(modules), num_active - 1
    if step < 1 or count % step != 0:
        raise InputError(
            f"a ring of {count} modules in compositions of {num_active} does not close: expected at least 2 modules per "
            f"composition, and a number of modules that {max(step, 1)} divides"
        )
    starts = range(0, count, step)
    return tuple(sorted({tuple(sorted(modules[(s + i) % count] for i in range(num_active))) for s in starts}))


def build_halves(num_modules: int, num_active: int) -> tuple[Composition, ...]:
    """A ring on each half of the modules, or the whole half if it is one composition."""
    half = num_modules // 2
    if num_modules % 2 != 0 or half < num_active:
        raise InputError(
            f"num_modules is {num_modules}: expected an even number of at least {2 * num_active} for two halves with "
            f"compositions of {num_active}"
        )
    halves = (range(half), range(half, num_modules))
    rings = [(tuple(modules),) if half == num_active else build_ring(modules, num_active) for modules in halves]
    return rings[0] + rings[1]


def parse_compositions(text: str, *, num_modules: int, num_active: int) -> tuple[Composition, ...]:
    """Parse compositions such as "0-1 1-2 2-3"; they must cover every module."""
    compositions: list[Composition] = []
    for word in text.replace(",", " ").split():
        parts = word.split("-")
        composition = tuple(sorted(int(part) for part in parts if part.isdecimal()))
        fits = len(composition) == len(parts) == len(set(composition)) == num_active
        if not fits or not all(module < num_modules for module in composition):
            raise InputError(
                f"composition {word!r}: expected {num_active} different modules of 0 to {num_modules - 1}, such as "
                f"{'-'.join(map(str, range(num_active)))!r}"
            )
        if composition in compositions:
            raise InputError(f"composition {word!r} occurs twice: expected each once")
        compositions.append(composition)
    missing = [module for module, count in count_coverage(compositions, range(num_modules)).items() if count == 0]
    if missing:
        raise InputError(
            f"combinations {text!r} leave out module {missing[0]}: expected every module of 0 to {num_modules - 1} to "
            "be trained, because held-out compositions use it"
        )
    return tuple(sorted(compositions))
