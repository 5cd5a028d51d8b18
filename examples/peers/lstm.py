"""A bidirectional LSTM on any task of sequences.

recombine train in-context --scale small --model examples/peers/lstm.py:LSTM
"""

from __future__ import annotations

from jaxtyping import Float
from torch import Tensor, nn

import recombine


class LSTM(nn.Module):
    """Two layers that read the sequence in both directions, and a linear readout of the last tokens."""

    def __init__(self, task: recombine.Task, width: int = 64) -> None:
        super().__init__()
        self.num_read = task.num_read
        self.embed = nn.Linear(task.input_dim, width)
        self.lstm = nn.LSTM(
            width, width // 2, num_layers=2, batch_first=True, bidirectional=not task.requires_causal_model
        )
        self.output = nn.Linear(width // 2 * (1 if task.requires_causal_model else 2), task.output_dim)

    def forward(self, inputs: Float[Tensor, "batch tokens features"]) -> Float[Tensor, "batch read outputs"]:
        states, _ = self.lstm(self.embed(inputs))
        return self.output(states[:, -self.num_read :])


if __name__ == "__main__":
    run = recombine.train_run(recombine.default_run("in_context", "tiny", LSTM), out="runs")
    print(run.path, run.read_json("result.json")["scores"]["ood"]["r2"])
