"""Errors of the parser of flags (tyro) as one line in the words of this package."""

from __future__ import annotations

import difflib
import re

NUMBERS = {
    "invalid literal for int() with base 10: ": "a whole number",
    "could not convert string to float: ": "a number",
}


def explain_usage(box: str) -> str:
    """The first message in the frame that tyro draws around its errors, and its suggestion if there is one."""
    paragraphs: list[list[str]] = [[]]
    for line in re.sub(r"\x1b\[[\d;]*m", "", box).splitlines()[1:]:  # in a terminal, the frame is coloured
        text = line.strip("│|+╭╰╮╯ ")
        if text.strip("─-"):
            paragraphs[-1].append(text)
        elif paragraphs[-1]:
            paragraphs.append([])
    message = re.sub(r"^Error parsing (?!--)[\w.-]+: ", "", " ".join(paragraphs[0])).removesuffix(".")
    suggestions = [paragraph for paragraph in paragraphs if paragraph and paragraph[0].startswith("Perhaps you meant")]
    lines = [line for paragraph in suggestions for line in paragraph]
    flags = [found[1] for line in lines if (found := re.match(r"(?:-\w, )?(--[\w-]+)", line))]
    return _rephrase(message) + (f" (did you mean {' or '.join(flags)}?)" if flags else "")


def _rephrase(message: str) -> str:
    """A message of tyro as expected and actual."""
    if found := re.match(r"Missing from [\w -]+: (\S+) (.*?)\.? \(required\)$", message):
        return f"{found[1]} is missing: expected {found[2][:1].lower()}{found[2][1:]}"
    if found := re.match(r"Unrecognized options: (.*)$", message):
        return _name_unknown(found[1].split(", "))
    if found := re.match(r"invalid choice '(.*)' for argument '(.*?)'\. Expected one of \((.*)\)$", message):
        return _list_choices(found[2], found[1], re.findall(r"'(.*?)'", found[3]))
    if found := re.match(r"Missing value for argument '(?:\(')?(.*?)'", message):  # with ( in tyro 1.0
        return f"{found[1]} has no value: expected one after it"
    for reason, expected in NUMBERS.items():
        if found := re.match(rf"Error parsing (--[\w-]+): {re.escape(reason)}(.*)$", message):
            return f"{found[1]} is {found[2]}: expected {expected}"
    return message


def _name_unknown(words: list[str]) -> str:
    """What was given and belongs to no flag; the values of unknown flags are not repeated."""
    flags = [word for word in words if word.startswith("-")]
    if flags:
        return f"unknown flag{'s' * (len(flags) > 1)} {', '.join(flags)}"
    return f"unexpected argument{'s' * (len(words) > 1)} {', '.join(map(repr, words))}"


def _list_choices(flag: str, given: str, choices: list[str]) -> str:
    if "None" in choices:  # a flag that need not be given; its choices then come in no particular order
        choices = sorted(set(choices) - {"None"})
    close = difflib.get_close_matches(given, choices, n=1)
    return f"{flag} is {given!r}: expected one of {', '.join(choices)}" + (
        f"; did you mean {close[0]}?" if close else ""
    )
