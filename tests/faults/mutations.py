"""Ways to damage a file: bits, lengths, and values of JSON that have the wrong type, size or depth."""

from __future__ import annotations

import copy
import json
import random
from collections.abc import Iterator
from typing import Any

NASTY_NUMBERS = (0, -1, 1, 2, 3, -5, 10**9, 2**31, 2**63, 2**70, 10**400, 1.5, -0.0, 1e-320, 1e308, float("nan"))
NASTY_TEXTS = (
    "",
    "x",
    "nan",
    "0",
    "../../x",
    "<script>alert(1)</script>",
    "\u202e\u2066a",
    "\ud800",
    "a" * 5_000,
    "\0",
)
NASTY_SHAPES: tuple[Any, ...] = ({}, [], [[]], {"": {}}, [None], {"value": {}}, [1, 2, 3], [["a"]])
NASTY = (None, True, False, float("inf"), *NASTY_NUMBERS, *NASTY_TEXTS, *NASTY_SHAPES)


def damage(content: bytes, draw: random.Random) -> bytes:
    """The content after one random damage."""
    ways = [truncate, flip_bits, overwrite, lengthen, empty, replace_by_rubbish, nest]
    if content[:1] in (b"{", b"["):
        ways += [change_json] * 12
    return draw.choice(ways)(content, draw)


def truncate(content: bytes, draw: random.Random) -> bytes:
    return content[: draw.randrange(len(content) + 1)]


def flip_bits(content: bytes, draw: random.Random) -> bytes:
    flipped = bytearray(content)
    for _ in range(draw.choice((1, 1, 2, 20)) if content else 0):
        flipped[draw.randrange(len(flipped))] ^= 1 << draw.randrange(8)
    return bytes(flipped)


def overwrite(content: bytes, draw: random.Random) -> bytes:
    first = draw.randrange(len(content) + 1)
    filler = draw.choice((b"\0", b"\xff", b"9", b"["))
    return content[:first] + filler * draw.randrange(1, 64) + content[first + 64 :]


def lengthen(content: bytes, draw: random.Random) -> bytes:
    return content + draw.choice((b"\0" * 100, content, b"\n{}\n", b"\n[1]\n"))


def empty(content: bytes, draw: random.Random) -> bytes:
    return b""


def replace_by_rubbish(content: bytes, draw: random.Random) -> bytes:
    known = [json.dumps(value).encode() for value in NASTY]
    foreign = [b"PK\x03\x04", b"\x80\x04\x95", b"\x93NUMPY\x01\x00", b"\xff" * 16, b"\xef\xbb\xbf{}"]
    return draw.choice([*known, *foreign, draw.randbytes(draw.randrange(64))])


def nest(content: bytes, draw: random.Random) -> bytes:
    depth = draw.choice((50, 2_000, 200_000))
    return draw.choice((b'{"a":' * depth + b"1" + b"}" * depth, b"[" * depth + b"]" * depth))


def change_json(content: bytes, draw: random.Random) -> bytes:
    """One or two values of a JSON file, or of a line of it, replaced, deleted or moved."""
    lines = content.splitlines(keepends=True)
    whole = _parse(content)
    if whole is not None:
        return json.dumps(change_value(whole, draw)).encode()
    number = draw.randrange(len(lines))
    value = _parse(lines[number])
    if value is not None:
        lines[number] = json.dumps(change_value(value, draw)).encode() + b"\n"
    return b"".join(lines)


def change_value(value: Any, draw: random.Random) -> Any:
    """A copy of a JSON value with one or two places changed."""
    changed = {"": copy.deepcopy(value)}
    for _ in range(draw.choice((1, 1, 1, 2))):
        owner, key = draw.choice(list(places(changed)))
        way = draw.randrange(4)
        if way == 0 and owner is not changed:
            del owner[key]
        elif way == 1:
            other_owner, other_key = draw.choice(list(places(changed)))
            owner[key] = copy.deepcopy(other_owner[other_key])
        else:
            owner[key] = draw.choice(NASTY)
    return changed[""]


def places(value: Any) -> Iterator[tuple[Any, Any]]:
    """Every (container, key) in a JSON value."""
    items = value.items() if isinstance(value, dict) else enumerate(value)
    for key, item in list(items):
        yield value, key
        if isinstance(item, (dict, list)):
            yield from places(item)


def _parse(content: bytes) -> Any:
    try:
        return json.loads(content)
    except (ValueError, RecursionError):
        return None
