"""Runs that several processes train together, and how to start the processes; `test_parallel.py` uses them.

As a program (`python parallel_cases.py FOLDER`), one of these processes.
"""

import os
import signal
import socket
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

from recombine.cli import train as train_command
from recombine.cli.main import main as run_and_exit
from recombine.cli.main import run as run_verb
from recombine.models.mlp import MLPConfig
from recombine.models.sequence import CausalAttentionConfig
from recombine.models.transformer import TransformerConfig
from recombine.tasks.fuzzy_logic import FuzzyLogic
from recombine.tasks.modular.hyperteacher import Hyperteacher
from recombine.tasks.sequences.teacher import SequenceTeacher
from recombine.training.config import RunConfig, TrainingConfig, default_run
from recombine.training.run import train_run

TRAINING = TrainingConfig(steps=30, batch_size=7, warmup_steps=5, learning_rate=3e-3, gradient_clip=1.0)
SIZES: dict[str, Any] = {"embedding_dim": 16, "kqv_dim": 8, "mlp_dim": 16, "num_heads": 4}
CONFIGS = {
    # masks of attention dropout that differ by row, and rows that two processes cannot share evenly
    "fuzzy_logic": RunConfig(
        task=FuzzyLogic(num_examples=8),
        model=TransformerConfig(attention_dropout=0.2, attention_dropout_form="elements", **SIZES),
        training=TRAINING,
    ),
    "hyperteacher": RunConfig(
        task=Hyperteacher(num_modules=4, num_active=2, support="random"),
        model=MLPConfig(num_layers=2, hidden_dim=8),
        training=TRAINING,
    ),
    # losses that are means over tokens and over steps, of which each row has its own number
    "sequence_teacher": RunConfig(task=SequenceTeacher(longest=20), model=CausalAttentionConfig(), training=TRAINING),
    "preference_grid": replace(default_run("preference_grid", "tiny"), training=TRAINING),
}
NUM_INSTANCES = 100


def train(name: str, out: Path, **options):
    return train_run(CONFIGS[name], out=out, evaluation_instances=NUM_INSTANCES, **options)


def main(out: Path) -> None:
    for name in CONFIGS:
        train(name, out)
    train("fuzzy_logic", out / "sharded", shard=True)
    (out / "file").touch(exist_ok=True)
    # only the leader touches files, and only the leader reports
    code = run_verb(["train", "hyperteacher", "--scale", "tiny", "--out", str(out / "file")])
    print(f"exit code {code}", file=sys.stderr, flush=True)
    run_and_exit(["train", "fuzzy-logic", "--scale", "tiny", "--out", str(out / "lost")])


def kill_follower(progress) -> None:
    """In the leader: end the other process without a warning."""
    if progress.step == 20:
        os.kill(int(os.environ["FOLLOWER"]), signal.SIGKILL)


def start_processes(out: Path, size: int = 2) -> list[subprocess.Popen]:
    """Start processes as `torchrun` does, without the time that it takes; the leader comes last in the list."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    shared = {"WORLD_SIZE": str(size), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "OMP_NUM_THREADS": "1"}
    processes: list[subprocess.Popen] = []
    for rank in reversed(range(size)):
        own = {"RANK": str(rank), "LOCAL_RANK": str(rank)}
        if processes:
            own["FOLLOWER"] = str(processes[0].pid)
        command = [sys.executable, __file__, str(out)]
        environment = {**os.environ, **shared, **own}
        processes.append(subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True))
    return processes


if __name__ == "__main__":

    def train_other(*arguments: Any, **options: Any) -> Any:
        config = CONFIGS["fuzzy_logic"] if "lost" in str(options["out"]) else arguments[0]
        return train_run(config, **{**options, "watch": kill_follower})

    vars(train_command)["train_run"] = train_other
    main(Path(sys.argv[1]))
