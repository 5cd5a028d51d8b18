"""Ways to damage a file: bits, lengths, and values of JSON that have the wrong type, size or depth."""

from __future__ import annotations

import json
import random
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
    """The content after one random damage: cut, overwritten, replaced, with a flipped bit, or with another value of JSON."""
    place, way = draw.randrange(len(content) + 1), draw.randrange(6)
    if way == 0:
        return content[:place]
    if way == 1:
        return content[:place] + draw.choice((b"\0", b"\xff", b"9", b"[")) * 64 + content[place + 64 :]
    if way == 2:
        return draw.choice(
            [b"", b"PK\x03\x04", b"\x93NUMPY\x01\x00", b"[" * 200_000, *(json.dumps(value).encode() for value in NASTY)]
        )
    if way == 3 and content:
        return content[: place - 1] + bytes([content[place - 1] ^ 1 << draw.randrange(8)]) + content[place:]
    lines = content.splitlines(keepends=True) if content[:1] == b"{" else [content]
    number = draw.randrange(len(lines)) if lines and lines[0].endswith(b"}\n") else None
    try:
        value = json.loads(content if number is None else lines[number])
        value[draw.choice(list(value))] = draw.choice(NASTY)
    except (ValueError, TypeError, IndexError):
        return content + b"\n{}\n"
    changed = json.dumps(value).encode()
    return changed if number is None else b"".join([*lines[:number], changed + b"\n", *lines[number + 1 :]])
