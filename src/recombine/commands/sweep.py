"""recombine sweep FILE.py: train the runs that a function in a file returns; recombine sweep status DIR."""

from __future__ import annotations

EXAMPLES = (
    "recombine sweep sweep.py --jobs 2",
    "recombine sweep sweep.py --engine ray",
    "recombine sweep status runs/sweep",
)


def run(argv: list[str]) -> None:
    if argv[:1] == ["status"]:
        from recombine.commands.sweep_status import run as show_status  # without torch

        show_status(argv[1:])
        return
    from recombine.commands.sweep_run import run as run_file

    run_file(argv)
