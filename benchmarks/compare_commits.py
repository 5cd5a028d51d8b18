"""Have the numbers moved? A short run of every family and model with the code of two commits, compared bit by bit.

    git worktree add /tmp/before 6b11abb
    python benchmarks/compare_commits.py /tmp/before .
    RECOMBINE_KERNEL=reference python benchmarks/compare_commits.py /tmp/before .

Each row names a run, whether the hashes of the splits are equal, and the largest relative difference of its losses and of its
scores; "same bits" where nothing differs. With the reference kernel both commits compute the definition, so a difference that
goes away with it is rounding of a faster kernel.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

STEPS, INSTANCES = 20, 256
ATTENTIONS = ("softmax", "linear", "hyla")
RUNS = (
    *(f"fuzzy-logic --attention {attention}" for attention in ATTENTIONS),
    *(f"sraven --attention {attention}" for attention in ATTENTIONS),
    *(f"in-context --model {model}" for model in ("transformer", "hypernetwork_transformer")),
    *(
        f"{task} --model {model}"
        for task in ("hyperteacher", "preference-grid", "goal-grid")
        for model in ("mlp", "hypernetwork", "task_transformer")
    ),
    *(f"sequence-teacher --teacher {kind} --model {kind}" for kind in ("deep_set", "attention", "ssm", "rnn")),
)
TRAIN = """
import sys
try:
    from recombine.cli.main import run as call
except ImportError:  # of version 0.1
    from recombine.cli import run as call
for number, arguments in enumerate(sys.argv[2:]):
    flags = ["--out", f"{sys.argv[1]}/{number}", "--quiet", "--device", "cpu"]
    if call(["train", *arguments.split(), *flags]) != 0:
        sys.exit(f"{arguments} failed")
"""


def train(checkout: Path, runs: Sequence[str], folder: Path) -> list[Path]:
    """Train all runs with the code of a checkout, in one process; their run directories."""
    size = f"--scale tiny --steps {STEPS} --evaluation-instances {INSTANCES}"
    command = [sys.executable, "-c", TRAIN, str(folder), *(f"{run} {size}" for run in runs)]
    environment = {**os.environ, "PYTHONPATH": str(checkout.resolve() / "src")}
    subprocess.run(command, env=environment, check=True, stdout=subprocess.DEVNULL)
    return [next((folder / str(number)).iterdir()) for number in range(len(runs))]


def read_losses(directory: Path) -> dict[str, float]:
    rows = (json.loads(line) for line in (directory / "metrics.jsonl").read_text().splitlines())
    return {f"loss {row['step']}": row["loss"] for row in rows}


def read_scores(result: dict[str, Any]) -> dict[str, float]:
    """Scores, intervals and chance. The ceiling is left out: its definition changed on purpose."""
    return {
        f"{split} {metric} {name}": score[name]
        for split, metrics in result["scores"].items()
        for metric, score in metrics.items()
        for name in ("value", "low", "high", "chance")
        if score.get(name) is not None
    }


def compare(before: dict[str, float], after: dict[str, float]) -> str:
    """The largest relative difference, in words."""
    if before.keys() != after.keys():
        return f"{min(before.keys() ^ after.keys())} is new or gone"
    if before == after:
        return "same bits"
    sizes = {name: abs(after[name] - value) / max(abs(value), 1e-9) for name, value in before.items()}
    worst = max(sizes, key=lambda name: sizes[name])
    return f"{sizes[worst]:.1e} ({worst})"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("before", type=Path, help="checkout of the earlier commit")
    parser.add_argument("after", type=Path, help="checkout of the later commit")
    parser.add_argument("--only", default="", help="runs whose name contains this")
    arguments = parser.parse_args()
    runs = [run for run in RUNS if arguments.only in run]
    print("| run | splits | losses | scores |\n| --- | --- | --- | --- |", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        before = train(arguments.before, runs, Path(folder) / "before")
        after = train(arguments.after, runs, Path(folder) / "after")
        for run, *sides in zip(runs, before, after, strict=True):
            results = [json.loads((side / "result.json").read_text()) for side in sides]
            splits = "equal" if results[0]["split_sha256"] == results[1]["split_sha256"] else "differ"
            losses = compare(*(read_losses(side) for side in sides))
            scores = compare(*(read_scores(result) for result in results))
            print(f"| `{run}` | {splits} | {losses} | {scores} |", flush=True)


if __name__ == "__main__":
    main()
