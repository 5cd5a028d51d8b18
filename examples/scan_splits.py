"""The commands of SCAN (Lake and Baroni, arXiv 1711.00350) from their grammar, with three of its splits, as a table to certify.

    python examples/scan_splits.py scan.csv
    recombine certify scan.csv --composition verb way manner times join verb_2 way_2 manner_2 times_2 --split add_jump

A command is one or two clauses, such as `jump around left twice and walk`. Each column is one choice of the grammar.
"""

import csv
import hashlib
import itertools
import sys

VERBS, WAYS, TIMES = ("walk", "look", "run", "jump"), ("left", "right"), {"once": 1, "twice": 2, "thrice": 3}
MANNERS = {"": 1, "opposite": 2, "around": 4}  # quarter turns; "around" repeats the verb after each
COLUMNS = ("verb", "way", "manner", "times")


def list_clauses():
    """Every clause with the length of its action sequence."""
    for times, repeats in TIMES.items():
        for verb in VERBS:
            yield (verb, "", "", times), repeats
        for verb, way, (manner, turns) in itertools.product((*VERBS, "turn"), WAYS, MANNERS.items()):
            moves = 0 if verb == "turn" else turns if manner == "around" else 1
            yield (verb, way, manner, times), repeats * (turns + moves)


def list_commands():
    """Every command with the length of its action sequence: 20,910."""
    clauses = list(list_clauses())
    for clause, length in clauses:
        yield (*clause, "", "", "", "", ""), length
    for join, (first, length), (second, more) in itertools.product(("and", "after"), clauses, clauses):
        yield (*first, join, *second), length + more


def main(path):
    with open(path, "w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow((*COLUMNS, "join", *(f"{name}_2" for name in COLUMNS), "add_jump", "length", "simple"))
        for command, length in list_commands():
            alone = command[:5] == ("jump", "", "", "once", "")
            add_jump = "train" if "jump" not in command or alone else "test"
            simple = "test" if hashlib.sha256(" ".join(command).encode()).digest()[0] < 51 else "train"
            writer.writerow((*command, add_jump, "train" if length <= 22 else "test", simple))


if __name__ == "__main__":
    main(*sys.argv[1:])
