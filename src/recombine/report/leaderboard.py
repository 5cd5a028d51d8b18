"""A leaderboard of runs: one HTML file with a board per task setting, and a table of tasks and models on top.

Entries share a board only if everything that makes them comparable is the same: task with its settings and seed, split (by
its SHA-256), budget (steps and batch size), number of evaluation instances, and the versions of task, training and
evaluation. A budget has a name (`tiny`, `small`, `paper`) if task, steps and batch size are those of the task's preset.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import MISSING, dataclass, fields
from pathlib import Path

from recombine.foundation.errors import InputError, settings_as_dict
from recombine.foundation.files import write_output
from recombine.inside.verdict import name_splits
from recombine.report.page import render_page
from recombine.report.runs import find_position
from recombine.tasks.base import SCALES as BUDGETS
from recombine.tasks.families import TASKS
from recombine.training.comparison import differing_settings, label_settings
from recombine.training.config import default_run
from recombine.training.directory import RunDirectory, find_runs, hash_config
from recombine.training.intervals import compare
from recombine.training.schema import Json, Score

_log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class Entry:
    """One finished run."""

    run: RunDirectory
    result: Json
    version: str  # of this package, when the run was trained

    @property
    def label(self) -> str:
        return str(self.result["label"]).replace("_", " ")

    def score(self, split: str) -> Json:
        """The headline score on a split."""
        return next(iter(self.result["scores"][split].values()))

    @property
    def sums(self) -> list[list[float]]:
        """Numerators and denominators of the headline score on held-out compositions."""
        return next(iter(self.result["composition_sums"]["ood"].values()))


@dataclass(frozen=True, kw_only=True)
class Board:
    """Entries that can be compared, best first."""

    key: str
    budget: str
    entries: list[Entry]
    details: list[str]  # settings that tell entries with the same label apart
    tied: list[bool | None]  # whether the paired difference to the best includes 0; None if on other instances

    @property
    def task(self) -> str:
        return str(self.entries[0].result["task"]).replace("_", " ")

    @property
    def first(self) -> Json:
        return self.entries[0].result

    @property
    def metric(self) -> Json:
        return self.first["metrics"][next(iter(self.first["scores"]["ood"]))]

    @property
    def certificate(self) -> Json:
        return self.entries[0].run.read_json("split.json")["certificate"]

    @property
    def splits(self) -> dict[str, str]:
        """What the task calls `test` and `ood`."""
        return name_splits(self.first)

    @property
    def title(self) -> str:
        return f"{self.task}, {self.budget}, seed {self.first['seed']}"


def write_leaderboard(folders: Sequence[Path], out: Path, *, title: str) -> list[Board]:
    """Write the page about all finished runs in some folders."""
    boards = make_boards([run for folder in folders for run in find_runs(folder)])
    if not boards:
        named = ", ".join(map(str, folders))
        raise InputError(f"no finished run in {named} has scores on test and ood: expected at least one")
    write_output(out, render(boards, title).encode(errors="replace"))
    return boards


def make_boards(runs: Sequence[RunDirectory]) -> list[Board]:
    """Group finished runs that can be compared; boards by name, entries by their score on held-out compositions."""
    groups: dict[str, list[Entry]] = {}
    seen = {run.path.resolve(): run for run in runs}
    for run in seen.values():
        try:
            if entry := read_entry(run):
                groups.setdefault(hash_board(entry), []).append(entry)
        except (InputError, LookupError) as error:
            _log.warning("left out: %s: %s", run.path, error)
    boards = [_make_board(key, entries) for key, entries in groups.items()]
    return sorted(boards, key=lambda board: (board.task, board.first["steps"], board.first["seed"], board.key))


def read_entry(run: RunDirectory) -> Entry | None:
    """A run that is finished and has scores on seen and held-out compositions. Damage is an error."""
    result = run.read_json("result.json", complete=True) if run.finished else {}
    if not all(result.get("scores", {}).get(split) for split in ("test", "ood")):
        return None
    headline = next(iter(result["scores"]["ood"]))
    _ = (
        result["composition_sums"]["ood"][headline],
        result["metrics"][headline],
        run.read_json("split.json", complete=True),
    )
    return Entry(run=run, result=result, version=run.read_json("environment.json").get("recombine", "unknown"))


def hash_board(entry: Entry) -> str:
    """What entries must have in common, as a hash."""
    versions = {name: entry.result["versions"][name] for name in ("task", "training", "evaluation")}
    training = entry.run.config["training"]
    return hash_config(
        {
            "task": complete_settings(entry.run.config["task"]),
            "split": entry.result["split_sha256"],
            "budget": [training["steps"], training["batch_size"]],
            "instances": entry.result["evaluation_instances"],
            "versions": versions,
        }
    )


def complete_settings(task: Json) -> Json:
    """The settings of a task, with the defaults of those that were added after the run was made."""
    defaults = {field.name: field.default for field in fields(TASKS[task["name"]])} if task["name"] in TASKS else {}
    return {**{name: value for name, value in defaults.items() if value is not MISSING}, **task}


def name_budget(run: RunDirectory) -> str:
    """`tiny`, `small` or `paper`, if task, steps and batch size are those of the preset; otherwise the numbers."""
    task, training = complete_settings(run.config["task"]), run.config["training"]
    if task["name"] in TASKS:
        for scale in BUDGETS:
            preset = default_run(task["name"], scale)
            settings = settings_as_dict(preset.task)
            same_task = all(task.get(name) == value for name, value in settings.items() if name != "seed")
            budget = (preset.training.steps, preset.training.batch_size)
            if same_task and budget == (training["steps"], training["batch_size"]):
                return str(scale)
    return f"{training['steps']:,} steps of {training['batch_size']}"


def _make_board(key: str, entries: list[Entry]) -> Board:
    upward = next(iter(entries[0].result["metrics"].values()))["higher_is_better"]
    ranked = sorted(entries, key=lambda entry: entry.score("ood")["value"], reverse=upward)
    details = label_settings(differing_settings([entry.run for entry in ranked])) if len(ranked) > 1 else [""]
    labels = [entry.label for entry in ranked]
    pairs = zip(labels, details, strict=True)
    shown = [detail if labels.count(label) > 1 and detail != label else "" for label, detail in pairs]
    tied = [entry is ranked[0] or is_tied(ranked[0], entry) for entry in ranked]
    return Board(key=key, budget=name_budget(ranked[0].run), entries=ranked, details=shown, tied=tied)


def is_tied(best: Entry, entry: Entry) -> bool | None:
    """Whether the paired difference to the best entry includes 0; None if they were scored on different instances."""
    try:
        return not compare(best.sums, entry.sums).is_significant
    except InputError:
        return None


def tabulate_models(boards: Sequence[Board]) -> list[tuple[str, list[Json | None]]]:
    """For each model, its best score on the held-out compositions of each board."""
    labels = sorted({entry.label for board in boards for entry in board.entries})
    scores = [[(entry.label, entry.score("ood")) for entry in reversed(board.entries)] for board in boards]
    return [(label, [dict(board).get(label) for board in scores]) for label in labels]


def render(boards: Sequence[Board], title: str) -> str:
    """The page as text."""
    return render_page(
        "leaderboard.html",
        ["theme.js"],
        title=title,
        boards=boards,
        models=tabulate_models(boards),
        contents=[(board.key, board.title) for board in boards],
        position_of=lambda score: find_position(Score(**score), score["value"]) or 0.0,
    )
