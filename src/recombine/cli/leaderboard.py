"""recombine leaderboard DIR... -o FILE: write one HTML file that ranks the finished runs in a folder."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from recombine.cli.main import Argument, Output, parse
from recombine.report.leaderboard import Board, write_leaderboard
from recombine.training.schema import Json


@dataclass(frozen=True, kw_only=True)
class LeaderboardOptions(Output):
    """Write one HTML file that ranks runs. Only runs of the same task, seed, split and budget are ranked together."""

    examples = ("recombine leaderboard runs -o leaderboard.html", "recombine leaderboard runs/small runs/paper")

    folders: Annotated[tuple[Path, ...], Argument(metavar="DIR", positional=True)] = (Path("runs"),)
    """Folders with run directories."""
    out: Annotated[Path, Argument(alias="-o")] = Path("leaderboard.html")
    """File to write."""
    title: str = "Which models recombine what they learned?"
    """Heading of the page."""


def run(argv: list[str]) -> None:
    options = parse(LeaderboardOptions, argv, prog="leaderboard")
    boards = write_leaderboard(options.folders, options.out, title=options.title)
    num_entries = sum(len(board.entries) for board in boards)
    value = {"leaderboard": str(options.out), "boards": [describe_board(board) for board in boards]}
    options.show(value, f"{options.out} ({num_entries} runs on {len(boards)} board{'s' * (len(boards) > 1)})")


def describe_board(board: Board) -> Json:
    """What entries of a board have in common, and their scores."""
    return {
        "task": board.first["task"],
        "budget": board.budget,
        "seed": board.first["seed"],
        "split_sha256": board.first["split_sha256"],
        "versions": {name: board.first["versions"][name] for name in ("task", "training", "evaluation")},
        "evaluation_instances": board.first["evaluation_instances"],
        "metric": board.metric["title"],
        "entries": [
            {
                "run": str(entry.run.path),
                "model": entry.label,
                "test": entry.score("test"),
                "ood": entry.score("ood"),
                "num_parameters": entry.result["num_parameters"],
                "seconds": entry.result["seconds"],
                "version": entry.version,
            }
            for entry in board.entries
        ],
    }
