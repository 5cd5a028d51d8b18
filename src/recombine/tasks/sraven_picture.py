"""Puzzles for people (being written)."""


def write_puzzle(task, batch, row):
    return ""


def draw_puzzle(task, batch, row, path):
    pass
