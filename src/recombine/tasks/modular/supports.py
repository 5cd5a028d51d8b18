"""Which compositions of modules are trained: the support of a task distribution.

Of at most K modules (Scaling can lead to compositional generalization, arXiv 2507.07207), `split_support`:

    random             a random subset, drawn until every module occurs and the graph of co-occurring modules is connected
    equal              the same, with each module in equally many training compositions, up to one
    disconnected       modules are divided into two groups; compositions within a group are trained, those across held out
    non_compositional  every composition with one particular module is held out, so this module is never trained
    popular_modules    trained: compositions with at least one of the first n modules, n as large as the fraction allows
    unpopular_modules  trained: all compositions of a core of modules, a few with other modules, only one with the last module

`disconnected` and `non_compositional` ignore the held-out fraction. The last two are filled up to it; `unpopular_modules`
holds out more if its last module, trained once, has more compositions than the fraction.

Of exactly K modules (When can transformers compositionally generalize in-context?, arXiv 2407.12275), `choose_support`:

    connected      on a ring that advances by K - 1, so that neighbours share one module: 01 12 23 34 45 50 for pairs of 6,
                   012 234 450 for triples; it exists if K >= 2 and K - 1 divides M
    disconnected   the same on each half of the modules, or the whole half: 01 12 20 and 34 45 53, or 012 and 345
    custom         as given

The certificate of the split shows coverage and connectedness.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

from recombine.compositions import (
    MAX_REDRAWS,
    Composition,
    CompositionSplit,
    all_sets,
    check_number,
    count_components,
    count_coverage,
    count_held_out,
    order_by_hash,
    split_compositions,
)
from recombine.foundation.errors import InputError

Support = Literal["random", "equal", "disconnected", "non_compositional", "popular_modules", "unpopular_modules"]
InContextSupport = Literal["connected", "disconnected", "custom"]


def split_support(
    support: Support, num_modules: int, num_active: int, most_active: int = 0, *, held_out: float, seed: int
) -> CompositionSplit:
    """Split all sets of 1 to `num_active` modules into trained and held-out ones, as the support defines.

    Larger sets, up to `most_active`, are the `unknown` split.
    """
    if not 2 <= num_active <= num_modules:
        raise InputError(
            f"num_active is {num_active} of {num_modules} modules: expected at least 2 and at most {num_modules}"
        )
    most = max(num_active, most_active)
    check_number(num_modules, range(1, most + 1))
    compositions = all_sets(num_modules, range(1, num_active + 1))
    larger = range(num_active + 1, most + 1)
    redraws = 0
    if support in ("disconnected", "non_compositional"):
        order = [module for (module,) in order_by_hash(all_sets(num_modules, 1), seed=seed)]
        if support == "disconnected" and num_modules < 4:
            raise InputError(f"support disconnected of {num_modules} modules: expected at least 4, two in each group")
        group = set(order[: num_modules // 2 if support == "disconnected" else 1])
        train = {modules for modules in compositions if group.isdisjoint(modules)}
        if support == "disconnected":
            train |= {modules for modules in compositions if group.issuperset(modules)}
    elif support == "popular_modules":
        train = _popular_modules(compositions, num_modules, held_out, seed)
    elif support == "unpopular_modules":
        train = _unpopular_modules(compositions, num_modules, held_out, seed)
    else:
        drawn = split_compositions(compositions, held_out=held_out, seed=seed, connected=True)
        train, redraws = set(drawn.train), drawn.redraws
        if support == "equal":
            train, redraws = _balance(compositions, len(train), seed)
    return CompositionSplit(
        train=tuple(sorted(train)),
        ood=tuple(sorted(set(compositions) - train)),
        unknown=tuple(sorted(all_sets(num_modules, larger))) if larger else (),
        redraws=redraws,
    )


def _balance(compositions: tuple[Composition, ...], num_train: int, seed: int) -> tuple[set[Composition], int]:
    """Start from a random subset and exchange one module at a time, the most used for the least used.

    Such an exchange always exists while usage differs by more than one: if every training composition with the one module
    had its counterpart with the other in training too, the other would be used as often.
    """
    modules = sorted({module for composition in compositions for module in composition})
    for redraw in range(MAX_REDRAWS):
        train = set(order_by_hash(compositions, seed=seed, redraw=redraw)[-num_train:])
        usage = count_coverage(train, modules)
        while max(usage.values()) > min(usage.values()) + 1:
            most, least = max(modules, key=usage.__getitem__), min(modules, key=usage.__getitem__)
            moves = {old: tuple(sorted({*old} - {most} | {least})) for old in train if most in old and least not in old}
            old = order_by_hash([old for old, new in moves.items() if new not in train], seed=seed)[0]
            train = train - {old} | {moves[old]}
            usage[most] -= 1
            usage[least] += 1
        if min(usage.values()) > 0 and count_components(train, modules) == 1:
            return train, redraw
    raise InputError(
        f"{num_train} training compositions of {len(modules)} modules: in {MAX_REDRAWS} draws none was balanced, "
        "covered and connected; expected a smaller held-out fraction"
    )


def _popular_modules(
    compositions: tuple[Composition, ...], num_modules: int, held_out: float, seed: int
) -> set[Composition]:
    num_train = len(compositions) - count_held_out(held_out, len(compositions))
    sizes = {n: [composition for composition in compositions if composition[0] < n] for n in range(1, num_modules)}
    fitting = [chosen for chosen in sizes.values() if len(chosen) <= num_train]
    if not fitting:
        raise InputError(
            f"support popular_modules with {num_train} training compositions: expected at least {len(sizes[1])}, "
            "those with the first module; hold out a smaller fraction"
        )
    return _top_up(set(fitting[-1]), compositions, num_train, seed)


def _unpopular_modules(
    compositions: tuple[Composition, ...], num_modules: int, held_out: float, seed: int
) -> set[Composition]:
    def count(size: int) -> int:
        return sum(composition[-1] < size for composition in compositions) + num_modules - size

    num_train = len(compositions) - count_held_out(held_out, len(compositions))
    core = max((size for size in range(2, num_modules) if count(size) <= num_train), default=0)
    if core == 0 or count(core) > num_train:
        raise InputError(
            f"support unpopular_modules with {num_train} training compositions of {num_modules} modules: expected at "
            f"least {count(2)}, a core of two modules and one link to each other; hold out a smaller fraction"
        )
    train = {composition for composition in compositions if composition[-1] < core}
    for module in range(core, num_modules):
        links = [
            composition
            for composition in compositions
            if len(composition) > 1 and composition[-1] == module and composition[-2] < core
        ]
        train.add(order_by_hash(links, seed=seed)[0])
    return _top_up(
        train, (composition for composition in compositions if composition[-1] < num_modules - 1), num_train, seed
    )


def _top_up(train: set[Composition], pool: Iterable[Composition], num_train: int, seed: int) -> set[Composition]:
    """Fill up to the number of training compositions, in the order of the hash."""
    more = order_by_hash((composition for composition in pool if composition not in train), seed=seed)
    return train | set(more[: num_train - len(train)])


def choose_support(
    support: InContextSupport, combinations: str, num_modules: int, num_active: int
) -> tuple[Composition, ...]:
    """The trained compositions, sorted. A support that cannot exist or holds nothing out is an error."""
    if (support == "custom") != bool(combinations.strip()):
        raise InputError(
            f"support is {support!r} and combinations are {combinations!r}: expected combinations for 'custom' "
            "and for no other support"
        )
    half = num_modules // 2
    if support == "custom":
        train = parse_compositions(combinations, num_modules, num_active)
    elif support == "connected":
        train = build_ring(range(num_modules), num_active)
    elif num_modules % 2 == 0 and half >= num_active:
        train = build_ring(range(half), num_active) + build_ring(range(half, num_modules), num_active)
    else:
        raise InputError(
            f"num_modules is {num_modules}: expected an even number of at least {2 * num_active} for two halves with "
            f"compositions of {num_active}"
        )
    if len(train) == len(all_sets(num_modules, num_active)):
        raise InputError(
            f"support {support!r} of {num_active} of {num_modules} modules holds nothing out: expected more modules"
        )
    return train


def build_ring(modules: range, num_active: int) -> tuple[Composition, ...]:
    """Compositions around a ring of modules, each sharing one module with the next; or all modules as one composition."""
    count, step = len(modules), num_active - 1
    if count == num_active:
        return (tuple(modules),)
    if step < 1 or count % step != 0:
        raise InputError(
            f"a ring of {count} modules in compositions of {num_active} does not close: expected at least 2 modules per "
            f"composition, and a number of modules that {max(step, 1)} divides"
        )
    starts = range(0, count, step)
    return tuple(sorted({tuple(sorted(modules[(s + i) % count] for i in range(num_active))) for s in starts}))


def parse_compositions(text: str, num_modules: int, num_active: int) -> tuple[Composition, ...]:
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
